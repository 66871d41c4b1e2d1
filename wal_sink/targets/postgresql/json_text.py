"""Makes JSON of structs, maps and arrays, and tells whether a text is JSON that PostgreSQL takes."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pt

_ENCODER = msgspec.json.Encoder(decimal_format="number")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class NoJsonError(ValueError):
    """A value has no JSON, or none that PostgreSQL takes; the text continues "Column c …"."""


def to_json(value: Any, type_: pa.DataType) -> str:
    """Return a value of a struct, map or array as JSON; what Arrow gives as Python's objects.

    Binary is Base64, a date or time is ISO 8601, a decimal is a number with all its digits.

    :raises NoJsonError: it holds a number that JSON has not, or a map has no texts as keys.
    """
    try:
        text = _ENCODER.encode(_plain(value, type_)).decode()
    except (TypeError, ValueError, OverflowError) as error:
        raise NoJsonError(f"cannot be written as JSON ({error})") from error
    if _NUL.search(text):
        raise NoJsonError("has the character NUL in it, which PostgreSQL's JSON cannot hold")
    return text


def refuse_other(text: str) -> None:
    """Refuse a text that is not JSON.

    :raises NoJsonError: it is not, or has what `jsonb` cannot hold.
    """
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoJsonError(f"is not JSON ({error})") from error
    if _NUL.search(text):
        raise NoJsonError("has the character NUL in it, which PostgreSQL's JSON cannot hold")


def _plain(value: Any, type_: pa.DataType) -> Any:
    """Return what the encoder takes: maps as objects."""
    if value is None:
        return None
    if pt.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return {field.name: _plain(value[field.name], field.type) for field in fields}
    if pt.is_map(type_):
        keys = [_key(key) for key, _ in value]
        if len(set(keys)) < len(keys):
            raise NoJsonError("has two entries of a map with the same key in JSON")
        return dict(zip(keys, (_plain(item, type_.item_type) for _, item in value), strict=True))
    if pt.is_list(type_) or pt.is_large_list(type_):
        return [_plain(each, type_.value_type) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise NoJsonError(f"has a number that JSON has not ({value})")
    return value


def _key(key: Any) -> str:
    """Return the key of an object, as the encoder writes a value of its type."""
    return key if isinstance(key, str) else _ENCODER.encode(key).decode().strip('"')
