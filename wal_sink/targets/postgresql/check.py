"""Casts columns in tasks, and refuses values that PostgreSQL would refuse. No I/O.

The server accepts every row that passes, unless the row breaks a constraint, or is too long for an index or a
page. Structs, maps and arrays become JSON; a text for `json` or `jsonb` is validated.
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
    """A value has no JSON that PostgreSQL accepts. The text continues "Column c …"."""


def to_json(value: Any, type_: pa.DataType) -> str:
    """Return a struct, map or array as JSON.

    Binary becomes Base64, a date or time ISO 8601, and a decimal a number with all its digits.

    :param value: the Python object that Arrow returns for a value of the type.
    :raises NoJsonError: JSON has no form for a number or for the key of a map, or PostgreSQL cannot hold a
        text.
    """
    try:
        text = _ENCODER.encode(_json_value(value, type_)).decode()
    except (TypeError, ValueError, OverflowError) as error:
        raise NoJsonError(f"cannot be written as JSON ({error})") from error
    if _NUL.search(text):
        raise NoJsonError("has the character NUL in it, which PostgreSQL's JSON cannot hold")
    return text


def refuse_no_json(text: str) -> None:
    """Refuse a text that is not JSON, or that `jsonb` cannot hold.

    :raises NoJsonError: the text is refused.
    """
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NoJsonError(f"is not JSON ({error})") from error
    if _NUL.search(text):
        raise NoJsonError("has the character NUL in it, which PostgreSQL's JSON cannot hold")


def _json_value(value: Any, type_: pa.DataType) -> Any:
    """Return a value for the encoder: maps become objects."""
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
        raise NoJsonError(f"has a number that JSON cannot hold ({value})")
    return value


def _key(key: Any) -> str:
    """Return the key of a map as the key of a JSON object."""
    return key if isinstance(key, str) else _ENCODER.encode(key).decode().strip('"')


def fits(words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values a column of a type accepts; None: all of them."""
    if words.endswith(LISTS):
        return by_elements(fits, words, values)
    type_ = parse(words)
    return text_fits(type_, values) if is_text(values.type) and type_.base not in JSON else None


def stored(column: Column, values: pa.Array) -> pa.Array:
    """Cast the values of a column to the type that the log holds.

    :raises InvalidValueError: the server would refuse a value.
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

    :param rows: the row of each text, for texts in arrays; None: one text for each row.
    :raises InvalidValueError: a text is refused.
    """
    try:
        if is_json:
            for _ in _each(texts, refuse_no_json):
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
        # `bad.rows` flags elements, and not rows. Without it `publish.append.split_invalid` finds the rows.
        problem, row = f"has an element that {bad.problem}", rows[bad.row].as_py()
        raise InvalidValueError(problem, bad.remedy, row) from bad.__cause__


def _each(values: pa.Array, convert: Callable[..., str | None]) -> Iterator[str | None]:
    """Yield the result of a function for each value; Arrow has no kernel for JSON.

    :raises InvalidValueError: the function refuses a value.
    """
    for row, scalar in enumerate(values):
        try:
            value = scalar.as_py()
            yield None if value is None else convert(value)
        except (NoJsonError, ValueError, OverflowError) as error:
            remedy = "Correct the value, or make the table's type text."
            raise InvalidValueError(str(error), remedy, row) from error
