"""Casts a column to what the log holds, and refuses values that PostgreSQL would refuse; done in the tasks.

The server takes every row that passes, but for constraints, indexes and pages of the table. The check
neither connects nor imports the driver. JSON is made of structs, maps and arrays; a text for `jsonb` is
validated.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.plan import Column, is_array, is_text
from wal_sink.targets.casts import InvalidValueError, cast_or_refuse, refuse, stored_by
from wal_sink.targets.postgresql.types import JSON, TYPES, as_decimal, is_any_decimal
from wal_sink.targets.sql.types import (
    LISTS,
    arrow_type,
    by_elements,
    is_document,
    parse,
    text_fits,
)

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
        text = _ENCODER.encode(_json_value(value, type_)).decode()
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


def _json_value(value: Any, type_: pa.DataType) -> Any:
    """Return what the encoder takes: maps as objects."""
    if value is None:
        return None
    if pt.is_struct(type_):
        fields = [type_.field(i) for i in range(type_.num_fields)]
        return {field.name: _json_value(value[field.name], field.type) for field in fields}
    if pt.is_map(type_):
        keys = [_key(key) for key, _ in value]
        if len(set(keys)) < len(keys):
            raise NoJsonError("has two entries of a map with the same key in JSON")
        return dict(
            zip(keys, (_json_value(item, type_.item_type) for _, item in value), strict=True)
        )
    if is_array(type_):
        return [_json_value(element, type_.value_type) for element in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise NoJsonError(f"has a number that JSON has not ({value})")
    return value


def _key(key: Any) -> str:
    """Return the key of an object, as the encoder writes a value of its type."""
    return key if isinstance(key, str) else _ENCODER.encode(key).decode().strip('"')


def fits(words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values PostgreSQL takes in a column, of those that the Arrow type holds."""
    if words.endswith(LISTS):
        return by_elements(fits, words, values)
    type_ = parse(words)
    return text_fits(type_, values) if is_text(values.type) and type_.base not in JSON else None


def stored(column: Column, values: pa.Array) -> pa.Array:
    """Cast the values of a column to what the log holds.

    :raises InvalidValueError: the server would refuse one.
    """
    element = parse(column.type.removesuffix(LISTS)).base
    if is_any_decimal(column.type):
        held = as_decimal(values.type.value_type if is_array(values.type) else values.type)
        held = pa.list_(held) if column.type.endswith(LISTS) else held
        return cast_or_refuse(values, held, column.type)
    if column.type in JSON and is_document(values.type):
        texts = _each(values, functools.partial(to_json, type_=values.type))
        return pa.array(list(texts), pa.string())
    array = stored_by(functools.partial(arrow_type, TYPES), fits)(column, values)
    texts = array.flatten() if pt.is_list(array.type) else array
    if pt.is_string(texts.type):
        rows = pc.list_parent_indices(array) if pt.is_list(array.type) else None
        _refuse_texts(texts, rows, is_json=element in JSON)
    return array


def _refuse_texts(texts: pa.Array, rows: pa.Array | None, *, is_json: bool) -> None:
    """Refuse texts that PostgreSQL cannot hold.

    :param rows: of each text, where a row has several.
    """
    try:
        if is_json:
            for _ in _each(texts, refuse_other):
                pass
        else:
            refuse(
                pc.match_substring(texts, "\0"),
                "has the character NUL in it, which PostgreSQL's texts cannot hold",
                "Remove it: regexp_replace({name}, '\\\\x00', ''), or write the bytes to a bytea.",
            )
    except InvalidValueError as bad:
        if rows is None:
            raise
        # The flags are of elements: `publish.append.split_invalid` finds the rows.
        problem, row = f"has an element that {bad.problem}", rows[bad.row].as_py()
        raise InvalidValueError(problem, bad.remedy, row) from bad.__cause__


def _each(values: pa.Array, make: Callable[..., str | None]) -> Iterator[str | None]:
    """Yield what is made of each value: no kernel makes or reads JSON."""
    for row, scalar in enumerate(values):
        try:
            value = scalar.as_py()
            yield None if value is None else make(value)
        except (NoJsonError, ValueError, OverflowError) as error:
            remedy = "Correct the value, or make the table's type text."
            raise InvalidValueError(str(error), remedy, row) from error
