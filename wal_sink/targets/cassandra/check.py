"""Casts a batch to the types of the log, and refuses rows that Cassandra would refuse. Runs in the tasks.

The tasks neither connect nor load the driver. Rows that only the server can refuse, such as for an index,
are found by `write.refusals`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.clock import now_us
from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_scalars import FALSE, TRUE, as_python, int64, null, shorten
from wal_sink.targets.cassandra.arrow_buffers import lists_with, sizes, unnest
from wal_sink.targets.cassandra.options import EXPIRES_AT_COLUMN, TIMESTAMP_COLUMN, TTL_COLUMN
from wal_sink.targets.cassandra.row_plan import (
    EXPIRES_US,
    KEY,
    MAX_TTL_S,
    TIMESTAMP_US,
    TTL_S,
    CassandraPlan,
    RowTtl,
    in_order,
)
from wal_sink.targets.cassandra.types import (
    NO_NULLS,
    TYPES,
    Constraint,
    CqlType,
    as_is,
    cast_column,
    column_types,
)
from wal_sink.targets.columns import refuse_other_schema
from wal_sink.targets.deletes import (
    are_deletes,
    except_deletes,
    operations_of_rows,
    without_values_of_deletes,
)
from wal_sink.targets.unavailable import mark, with_flags

MAX_KEY_BYTES = 65_535
"""The server's limit of a partition key, and of all clustering columns of a row together."""
MAX_ROW_BYTES = 8 * 1024 * 1024
"""The limit of a row: half of the largest mutation that a server with default settings accepts."""
AHEAD_S = 3_600
"""Seconds by which an event time may be ahead of the task's clock."""
_MIN_TIMESTAMP_US = 10**15
"""2001-09-09 in microseconds since 1970. A smaller bigint probably counts milliseconds or seconds."""
_SECOND_US = 1_000_000


def check(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Cast a batch of the DataFrame to the types of the log.

    :raises SchemaMismatch: the columns of the batch are not those of the plan.
    :raises InvalidRow: a row cannot be written. The error names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    controls = read_controls(batch, plan)
    table = plan.of_table()
    rows = batch.select([column.name for column in table.columns])
    if controls.deletes is not None:
        rows = without_deleted_values(rows, table, controls.deletes)
    key = [column.name for column in plan.columns if column.role in KEY]
    marked = mark(rows, plan, key)
    stored = _cast_rows(marked.rows, table, controls.deletes)
    columns = dict(zip(stored.schema.names, stored.columns, strict=True)) | controls.columns
    return with_flags(in_order(columns, plan), marked.flags)


def _cast_rows(
    batch: pa.RecordBatch, plan: CassandraPlan, deletes: pa.Array | None
) -> pa.RecordBatch:
    """Refuse invalid values and cast the columns of the table.

    :param deletes: flags of the rows that are deletes; None if no row is one.
    """
    stored = []
    for column, tree, values in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        name, key = column.name, column.role in KEY
        if key and values.null_count:
            missing = values.is_null()
            if column.role == "clustering":  # a delete without it is a delete of a range
                missing = except_deletes(missing, deletes)
            problem = "is part of the primary key and null"
            remedy = f'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.'
            refuse_invalid(batch, plan, InvalidValue.first(missing, name, None, problem, remedy))
        refuse_invalid(batch, plan, next(invalid_values(name, values, tree, key=key), None))
        stored.append(cast_column(values, tree))
    names = [column.name for column in plan.columns]
    rows = pa.RecordBatch.from_arrays(stored, names=names)
    _refuse_sizes(batch, plan, rows)
    return rows


# --- errors -----------------------------------------------------------------------------------


class InvalidValue(NamedTuple):
    """The first value of a column that breaks a constraint."""

    row: int
    path: str
    """The column, or the part of it, such as `address.zip`."""
    value: pa.Scalar | None
    """The invalid value; None if several columns are invalid together."""
    problem: str
    remedy: str
    rows: pa.Array
    """Flags of all rows that break the constraint; a null flag counts as False."""

    @classmethod
    def first(
        cls, bad: pa.Array, path: str, values: pa.Array | None, problem: str, remedy: str
    ) -> InvalidValue | None:
        """Return the first flagged value of a column; None if no value is flagged."""
        row = pc.index(bad, TRUE).as_py()
        if row < 0:
            return None
        return cls(row, path, None if values is None else values[row], problem, remedy, bad)


def refuse_invalid(batch: pa.RecordBatch, plan: Plan, invalid: InvalidValue | None) -> None:
    """Raise the error of an invalid value; do nothing for None.

    :raises InvalidRow: names the row by its key.
    """
    if invalid:
        value = "" if invalid.value is None else f" ({shorten(as_python(invalid.value))})"
        raise InvalidRow(
            f"Column {invalid.path} of {plan.table}{value} {invalid.problem}, in"
            f" {row_text(batch, plan, invalid.row)}.",
            invalid.remedy,
            column=invalid.path,
            problem=f"Column {invalid.path} of {plan.table} {invalid.problem}.",
            rows=invalid.rows,
        )


def row_text(batch: pa.RecordBatch, plan: Plan, row: int) -> str:
    """Return the text by which errors name a row of a batch: its key."""
    return key_text(plan, [as_python(values[row]) for values in batch.columns])


def key_text(plan: Plan, values: Sequence[Any]) -> str:
    """Return the text by which errors name a row.

    :param values: the values of the row in the order of the plan's columns.
    """
    key = ", ".join(
        f"{column.name}={shorten(value)}"
        for column, value in zip(plan.columns, values, strict=True)
        if column.role in KEY
    )
    return f"the row with {key}"


# --- values that break a constraint of their type ---------------------------------------------


def invalid_values(
    path: str, column: pa.Array, tree: CqlType, *, key: bool
) -> Iterator[InvalidValue]:
    """Yield the first invalid value of a column of the DataFrame, and of each part of its type.

    :param key: True for a column of the primary key.
    """
    if tree.kind in TYPES:
        scalar = TYPES[tree.kind]
        yield from _broken(path, column, scalar.constraint)
        if key:
            yield from _broken(path, column, scalar.key_constraint)
    elif tree.kind in ("tuple", "udt"):
        for i, field in enumerate(column.flatten()):
            name = column.type.field(i).name
            part = tree.parts[tree.fields.index(name) if tree.kind == "udt" else i]
            yield from invalid_values(f"{path}.{name}", field, part, key=key)
    else:
        offsets, values = unnest(column)
        if tree.kind == "vector":
            yield from _wrong_lengths(path, column, offsets, tree.length)
        for invalid in _of_elements(path, values, tree, key):
            # The row of an element is the last list that begins at or before the element: other lists that
            # begin at the same element are empty.
            begins = pc.less_equal(offsets[:-1], int64(invalid.row))
            yield invalid._replace(
                row=pc.sum(begins).as_py() - 1, rows=lists_with(offsets, invalid.rows)
            )


def _of_elements(path: str, values: pa.Array, tree: CqlType, key: bool) -> Iterator[InvalidValue]:
    columns, names = [values], ["element"]
    if tree.kind == "map":
        columns, names = values.flatten(), ["key", "value"]
    for name, elements, part in zip(names, columns, tree.parts, strict=True):
        inner = f"{path}.{name}"
        yield from _broken(inner, elements, NO_NULLS)
        # A cast must not make two keys of a map, or two elements of a set, equal.
        is_key = key or name == "key" or tree.kind == "set"
        yield from invalid_values(inner, elements, part, key=is_key)


def _broken(path: str, column: pa.Array, rule: Constraint | None) -> Iterator[InvalidValue]:
    if rule is not None:
        bad = rule.bad(column)
        if invalid := InvalidValue.first(bad, path, column, rule.problem, rule.remedy):
            yield invalid


def _wrong_lengths(
    path: str, column: pa.Array, offsets: pa.Array, length: int
) -> Iterator[InvalidValue]:
    lengths = pc.subtract(offsets[1:], offsets[:-1])
    bad = pc.and_(column.is_valid(), pc.not_equal(lengths, int64(length)))
    remedy = "Drop such rows, or pad or cut the arrays: slice(c, 1, n)."
    if invalid := InvalidValue.first(bad, path, column, "", remedy):
        count = lengths[invalid.row].as_py()
        problem = f"has {count} elements, and the table's vector takes exactly {length}"
        yield invalid._replace(problem=problem)


def _refuse_sizes(batch: pa.RecordBatch, plan: CassandraPlan, stored: pa.RecordBatch) -> None:
    """Refuse keys and rows that are too long, and an empty partition key.

    :param batch: the rows as errors show them.
    :param stored: the same rows after the cast.
    """
    bytes_of = {
        column.name: sizes(values)
        for column, values in zip(plan.columns, stored.columns, strict=True)
    }
    partition = [column.name for column in plan.columns if column.role == "partition"]
    clustering = [column.name for column in plan.columns if column.role == "clustering"]

    def refuse(bad: pa.Array, path: str, problem: str, remedy: str) -> None:
        # The path of a key of several columns is not a column: then the error shows no value.
        values = batch.column(path) if path in batch.schema.names else None
        refuse_invalid(batch, plan, InvalidValue.first(bad, path, values, problem, remedy))

    if len(partition) == 1:
        refuse(
            pc.equal(bytes_of[partition[0]], int64(0)),
            partition[0],
            "is empty, and it is the whole partition key",
            "Drop such rows, or fill them in.",
        )
    # With each component of a composite key the server stores two bytes of length and a separator.
    overhead = 3 * len(partition) if len(partition) > 1 else 0
    for names, extra, noun in (
        (partition, overhead, "partition key"),
        (clustering, 0, "clustering key"),
    ):
        if names:
            total = functools.reduce(pc.add, [bytes_of[name] for name in names])
            refuse(
                pc.greater(total, int64(MAX_KEY_BYTES - extra)),
                ", ".join(names),
                f"is longer than the {MAX_KEY_BYTES:,} bytes that a {noun} may have",
                "Use a digest of the value as the key: sha2(col, 256).",
            )
    refuse(
        pc.greater(functools.reduce(pc.add, bytes_of.values()), int64(MAX_ROW_BYTES)),
        max(bytes_of, key=lambda name: pc.max(bytes_of[name]).as_py() or 0),
        f"makes a row of more than {MAX_ROW_BYTES:,} bytes, and a server accepts hardly more in one write",
        "Split the value, or keep it elsewhere and write a reference.",
    )


# --- columns that say what becomes of a row: deletes, TTLs, event times -----------------------


class Controls(NamedTuple):
    """The control columns of a batch: they decide what becomes of a row, and are not written."""

    deletes: pa.Array | None
    """Flags of the rows that are deletes; None if no row is one."""
    columns: dict[str, pa.Array]
    """The same controls as the log holds them, by the name of the log's column."""


Reason = tuple[pa.Array, str, str]
"""Flags of the refused values; the problem, which continues "Column c of t (value) …"; and the remedy.
`{name}` in the remedy stands for the column."""


def read_controls(batch: pa.RecordBatch, plan: CassandraPlan) -> Controls:
    """Read the control columns of a batch of the DataFrame. A delete has no TTL.

    :raises InvalidRow: a value of a control column is invalid.
    """
    columns: dict[str, pa.Array] = {}
    deletes = None
    operations = operations_of_rows(batch, plan, functools.partial(row_text, batch, plan))
    if operations is not None:
        columns[str(plan.operation)] = operations
        deletes = are_deletes(operations)
    ttl = plan.details.ttl or RowTtl()
    if name := ttl.ttl_column:
        seconds = _whole_numbers(batch, name)
        columns[TTL_S] = _null_for_deletes(seconds, deletes)
        _refuse(batch, plan, TTL_COLUMN, name, _bad_seconds(seconds, deletes))
    if name := ttl.expires_at_column:
        expiry = _whole_numbers(batch, name)
        columns[EXPIRES_US] = _null_for_deletes(expiry, deletes)
        _refuse(batch, plan, EXPIRES_AT_COLUMN, name, _bad_expiry(expiry, deletes, now_us()))
    if name := plan.details.timestamp_column:
        times = columns[TIMESTAMP_US] = _whole_numbers(batch, name)
        is_number = pa.types.is_integer(as_is(batch.column(name)).type)
        reasons = _bad_event_times(times, now_us(), is_number=is_number)
        _refuse(batch, plan, TIMESTAMP_COLUMN, name, reasons)
    return Controls(deletes, columns)


def without_deleted_values(
    rows: pa.RecordBatch, table: CassandraPlan, deletes: pa.Array
) -> pa.RecordBatch:
    """Return the rows. In a delete, each column outside of the key becomes null.

    :param table: the plan of the rows' columns.
    :raises InvalidRow: a delete has a null before a clustering column with a value. CQL cannot delete such a
        range.
    """
    keys = {column.name for column in table.columns if column.role in KEY}
    rows = without_values_of_deletes(rows, deletes, keys)
    clustering = table.details.clustering
    for name, following in itertools.pairwise(clustering):
        gaps = pc.and_(rows.column(name).is_null(), rows.column(following).is_valid())
        problem = (
            f"is null and {following} after it is not: a delete takes the rows under the first values of"
            f" ({', '.join(clustering)})"
        )
        remedy = (
            f"Fill {name} in; or make {following} null, too, to delete all rows under the columns before"
            f" {name}."
        )
        refuse_invalid(rows, table, InvalidValue.first(gaps, name, None, problem, remedy))
    return rows


def _whole_numbers(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return a column of numbers or instants as int64."""
    return as_is(batch.column(name)).cast(pa.int64())


def _null_for_deletes(values: pa.Array, deletes: pa.Array | None) -> pa.Array:
    return values if deletes is None else pc.if_else(deletes, null(pa.int64()), values)


def _upserts_with(flags: pa.Array, deletes: pa.Array | None = None) -> pa.Array:
    """Return flags of rows, False for deletes and for null flags."""
    return except_deletes(pc.fill_null(flags, FALSE), deletes)


def _refuse(
    batch: pa.RecordBatch, plan: CassandraPlan, option: str, name: str, reasons: Iterable[Reason]
) -> None:
    """Refuse values of a control column.

    :param option: the option that names the column.
    """
    values = as_is(batch.column(name))
    for bad, problem, remedy in reasons:
        text, remedy_text = f"{problem} ({option})", remedy.replace("{name}", name)
        refuse_invalid(batch, plan, InvalidValue.first(bad, name, values, text, remedy_text))


def _bad_seconds(seconds: pa.Array, deletes: pa.Array | None) -> list[Reason]:
    return [
        (
            except_deletes(seconds.is_null(), deletes),
            "is null, and not a TTL in seconds",
            "Fill it in, .na.fill(…), or write rows that never expire by a query of their own.",
        ),
        (
            _upserts_with(pc.less(seconds, int64(1)), deletes),
            "is not a TTL of one second or more",
            "Drop such rows; or delete, by operationColumn, the rows that are to go.",
        ),
        (
            _upserts_with(pc.greater(seconds, int64(MAX_TTL_S)), deletes),
            f"is more than the {MAX_TTL_S} seconds that the server accepts",
            f'Take the smaller of the two: least("{{name}}", lit({MAX_TTL_S})).',
        ),
    ]


def _bad_expiry(expiry: pa.Array, deletes: pa.Array | None, now_us: int) -> list[Reason]:
    last_us = now_us + MAX_TTL_S * _SECOND_US
    return [
        (
            except_deletes(expiry.is_null(), deletes),
            "is null, and not a time of expiry",
            "Fill it in, or write rows that never expire by a query of their own.",
        ),
        (
            _upserts_with(pc.greater(expiry, int64(last_us)), deletes),
            f"is more than {MAX_TTL_S} seconds from now, the longest TTL that the server accepts",
            f'Take an earlier time: least("{{name}}", timestamp_seconds(lit({last_us // _SECOND_US}))).',
        ),
    ]


def _bad_event_times(times: pa.Array, now_us: int, *, is_number: bool) -> list[Reason]:
    ahead_us = now_us + AHEAD_S * _SECOND_US
    early = "is before 2001 as microseconds" if is_number else "is not after 1970"
    return [
        (
            times.is_null(),
            "is null, and not the time of an event",
            'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.',
        ),
        (
            _upserts_with(pc.less(times, int64(_MIN_TIMESTAMP_US if is_number else 1))),
            early,
            'Milliseconds become an instant by timestamp_millis("{name}"), seconds by timestamp_seconds.',
        ),
        (
            _upserts_with(pc.greater(times, int64(ahead_us))),
            f"is more than {AHEAD_S} seconds ahead of the clock, and would hide what comes until then",
            'Correct its clock or time zone; or bound it: least("{name}", current_timestamp()).',
        ),
    ]
