"""Decides whether a row is an upsert or a delete, and computes its TTL and its write timestamp.

An option names a control column of the DataFrame. A task reads the control columns into columns of the log.
A flusher makes parts of the statement from them. The functions are in this order: start, task, flush.

**TTL.** After an outage a row is written late, and after a crash it is written again. If its TTL counted from
the time of writing, the row would expire later each time. So the second in which a row expires is fixed when
the row is published, and an upsert has the remaining TTL.

**Event time.** A control column has the write timestamp of each row, and so decides between versions of a
row. Of two rows with the same key and event time Cassandra keeps the larger value of each cell.
"""

from __future__ import annotations

import functools
import itertools
import logging
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
    in_order,
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
from wal_sink.targets.columns import refuse_other_schema
from wal_sink.targets.operations import described, refuse_type, refuse_written, without_operation
from wal_sink.units import now_us

if TYPE_CHECKING:
    from wal_sink.targets.cassandra.table import TableMetadata  # loads the driver

log = logging.getLogger(__name__)

AHEAD_S = 3_600
"""Seconds by which an event time may be ahead of the task's clock."""
_MIN_TIMESTAMP_US = 10**15
"""2001-09-09 in microseconds since 1970. A smaller bigint probably counts milliseconds or seconds."""
_SECOND_US = 1_000_000
HINT_WINDOW_S = 3 * 3600
"""Seconds for which other nodes keep writes for a replica that is down (`max_hint_window`)."""

Reason = tuple[pa.Array, str, str]
"""The flags of refused values, the problem after the words "Column c of t (value)", and the remedy. In the
remedy `{name}` stands for the column."""


# --- start ---


def describe(options: CassandraOptions) -> Mapping[str, str]:
    """Return the texts that the start logs about deletes, TTLs and event times, by heading."""
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
    schema: pa.Schema, options: CassandraOptions, table: Collection[str], table_text: str
) -> pa.Schema:
    """Return the columns of a DataFrame that are written to the table.

    A column of expiry times or event times is written if the table has a column of its name. Other control
    columns are not written.

    :param table: the names of the table's columns.
    :param table_text: the table as errors show it.
    :raises SchemaMismatch: a control column is missing, has another type, or is a column of the table.
    """
    names = options.column_names
    known = {name for name in schema.names if names.get(name, name) in table}
    schema = without_operation(schema, options.operation_column, known, table_text)
    if column := options.ttl_column:
        integers = ("tinyint", "smallint", "int", "bigint")
        remedy = 'Make it whole seconds: .cast("bigint").'
        refuse_type(schema, TTL_COLUMN, column, integers, remedy)
        refuse_written(TTL_COLUMN, column, known, table_text, "TTLs are")
    if column := options.expires_at_column:
        remedy = 'Make it an instant: .cast("timestamp").'
        refuse_type(schema, EXPIRES_AT_COLUMN, column, ("timestamp",), remedy)
    if column := options.timestamp_column:
        remedy = 'Make it an instant, .cast("timestamp"), or a bigint of microseconds since 1970.'
        refuse_type(schema, TIMESTAMP_COLUMN, column, ("timestamp", "bigint"), remedy)
    controls = {options.ttl_column, options.expires_at_column, options.timestamp_column}
    return pa.schema([field for field in schema if field.name not in controls - known])


def clustering_order(metadata: TableMetadata, columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the DataFrame's names of the clustering columns, in the table's order.

    Warn if a short `gc_grace_seconds` lets deleted rows come back.
    """
    if metadata.gc_grace_s < HINT_WINDOW_S:
        log.warning(
            "%s has gc_grace_seconds = %d. If a replica misses a delete and is not repaired"
            " within that time, the deleted row comes back. The default is 864000, ten days",
            metadata.name,
            metadata.gc_grace_s,
        )
    in_dataframe = {column.in_table: column.name for column in columns}
    return tuple(in_dataframe[key.name] for key in metadata.key if key.role == "clustering")


def row_ttl(options: CassandraOptions, metadata: TableMetadata) -> RowTtl | None:
    """Return the TTL that the options set; None if they set none. Log the default TTL of the table."""
    ttl = RowTtl(
        ttl_s=options.ttl,
        ttl_column=options.ttl_column,
        expires_at_column=options.expires_at_column,
    )
    if ttl != RowTtl():
        return ttl
    if metadata.default_ttl:
        log.info(
            "%s has default_time_to_live = %d. A row expires that many seconds after it was published",
            metadata.name,
            metadata.default_ttl,
        )
    return None


# --- task ---


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
    stored = cast_rows(marked.rows, table, controls.deletes)
    columns = dict(zip(stored.schema.names, stored.columns, strict=True)) | controls.columns
    return with_flags(in_order(columns, plan), marked.flags)


class Controls(NamedTuple):
    """The control columns of a batch."""

    deletes: pa.Array | None
    """Flags of the rows that are deletes; None if all rows are upserts."""
    columns: dict[str, pa.Array]
    """The log's columns for deletes, TTLs and event times, by name."""


def read_controls(batch: pa.RecordBatch, plan: CassandraPlan) -> Controls:
    """Read the control columns of a batch.

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
    """Replace the values of deletes by nulls, except in columns of the key.

    :param table: the plan with the columns of `rows`.
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
    return as_is(batch.column(name)).cast(pa.int64())


def _null_for_deletes(values: pa.Array, deletes: pa.Array | None) -> pa.Array:
    return values if deletes is None else pc.if_else(deletes, null(pa.int64()), values)


def _upserts_with(flags: pa.Array, deletes: pa.Array | None = None) -> pa.Array:
    """Return the flags, with False for nulls and deletes."""
    return except_deletes(pc.fill_null(flags, FALSE), deletes)


def _refuse(
    batch: pa.RecordBatch, plan: CassandraPlan, option: str, name: str, reasons: Iterable[Reason]
) -> None:
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


# --- flush ---


class TimestampedRows(NamedTuple):
    """Rows of the log with their write timestamps."""

    batch: pa.RecordBatch
    timestamps_us: Ints
    """Microseconds since 1970, one for each row."""


def with_event_times(rows: TimestampedRows, plan: CassandraPlan) -> TimestampedRows:
    """Use event times as write timestamps, if the plan has event times."""
    if not plan.details.timestamp_column:
        return rows
    return rows._replace(timestamps_us=elements(rows.batch.column(TIMESTAMP_US), "i8"))


def remaining_ttls(
    rows: TimestampedRows, ttl: RowTtl | None, now_s: int, default_ttl_s: int = 0
) -> Ints | None:
    """Return the seconds until each row expires, 0 or less for an expired row; None if rows never expire.

    The TTL of a row counts from the row's timestamp in the ledger, and not from its event time. So the row
    expires in the same second each time it is written.

    :param now_s: the present time, seconds since 1970.
    :param default_ttl_s: the table's default TTL in seconds, if no option sets a TTL; 0 for none.
    """
    if ttl is None and not default_ttl_s:
        return None
    ttl = ttl or RowTtl()
    if ttl.expires_at_column:
        expiry_s = -(-elements(rows.batch.column(EXPIRES_US), "i8") // _SECOND_US)
        longest_s: Ints | int = MAX_TTL_S
    else:
        longest_s = ttl.ttl_s or default_ttl_s
        if ttl.ttl_column:
            longest_s = elements(rows.batch.column(TTL_S), "i8")
        expiry_s = rows.timestamps_us // _SECOND_US + longest_s
    # A timestamp ahead of the clock must not lengthen a TTL.
    remaining_s: Ints = np.minimum(expiry_s - now_s, longest_s)
    return remaining_s
