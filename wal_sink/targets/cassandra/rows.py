"""Deletes, TTLs and event times of rows, from the control columns of the DataFrame.

Options such as `cassandra.ttlColumn` name a control column. A start checks the control columns, a task
converts them to columns of the log, and a flusher computes TTLs and write timestamps from the log. The
functions below are in this order: start, task, flush.

**TTL.** After an outage a row is written late, and after a crash it is written again. If the TTL counted from
the time of writing, the row would expire later each time. So the second in which a row expires is fixed when
the row is published, and a flusher writes the row with the remaining TTL.

**Event time.** A control column has the event time of each row, and the event time is the write timestamp. So
the version of a row with the latest event time wins.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.plan import Column
from wal_sink.targets.arrow_values import FALSE, int64, null
from wal_sink.targets.cassandra.arrow_buffers import Ints, elements
from wal_sink.targets.cassandra.check import InvalidValue, cast_rows, refuse_invalid, row_text
from wal_sink.targets.cassandra.options import (
    EXPIRES_AT_COLUMN,
    TIMESTAMP_COLUMN,
    TTL,
    TTL_COLUMN,
    CassandraOptions,
)
from wal_sink.targets.cassandra.row_plan import (
    EXPIRES_US,
    KEY,
    MAX_TTL_S,
    TIMESTAMP_US,
    TTL_S,
    CassandraPlan,
    RowTtl,
)
from wal_sink.targets.cassandra.types import as_is
from wal_sink.targets.cdc import (
    are_deletes,
    except_deletes,
    mark,
    operations_of_rows,
    with_flags,
    without_values_of_deletes,
)
from wal_sink.targets.columns import (
    refuse_column_in_table,
    refuse_named_column,
    refuse_other_schema,
)
from wal_sink.targets.operations import described, without_operation
from wal_sink.units import now_us

if TYPE_CHECKING:
    from wal_sink.targets.cassandra.table import TableMetadata  # loads the driver

AHEAD_S = 3_600
"""Seconds by which an event time may be ahead of the task's clock."""
_MIN_TIMESTAMP_US = 10**15
"""2001-09-09 in microseconds since 1970. A smaller bigint is probably a number of milliseconds or seconds."""
_SECOND_US = 1_000_000


# --- start ---


def describe(options: CassandraOptions) -> Mapping[str, str]:
    """Return the texts about deletes, TTLs and event times that a start logs, by heading."""
    texts = described(options)
    if options.ttl is not None:
        texts["ttl"] = f"{options.ttl} s from when the row was published ({TTL})"
    if column := options.ttl_column:
        texts["ttl"] = f"seconds in {column}, from when the row was published ({TTL_COLUMN})"
    if column := options.expires_at_column:
        texts["ttl"] = f"until {column} ({EXPIRES_AT_COLUMN})"
    if column := options.timestamp_column:
        newest = f"of two versions of a row the one with the later {column} ({TIMESTAMP_COLUMN})"
        texts["newest"] = newest
    return texts


def written_columns(
    schema: pa.Schema, options: CassandraOptions, table_columns: Collection[str], table_text: str
) -> pa.Schema:
    """Return the columns of a DataFrame that are written to the table.

    Control columns are not written, with one exception: a column of expiry times or event times is written if
    the table has a column of its name.

    :param table_columns: the names of the table's columns.
    :param table_text: the table's name for errors.
    :raises SchemaMismatch: a control column is missing or has another type. Or the table has the column of
        operations or of TTLs.
    """
    names = options.column_names
    known = {name for name in schema.names if names.get(name, name) in table_columns}
    schema = without_operation(schema, options.operation_column, known, table_text)
    if column := options.ttl_column:
        integers = ("tinyint", "smallint", "int", "bigint")
        remedy = 'Make it whole seconds: .cast("bigint").'
        refuse_named_column(schema, TTL_COLUMN, column, integers, remedy)
        refuse_column_in_table(TTL_COLUMN, column, known, table_text, "TTLs are")
    if column := options.expires_at_column:
        remedy = 'Make it an instant: .cast("timestamp").'
        refuse_named_column(schema, EXPIRES_AT_COLUMN, column, ("timestamp",), remedy)
    if column := options.timestamp_column:
        remedy = 'Make it an instant, .cast("timestamp"), or a bigint of microseconds since 1970.'
        refuse_named_column(schema, TIMESTAMP_COLUMN, column, ("timestamp", "bigint"), remedy)
    controls = {options.ttl_column, options.expires_at_column, options.timestamp_column}
    return pa.schema([field for field in schema if field.name not in controls - known])


def clustering_order(metadata: TableMetadata, columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the DataFrame's names of the clustering columns, in the table's order."""
    in_dataframe = {column.in_table: column.name for column in columns}
    return tuple(in_dataframe[key.name] for key in metadata.key if key.role == "clustering")


def row_ttl(options: CassandraOptions) -> RowTtl | None:
    """Return the TTL of the options; None if no option sets a TTL."""
    ttl = RowTtl(
        ttl_s=options.ttl,
        ttl_column=options.ttl_column,
        expires_at_column=options.expires_at_column,
    )
    return None if ttl == RowTtl() else ttl


# --- task ---


def check(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Cast a batch of the DataFrame to the types of the log.

    :raises SchemaMismatch: the columns of the batch are not those of the plan.
    :raises InvalidRow: a row is invalid. The error names the column and the first such row.
    """
    refuse_other_schema(batch.schema, plan)
    operations = operations_of_rows(batch, plan, functools.partial(row_text, batch, plan))
    deletes = None if operations is None else are_deletes(operations)
    controls = _ttls_and_times(batch, plan, deletes)
    if operations is not None:
        controls[str(plan.operation)] = operations
    table = plan.of_table()
    rows = batch.select([column.name for column in table.columns])
    if deletes is not None:
        rows = without_deleted_values(rows, table, deletes)
    key = [column.name for column in plan.columns if column.role in KEY]
    marked = mark(rows, plan, key)
    stored = cast_rows(marked.rows, table, deletes)
    columns = dict(zip(stored.schema.names, stored.columns, strict=True)) | controls
    names = [column.name for column in plan.columns if column.name in columns]
    names += [name for name in columns if name not in names]
    in_order = pa.RecordBatch.from_arrays([columns[name] for name in names], names=names)
    return with_flags(in_order, marked.flags)


def _ttls_and_times(
    batch: pa.RecordBatch, plan: CassandraPlan, deletes: pa.Array | None
) -> dict[str, pa.Array]:
    """Return the log's columns for TTLs and event times, by name."""
    columns: dict[str, pa.Array] = {}
    ttl = plan.details.ttl or RowTtl()
    if name := ttl.ttl_column:
        seconds = _whole_numbers(batch, name)
        columns[TTL_S] = _null_for_deletes(seconds, deletes)
        _refuse(batch, plan, TTL_COLUMN, name, _bad_seconds(name, seconds, deletes))
    if name := ttl.expires_at_column:
        expiry = _whole_numbers(batch, name)
        columns[EXPIRES_US] = _null_for_deletes(expiry, deletes)
        _refuse(batch, plan, EXPIRES_AT_COLUMN, name, _bad_expiry(name, expiry, deletes))
    if name := plan.details.timestamp_column:
        times = columns[TIMESTAMP_US] = _whole_numbers(batch, name)
        is_number = pa.types.is_integer(as_is(batch.column(name)).type)
        reasons = _bad_event_times(name, times, is_number=is_number)
        _refuse(batch, plan, TIMESTAMP_COLUMN, name, reasons)
    return columns


def without_deleted_values(
    rows: pa.RecordBatch, table: CassandraPlan, deletes: pa.Array
) -> pa.RecordBatch:
    """Replace the values of deletes by nulls, except in columns of the key.

    :param table: the plan with the columns of `rows`.
    :raises InvalidRow: a clustering column is null, and the next one has a value. CQL has no such delete.
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
    return as_is(batch.column(name)).cast(pa.int64())


def _null_for_deletes(values: pa.Array, deletes: pa.Array | None) -> pa.Array:
    return values if deletes is None else pc.if_else(deletes, null(pa.int64()), values)


def _upserts_only(flags: pa.Array, deletes: pa.Array | None = None) -> pa.Array:
    return except_deletes(pc.fill_null(flags, FALSE), deletes)


class Reason(NamedTuple):
    """A reason to refuse values of a control column."""

    bad: pa.Array
    """Flags of the values to refuse, without nulls."""
    problem: str
    """The text of the error, as that of a `types.Constraint`."""
    remedy: str
    """The remedy of the error, a sentence."""


def _refuse(
    batch: pa.RecordBatch, plan: CassandraPlan, option: str, name: str, reasons: Iterable[Reason]
) -> None:
    values = as_is(batch.column(name))
    for bad, problem, remedy in reasons:
        text = f"{problem} ({option})"
        refuse_invalid(batch, plan, InvalidValue.first(bad, name, values, text, remedy))


def _bad_seconds(name: str, seconds: pa.Array, deletes: pa.Array | None) -> list[Reason]:
    return [
        Reason(
            except_deletes(seconds.is_null(), deletes),
            "is null, and not a TTL in seconds",
            "Fill it in, .na.fill(…), or write rows that never expire by a query of their own.",
        ),
        Reason(
            _upserts_only(pc.less(seconds, int64(1)), deletes),
            "is not a TTL of one second or more",
            "Drop such rows; or delete, by operationColumn, the rows that are to go.",
        ),
        Reason(
            _upserts_only(pc.greater(seconds, int64(MAX_TTL_S)), deletes),
            f"is more than the {MAX_TTL_S} seconds that the server accepts",
            f'Take the smaller of the two: least("{name}", lit({MAX_TTL_S})).',
        ),
    ]


def _bad_expiry(name: str, expiry: pa.Array, deletes: pa.Array | None) -> list[Reason]:
    last_us = now_us() + MAX_TTL_S * _SECOND_US
    return [
        Reason(
            except_deletes(expiry.is_null(), deletes),
            "is null, and not a time of expiry",
            "Fill it in, or write rows that never expire by a query of their own.",
        ),
        Reason(
            _upserts_only(pc.greater(expiry, int64(last_us)), deletes),
            f"is more than {MAX_TTL_S} seconds from now, the longest TTL that the server accepts",
            f'Take an earlier time: least("{name}", timestamp_seconds(lit({last_us // _SECOND_US}))).',
        ),
    ]


def _bad_event_times(name: str, times: pa.Array, *, is_number: bool) -> list[Reason]:
    ahead_us = now_us() + AHEAD_S * _SECOND_US
    early = "is before 2001 as microseconds" if is_number else "is not after 1970"
    return [
        Reason(
            times.is_null(),
            "is null, and not the time of an event",
            f'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.',
        ),
        Reason(
            _upserts_only(pc.less(times, int64(_MIN_TIMESTAMP_US if is_number else 1))),
            early,
            f'Milliseconds become an instant by timestamp_millis("{name}"), seconds by timestamp_seconds.',
        ),
        Reason(
            _upserts_only(pc.greater(times, int64(ahead_us))),
            f"is more than {AHEAD_S} seconds ahead of the clock, and would hide what comes until then",
            f'Correct its clock or time zone; or bound it: least("{name}", current_timestamp()).',
        ),
    ]


# --- flush ---


class TimestampedRows(NamedTuple):
    """Rows of the log with their write timestamps."""

    batch: pa.RecordBatch
    timestamps_us: Ints
    """Microseconds since 1970, one for each row."""


def with_event_times(rows: TimestampedRows, plan: CassandraPlan) -> TimestampedRows:
    """Replace the write timestamps by event times, if the plan has a column of event times."""
    if not plan.details.timestamp_column:
        return rows
    return rows._replace(timestamps_us=elements(rows.batch.column(TIMESTAMP_US), "i8"))


def remaining_ttls(
    rows: TimestampedRows, ttl: RowTtl | None, now_s: int, default_ttl_s: int = 0
) -> Ints | None:
    """Return the seconds until each row expires, 0 or less for an expired row; None if rows never expire.

    :param rows: the rows, with the timestamps at which they were published, not with event times.
    :param now_s: the present time, in seconds since 1970.
    :param default_ttl_s: the table's default TTL in seconds; 0 for none.
    """
    if ttl is None and not default_ttl_s:
        return None
    ttl = ttl or RowTtl()
    if ttl.expires_at_column:
        expiry_s = -(-elements(rows.batch.column(EXPIRES_US), "i8") // _SECOND_US)
        longest_ttl_s: Ints | int = MAX_TTL_S
    else:
        longest_ttl_s = ttl.ttl_s or default_ttl_s
        if ttl.ttl_column:
            longest_ttl_s = elements(rows.batch.column(TTL_S), "i8")
        expiry_s = rows.timestamps_us // _SECOND_US + longest_ttl_s
    # If a timestamp is ahead of the clock, the TTL must not become longer.
    remaining_s: Ints = np.minimum(expiry_s - now_s, longest_ttl_s)
    return remaining_s
