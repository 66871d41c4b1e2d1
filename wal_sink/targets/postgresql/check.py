"""Casts a batch to what the log holds, and refuses rows that PostgreSQL would refuse; done in the tasks.

The server takes every row that passes, the table's own constraints aside, so no row stops the flush. The
check neither connects nor imports the driver.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Column, Plan
from wal_sink.targets.postgresql.json_text import NoJsonError, refuse_other, to_json
from wal_sink.targets.postgresql.key import key_of
from wal_sink.targets.postgresql.types import PgType, is_document, is_text, log_type, parse
from wal_sink.targets.unwritten import is_text as is_words
from wal_sink.targets.values import uuids
from wal_sink.targets.values.literals import TRUE, long
from wal_sink.targets.values.operations import (
    are_deletes,
    keys_of_deletes,
    not_deleted,
    planned_operations,
)
from wal_sink.targets.values.text import other_columns, plain, shorten

_US = 1_000_000
FIRST_DAY = -2_440_588
"""Of PostgreSQL's dates and times, 4714-11-24 BC, in days since 1970."""
AFTER_LAST_DATE = 2_145_042_906
"""5874898-01-01."""
AFTER_LAST_TIME_S = 9_224_318_016_000
"""294277-01-01, in seconds since 1970."""


class BadValue(NamedTuple):
    """The first value of a column that the server would refuse."""

    row: int
    problem: str
    """Continues "Column c of t (value) …"."""
    remedy: str
    rows: pa.Array | None = None
    """All such values, as flags; None: only the first one is known."""


def check(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Cast `batch` to the types that the log holds.

    :raises SchemaMismatch: the columns are not those of the plan.
    :raises InvalidRow: a row cannot be written; names the column and the first such row.
    """
    _refuse_other_schema(batch.schema, plan)
    operations = planned_operations(batch, plan, functools.partial(_row_text, batch, plan))
    deletes = None if operations is None else are_deletes(operations)
    rows = batch if deletes is None else keys_of_deletes(batch, deletes, key_of(plan))
    stored = []
    for column, values in zip(plan.columns, rows.columns, strict=True):
        if column.role == "operation":
            stored.append(operations)
            continue
        array = values.cast(values.type.value_type) if pt.is_dictionary(values.type) else values
        try:
            _refuse_null(column, array, deletes, key=column.name in key_of(plan))
            stored.append(_stored(column, array))
        except _BadValueError as error:
            bad = error.bad
            raise InvalidRow(
                f"Column {column.name} of {plan.table} ({shorten(plain(values[bad.row]))}) {bad.problem}, in"
                f" {_row_text(batch, plan, bad.row)}.",
                bad.remedy.replace("{name}", column.name),
                column=column.name,
                problem=f"Column {column.name} of {plan.table} {bad.problem}.",
                rows=bad.rows,
            ) from None
    return pa.RecordBatch.from_arrays(stored, names=[column.name for column in plan.columns])


class _BadValueError(Exception):
    """Carries what is wrong to where the row can be named."""

    def __init__(self, bad: BadValue) -> None:
        super().__init__(bad)
        self.bad = bad


def _refuse_other_schema(schema: pa.Schema, plan: Plan) -> None:
    got = [(field.name, str(field.type)) for field in schema]
    planned = [(column.name, column.source) for column in plan.columns]
    if [name for name, _ in got] != [name for name, _ in planned] or not all(
        is_words(field.type)
        if column.role == "operation"
        else log_type(column.type, field.type) is not None
        for column, field in zip(plan.columns, schema, strict=True)
    ):
        raise other_columns(plan, got)


def _row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Name a row by its key, or by the beginning of its values where the table has none."""
    shown = key_of(plan) or [column.name for column in plan.columns][:3]
    values = ", ".join(f"{name}={shorten(plain(batch.column(name)[row]))}" for name in shown)
    return f"the row with {values}"


def _refuse_null(column: Column, values: pa.Array, deletes: pa.Array | None, *, key: bool) -> None:
    remedy = 'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.'
    if column.role == "required":
        missing = values.is_null()
        # A delete has the key alone.
        _refuse(
            missing if key else not_deleted(missing, deletes),
            "is null, and the table's column takes no null",
            remedy,
        )
    if key:
        _refuse(values.is_null(), "is null and part of the key, and a null equals no other", remedy)


def _stored(column: Column, values: pa.Array) -> pa.Array:
    """Cast one column, and refuse what the server would refuse of it."""
    type_, target = parse(column.type), log_type(column.type, values.type)
    assert type_ is not None
    assert target is not None, "the plan has only types that fit"
    if not type_.is_array:
        return _stored_scalar(type_, column.type, target, values)
    if not pt.is_list(values.type):
        values = values.cast(pa.list_(values.type.value_type))
    try:
        return _cast_elements(type_, column.type, target, values)
    except _BadValueError as error:
        row = pc.list_parent_indices(values)[error.bad.row].as_py()
        raise _BadValueError(
            # The flags are of elements: `publish.sift` finds the rows.
            error.bad._replace(
                row=row, problem=f"has an element that {error.bad.problem}", rows=None
            )
        ) from None


def _cast_elements(type_: PgType, words: str, target: pa.DataType, values: pa.Array) -> pa.Array:
    elements = _stored_scalar(type_.element, words, target.value_type, values.flatten())
    lengths = pc.list_value_length(values).fill_null(long(0).cast(pa.int32()))
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    offsets = pa.concat_arrays([long_array(0), ends]).cast(pa.int32())
    return pa.ListArray.from_arrays(offsets, elements, mask=values.is_null())


def long_array(value: int) -> pa.Array:
    """Return one int64; `pyarrow.array` would import pandas, see `targets.values.literals`."""
    return pa.repeat(long(value), 1)


def _stored_scalar(type_: PgType, words: str, target: pa.DataType, values: pa.Array) -> pa.Array:
    if type_.base in ("json", "jsonb"):
        return _as_json(values)
    if is_text(values.type):
        values = values.cast(pa.string())
        _refuse_text(type_, values)
        return uuids.as_uuid(values) if pt.is_fixed_size_binary(target) else values
    _refuse_time(values)
    return _cast(values, target, words)


def _cast(values: pa.Array, target: pa.DataType, words: str) -> pa.Array:
    """Cast, and refuse the first value that the type cannot hold."""
    if pt.is_integer(values.type) and pt.is_decimal(target):
        # Arrow casts an integer only to a decimal that has room for every one of its type.
        values = values.cast(pa.int64()).cast(pa.decimal128(19, 0))
    try:
        return values.cast(target)
    except pa.ArrowInvalid as error:
        row = _first(values, lambda part: part.cast(target))
        raise _BadValueError(
            BadValue(
                row,
                f"does not fit into {words}",
                f"Filter or round it, or widen the column. Arrow says: {error}",
            )
        ) from error


def _first(values: pa.Array, cast: Callable[[pa.Array], object]) -> int:
    """Return the first value of which a cast raises; there is one."""
    begin, end = 0, len(values)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            cast(values.slice(begin, middle - begin))
        except pa.ArrowInvalid:
            end = middle
        else:
            begin = middle
    return begin


def _refuse_text(type_: PgType, values: pa.Array) -> None:
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        row = next(i for i, value in enumerate(values) if not _decodes(value.as_buffer()))
        raise _BadValueError(
            BadValue(row, "is not UTF-8", "Mend it by make_valid_utf8(…), or write it to a bytea.")
        ) from None
    if type_.base == "uuid":
        _refuse(
            pc.invert(pc.match_substring_regex(values, uuids.PATTERN)),
            "is not a uuid",
            "Write it as 8-4-4-4-12 hexadecimal digits, or make the table's type text.",
        )
        return
    _refuse(
        pc.match_substring(values, "\0"),
        "has the character NUL in it, which PostgreSQL's texts cannot hold",
        "Remove it: regexp_replace({name}, '\\\\x00', ''), or write the bytes to a bytea.",
    )
    if type_.first is not None:
        _refuse(
            pc.greater(pc.utf8_length(values).cast(pa.int64()), long(type_.first)),
            f"is longer than the {type_.first} characters of the table's type",
            f"Cut it, left({{name}}, {type_.first}), or make the table's type text.",
        )


def _decodes(encoded: pa.Buffer | None) -> bool:
    try:
        str(encoded or b"", "utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _refuse_time(values: pa.Array) -> None:
    """Refuse dates and instants outside of those that PostgreSQL knows."""
    if pt.is_date32(values.type):
        numbers, first, after = values.cast(pa.int32()).cast(pa.int64()), FIRST_DAY, AFTER_LAST_DATE
    elif pt.is_timestamp(values.type):
        per_second = {"s": 1, "ms": 1_000, "us": _US, "ns": 1_000 * _US}[values.type.unit]
        numbers, first = values.cast(pa.int64()), FIRST_DAY * 86_400 * per_second
        after = min(AFTER_LAST_TIME_S * per_second, 2**63 - 1)
    else:
        return
    _refuse(
        pc.or_(
            pc.less(numbers, long(max(first, -(2**63)))), pc.greater_equal(numbers, long(after))
        ),
        "is outside of the dates that PostgreSQL knows, 4714 BC to 294276 AD",
        "Filter such rows out; most often the unit is wrong.",
    )


def _refuse(bad: pa.Array, problem: str, remedy: str) -> None:
    row = pc.index(bad, TRUE).as_py()
    if row >= 0:
        raise _BadValueError(BadValue(row, problem, remedy, bad))


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
            raise _BadValueError(
                BadValue(row, str(error), "Correct the value, or make the table's type text.")
            ) from error
