"""JSON for `json` and `jsonb`: writes structs, maps and arrays, and refuses what PostgreSQL cannot hold."""

from __future__ import annotations

import math
import re
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pt

from wal_sink.model.spark_types import is_array

_ENCODER = msgspec.json.Encoder(decimal_format="number")
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


class NoJsonError(ValueError):
    """A value has no JSON that PostgreSQL accepts. The error's text continues "Column c …"."""


def to_json(value: Any, type_: pa.DataType) -> str:
    """Return a struct, map or array as JSON.

    Binary becomes Base64. A date or time becomes ISO 8601. A decimal becomes a number with all its digits.

    :param value: the Python object of an Arrow value.
    :raises NoJsonError: a number is NaN or infinite, two keys of a map have the same text, or a text has the
        character NUL.
    """
    text = _encoded(_json_value(value, type_))
    _refuse_nul(text)
    return text


def refuse_no_json(text: str) -> None:
    """Refuse a text that is not JSON, or that `jsonb` cannot hold.

    :raises NoJsonError: the text is refused.
    """
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoJsonError(f"is not JSON ({error})") from error
    _refuse_nul(text)


def _refuse_nul(text: str) -> None:
    if _NUL.search(text):
        raise NoJsonError("has the character NUL in it, which PostgreSQL's JSON cannot hold")


def _encoded(value: Any) -> str:
    try:
        return _ENCODER.encode(value).decode()
    except (TypeError, ValueError, OverflowError) as error:
        raise NoJsonError(f"cannot be written as JSON ({error})") from error


def _json_value(value: Any, type_: pa.DataType) -> Any:
    """Return the value that the encoder writes for a value. The encoder itself would write NaN as null."""
    if value is None:
        return None
    if pt.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return {field.name: _json_value(value[field.name], field.type) for field in fields}
    if pt.is_map(type_):
        keys = [_key(key, type_.key_type) for key, _ in value]
        if len(set(keys)) < len(keys):
            raise NoJsonError("has two entries of a map with the same key in JSON")
        return dict(
            zip(keys, (_json_value(item, type_.item_type) for _, item in value), strict=True)
        )
    if is_array(type_):
        return [_json_value(element, type_.value_type) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise NoJsonError(f"has a number that JSON cannot hold ({value})")
    return value


def _key(key: Any, type_: pa.DataType) -> str:
    return key if isinstance(key, str) else _encoded(_json_value(key, type_)).strip('"')
