"""Checks rows of the DataFrame in a task, and converts its control columns to columns of the log.

Options such as `cassandra.ttlColumn` name a control column. A start checks the types of the control columns
(`plan`), and a flusher computes TTLs and write timestamps from the log (`statements`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_values import FALSE, int64, null
from wal_sink.targets.cassandra.check import InvalidValue, cast_rows, refuse_invalid, row_text
from wal_sink.targets.cassandra.options import EXPIRES_AT_COLUMN, TIMESTAMP_COLUMN, TTL_COLUMN
from wal_sink.targets.cassandra.row_plan import (
    EXPIRES_US,
    KEY,
    MAX_TTL_S,
    TIMESTAMP_US,
    TTL_S,
    CassandraPlan,
)
from wal_sink.targets.cdc import (
    are_deletes,
    except_deletes,
    mark,
    operations_of_rows,
    with_flags,
    without_values_of_deletes,
)
from wal_sink.targets.columns import refuse_other_schema
from wal_sink.units import now_us

AHEAD_S = 3_600
"""Seconds by which an event time may be ahead of the task's clock."""
_MIN_TIMESTAMP_US = 10**15
"""2001-09-09 in microseconds since 1970. A smaller bigint is probably a number of milliseconds or seconds."""
_SECOND_US = 1_000_000


def check(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Cast a batch of the DataFrame to the types of the log.

    :raises SchemaMismatch: the batch does not have the columns of the plan.
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
    details = plan.details
    if name := details.ttl_column:
        seconds = _whole_numbers(batch, name)
        columns[TTL_S] = _null_for_deletes(seconds, deletes)
        _refuse(batch, plan, TTL_COLUMN, name, _bad_seconds(name, seconds, deletes))
    if name := details.expires_at_column:
        expiry = _whole_numbers(batch, name)
        columns[EXPIRES_US] = _null_for_deletes(expiry, deletes)
        _refuse(batch, plan, EXPIRES_AT_COLUMN, name, _bad_expiry(name, expiry, deletes))
    if name := details.timestamp_column:
        times = columns[TIMESTAMP_US] = _whole_numbers(batch, name)
        is_number = pa.types.is_integer(batch.column(name).type)
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
    return batch.column(name).cast(pa.int64())


def _null_for_deletes(values: pa.Array, deletes: pa.Array | None) -> pa.Array:
    return values if deletes is None else pc.if_else(deletes, null(pa.int64()), values)


def _upserts_only(flags: pa.Array, deletes: pa.Array | None = None) -> pa.Array:
    return except_deletes(pc.fill_null(flags, FALSE), deletes)


class Reason(NamedTuple):
    """A reason to refuse values of a control column."""

    bad: pa.Array
    """A boolean for each value, never null: True for a value to refuse."""
    problem: str
    """The text of the error, as that of a `types.Constraint`."""
    remedy: str
    """The remedy of the error, a sentence."""


def _refuse(
    batch: pa.RecordBatch, plan: CassandraPlan, option: str, name: str, reasons: Iterable[Reason]
) -> None:
    values = batch.column(name)
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
