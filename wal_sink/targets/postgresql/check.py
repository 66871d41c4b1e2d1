"""Casts a batch to what the log holds, and refuses rows that PostgreSQL would refuse; done in the tasks.

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

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan, is_array, is_text
from wal_sink.targets import arrow_values, casts
from wal_sink.targets.arrow_values import int64
from wal_sink.targets.casts import InvalidValueError, cast, cast_or_refuse, refuse
from wal_sink.targets.postgresql.types import (
    PgType,
    is_document,
    log_type,
    parse,
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


_FIRST_DAY, _LAST_DATE, _LAST_TIME = -2_440_588, 2_145_042_905, 106_762_939
"""4714-11-24 BC, 5874897-12-31 of a date, 294276-12-31 of a date with time; in days since 1970."""


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast `batch` to the types that the log holds.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written; names the column and the first such row.
    """
    return cast(batch, plan, _stored)


def recast(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast rows of the log to the types of a table that was altered since they were checked.

    :param plan: as the table is now.
    :raises InvalidRow: a row cannot be written any more.
    :raises SchemaMismatch: a column of this type takes none of these rows.
    """
    for column, values in zip(plan.columns, batch.columns, strict=False):  # flags come after them
        if column.role != "operation" and log_type(column.type, values.type) is None:
            raise SchemaMismatch(
                f"Column {column.name} of {plan.table} is {column.type} now, and pending rows have"
                f" {values.type} for it.",
                "Change the column back; the flush goes on by itself.",
            )
    return casts.recast(batch, plan, _stored)


def _stored(column: Column, values: pa.Array) -> pa.Array:
    """Cast one column, and refuse what the server would refuse of it."""
    type_, to = parse(column.type), log_type(column.type, values.type)
    assert type_ is not None
    assert to is not None, "the plan has only types that fit"
    if not type_.is_array:
        return _stored_scalar(type_, column.type, to, values)
    if not pt.is_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
    try:
        return _cast_elements(type_, column.type, to, values)
    except InvalidValueError as bad:
        row = pc.list_parent_indices(values)[bad.row].as_py()
        # The flags are of elements: `publish.append.split_invalid` finds the rows.
        problem = f"has an element that {bad.problem}"
        raise InvalidValueError(problem, bad.remedy, row) from bad.__cause__


def _cast_elements(type_: PgType, words: str, to: pa.DataType, values: pa.Array) -> pa.Array:
    elements = _stored_scalar(type_.element, words, to.value_type, values.flatten())
    lengths = pc.list_value_length(values).fill_null(int64(0).cast(pa.int32()))
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([pa.repeat(int64(0), 1), ends]).cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, elements, mask=values.is_null())


def _stored_scalar(type_: PgType, words: str, to: pa.DataType, values: pa.Array) -> pa.Array:
    if type_.base in ("json", "jsonb"):
        return _as_json(values)
    if is_text(values.type):
        values = values.cast(pa.string())
        _refuse_text(type_, values)
        return arrow_values.as_uuid(values) if pt.is_fixed_size_binary(to) else values
    _refuse_time(values)
    return cast_or_refuse(values, to, words)


def _refuse_text(type_: PgType, values: pa.Array) -> None:
    if type_.base == "uuid":
        refuse(
            pc.invert(pc.match_substring_regex(values, arrow_values.UUID_PATTERN)),
            "is not a uuid",
            "Write it as 8-4-4-4-12 hexadecimal digits, or make the table's type text.",
        )
        return
    refuse(
        pc.match_substring(values, "\0"),
        "has the character NUL in it, which PostgreSQL's texts cannot hold",
        "Remove it: regexp_replace({name}, '\\\\x00', ''), or write the bytes to a bytea.",
    )
    if type_.first is not None:
        refuse(
            pc.greater(pc.utf8_length(values).cast(pa.int64()), int64(type_.first)),
            f"is longer than the {type_.first} characters of the table's type",
            f"Cut it, left({{name}}, {type_.first}), or make the table's type text.",
        )


def _refuse_time(values: pa.Array) -> None:
    """Refuse dates and instants outside of those that PostgreSQL knows."""
    if pt.is_date32(values.type) or pt.is_timestamp(values.type):
        last = _LAST_DATE if pt.is_date32(values.type) else _LAST_TIME
        refuse(
            arrow_values.outside(values, _FIRST_DAY, last),
            "is outside of the dates that PostgreSQL knows, 4714 BC to 294276 AD",
            "Filter such rows out; most often the unit is wrong.",
        )


def _as_json(values: pa.Array) -> pa.Array:
    """Return JSON texts; no kernel makes or reads them, so each value is taken by itself."""
    if is_document(values.type):
        texts = list(_each(values, functools.partial(to_json, type_=values.type)))
        return pa.array(texts, pa.string())
    texts = values.cast(pa.string())
    for _ in _each(texts, refuse_other):
        pass
    return texts


def _each(values: pa.Array, make: Callable[..., str | None]) -> Iterator[str | None]:
    for row, scalar in enumerate(values):
        try:
            value = scalar.as_py()
            yield None if value is None else make(value)
        except (NoJsonError, ValueError, OverflowError) as error:
            remedy = "Correct the value, or make the table's type text."
            raise InvalidValueError(str(error), remedy, row) from error
