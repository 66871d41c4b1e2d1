"""What becomes of a row: an upsert or a delete, its TTL, and its write timestamp.

Each is an option, a column of the DataFrame that is not written, a column of the log beside those of the
table, and a part of the statement. The functions stand in the order of a row's way: start, task, flush.

**TTL.** A row is written late after an outage, and again after a crash. A TTL that began at each of these
writes would grow by that. So the second at which a row expires is fixed, and what is sent is the rest.

**Event time.** A column decides between versions of a row, as their write timestamp. Of two rows of one key
and one event time Cassandra keeps the larger value of each cell, as for every client.
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.clock import now_us
from wal_sink.model.plan import Column
from wal_sink.targets.arrow_scalars import FALSE, int64, null
from wal_sink.targets.cassandra.arrow_buffers import elements
from wal_sink.targets.cassandra.casts import as_is
from wal_sink.targets.cassandra.options import (
    EXPIRES_AT_COLUMN,
    TIMESTAMP_COLUMN,
    TTL,
    TTL_COLUMN,
    CassandraOptions,
)
from wal_sink.targets.cassandra.row_plan import KEY, MAX_TTL_S, CassandraPlan, RowTtl
from wal_sink.targets.cassandra.rules import (
    InvalidValue,
    Reason,
    refuse_invalid,
    row_text,
)
from wal_sink.targets.cassandra.table import TableMetadata
from wal_sink.targets.deletes import are_deletes, keys_of_deletes, not_deleted, planned_operations
from wal_sink.targets.operations import (
    described,
    refuse_type,
    refuse_written,
    without_operation,
)

log = logging.getLogger(__name__)

Ints = npt.NDArray[np.int64]

TTL_S = "wal_sink:ttl_s"
"""The log's column of a row's TTL in seconds, counted from its write timestamp; null for a delete."""
EXPIRES_US = "wal_sink:expires_us"
"""The log's column of when a row expires, microseconds since 1970; null for a delete."""
TIMESTAMP_US = "wal_sink:timestamp_us"
"""The log's column of a row's write timestamp, microseconds since 1970. What a table has of an event time is
rounded to milliseconds."""

AHEAD_S = 3_600
"""How far an event time may be ahead of the task's clock, in seconds."""
HINT_WINDOW_S = 3 * 3600
"""How long other nodes keep the writes that a replica misses while it is down (`max_hint_window`)."""
_MIN_TIMESTAMP_US = 10**15
"""2001-09-09: a bigint below that counts milliseconds or seconds."""
_SECOND_US = 1_000_000


# --- when a query starts ---


def describe(options: CassandraOptions) -> Mapping[str, str]:
    """Return what is logged of these options: texts by heading."""
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
    schema: pa.Schema, options: CassandraOptions, table: Collection[str], place: str
) -> pa.Schema:
    """Return the columns of a DataFrame without those that only say what becomes of a row.

    A time of expiry and an event time are written where the table has their column.

    :param table: the names of the table's columns.
    :param place: the table, as errors show it.
    :raises SchemaMismatch: such a column is missing, or has another type, or the table has it, too.
    """
    names = options.column_names
    known = {name for name in schema.names if names.get(name, name) in table}
    schema = without_operation(schema, options.operation_column, known, place)
    if column := options.ttl_column:
        integers = ("tinyint", "smallint", "int", "bigint")
        remedy = 'Make it whole seconds: .cast("bigint").'
        refuse_type(schema, TTL_COLUMN, column, integers, remedy)
        refuse_written(TTL_COLUMN, column, known, place, "TTLs are")
    if column := options.expires_at_column:
        remedy = 'Make it an instant: .cast("timestamp").'
        refuse_type(schema, EXPIRES_AT_COLUMN, column, ("timestamp",), remedy)
    if column := options.timestamp_column:
        remedy = 'Make it an instant, .cast("timestamp"), or a bigint of microseconds since 1970.'
        refuse_type(schema, TIMESTAMP_COLUMN, column, ("timestamp", "bigint"), remedy)
    controls = {options.ttl_column, options.expires_at_column, options.timestamp_column}
    return pa.schema([field for field in schema if field.name not in controls - known])


def clustering_order(live: TableMetadata, columns: Iterable[Column]) -> tuple[str, ...]:
    """Return the clustering columns in the table's order: by a prefix of them a delete takes a range of rows.

    :param columns: those of the plan; their names are the DataFrame's.
    """
    if live.gc_grace_s < HINT_WINDOW_S:
        log.warning(
            "%s has gc_grace_seconds = %d. A replica that misses a delete and is not repaired"
            " within that time brings the row back. The default is 864000, ten days",
            live.name,
            live.gc_grace_s,
        )
    in_dataframe = {column.in_table: column.name for column in columns}
    return tuple(in_dataframe[key.name] for key in live.key if key.role == "clustering")


def agreed_ttl(options: CassandraOptions, live: TableMetadata) -> RowTtl | None:
    """Return the TTL of rows; None where only the table may have one."""
    ttl = RowTtl(
        ttl_s=options.ttl,
        ttl_column=options.ttl_column,
        expires_at_column=options.expires_at_column,
    )
    if ttl != RowTtl():
        return ttl
    if live.default_ttl:
        log.info(
            "%s has default_time_to_live = %d. A row expires that many seconds after it was published",
            live.name,
            live.default_ttl,
        )
    return None


# --- in the tasks ---


class Controls(NamedTuple):
    """What becomes of the rows of a batch, by the columns that are not written."""

    deletes: pa.Array | None
    """Which rows are deletes; None: no row is one."""
    columns: dict[str, pa.Array]
    """The columns that the log has of this, by name."""


def read_controls(batch: pa.RecordBatch, plan: CassandraPlan) -> Controls:
    """Read the columns of a DataFrame's batch that say what becomes of a row; a delete has no TTL.

    :raises InvalidRow: one of them is invalid.
    """
    columns: dict[str, pa.Array] = {}
    deletes = None
    operations = planned_operations(batch, plan, functools.partial(row_text, batch, plan))
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
    """Return the rows with nothing but the key of each delete.

    :param table: the plan of the rows' columns.
    :raises InvalidRow: a delete has a null before a clustering column that has a value: that is not a range.
    """
    keys = {column.name for column in table.columns if column.role in KEY}
    rows = keys_of_deletes(rows, deletes, keys)
    clustering = table.details.clustering
    for name, following in itertools.pairwise(clustering):
        gaps = pc.and_(rows.column(name).is_null(), rows.column(following).is_valid())
        problem = (
            f"is null and {following} after it is not: a delete takes the rows under the first values of"
            f" ({', '.join(clustering)})"
        )
        remedy = (
            f"Fill {name} in; or make {following} null, too, to delete all rows under what is before"
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
    """Return which rows are flagged and no deletes; nulls are not."""
    return not_deleted(pc.fill_null(flags, FALSE), deletes)


def _refuse(
    batch: pa.RecordBatch, plan: CassandraPlan, option: str, name: str, reasons: Iterable[Reason]
) -> None:
    """Refuse values of a column that an option names.

    :param reasons: `{name}` stands for the column in what to do.
    """
    values = as_is(batch.column(name))
    for bad, problem, remedy in reasons:
        what, named = f"{problem} ({option})", remedy.replace("{name}", name)
        refuse_invalid(batch, plan, InvalidValue.first(bad, name, values, what, named))


def _bad_seconds(seconds: pa.Array, deletes: pa.Array | None) -> list[Reason]:
    return [
        (
            not_deleted(seconds.is_null(), deletes),
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
            f"is more than the {MAX_TTL_S} seconds that the server takes",
            f'Take the smaller of the two: least("{{name}}", lit({MAX_TTL_S})).',
        ),
    ]


def _bad_expiry(expiry: pa.Array, deletes: pa.Array | None, now_us: int) -> list[Reason]:
    last_us = now_us + MAX_TTL_S * _SECOND_US
    return [
        (
            not_deleted(expiry.is_null(), deletes),
            "is null, and not a time of expiry",
            "Fill it in, or write rows that never expire by a query of their own.",
        ),
        (
            _upserts_with(pc.greater(expiry, int64(last_us)), deletes),
            f"is more than {MAX_TTL_S} seconds from now, the longest TTL that the server takes",
            f'Take an earlier one: least("{{name}}", timestamp_seconds(lit({last_us // _SECOND_US}))).',
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


# --- in the flush ---


class TimestampedRows(NamedTuple):
    """Rows with their write timestamps."""

    batch: pa.RecordBatch
    timestamps_us: Ints
    """Microseconds since 1970, one for each row."""


def with_event_times(rows: TimestampedRows, plan: CassandraPlan) -> TimestampedRows:
    """Return rows of the log with the write timestamps that they are to have."""
    if not plan.details.timestamp_column:
        return rows
    return rows._replace(timestamps_us=elements(rows.batch.column(TIMESTAMP_US), "i8"))


def remaining_ttls(
    rows: TimestampedRows, ttl: RowTtl | None, now_s: int, default_ttl_s: int = 0
) -> Ints | None:
    """Return the seconds that each row still has, 0 or less where it has expired; None: none ever expires.

    As Cassandra does, the second of expiry is that of writing plus the TTL, here that of the row's timestamp
    in the ledger, whatever event time it has. So a row expires in the same second each time it is written.

    :param rows: as the log has them.
    :param now_s: the second from which TTLs are counted, since 1970.
    :param default_ttl_s: of the table, for rows of which no option says anything; 0: they never expire.
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
    # Where timestamps lie ahead of the clock, a TTL is not longer for that.
    remaining_s: Ints = np.minimum(expiry_s - now_s, longest_s)
    return remaining_s
