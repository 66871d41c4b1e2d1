"""Event time: a column decides between versions of a row, as their write timestamp.

Of two rows of one key and one event time Cassandra would keep the larger value of each cell. The tasks settle
the rows of a batch before they go into the log, so every flusher finds the same rows there: the later
position wins, cell by cell.

No cell moves to another row, since a row has a life of its own. A row loses the cells that a later one of its
time has, and is left out where nothing remains of it. So no two rows write one cell at one time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.clock import now_us
from wal_sink.targets.arrow_values import are_deletes, int64, null
from wal_sink.targets.cassandra.casts import Array, as_is, booleans, elements, flags, indices
from wal_sink.targets.cassandra.encode import distinct_keys, fixed
from wal_sink.targets.cassandra.feature import Agreement, Feature, Ints, Stamped, TaskRows, are_bad
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import EVENT_COLUMN
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan, CassandraRowPlan
from wal_sink.targets.cassandra.rules import Reason
from wal_sink.targets.operations import refuse_type

EVENT_US = "wal_sink:timestamp_us"
"""The log's column of a row's write timestamp, microseconds since 1970. What a table has of an event time is
rounded to milliseconds."""

AHEAD_S = 3_600
"""How far an event time may lie ahead of the task's clock, in seconds."""
_LEAST_US = 10**15
"""2001-09-09: a bigint below that counts milliseconds or seconds."""

_PARTITION = ("partition",)


class EventTime(Feature):
    """`cassandra.timestampColumn`."""

    noted = "event_column"

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say which version of a row stays."""
        if not options.event_column:
            return {}
        return {
            "newest": f"of two versions of a row the one with the later {options.event_column}"
            f" ({EVENT_COLUMN})"
        }

    def written(
        self, schema: pa.Schema, options: CassandraOptions, known: set[str], place: str
    ) -> pa.Schema:
        """Leave out the column unless the table has it."""
        column = options.event_column
        if not column:
            return schema
        remedy = 'Make it an instant, .cast("timestamp"), or a bigint of microseconds since 1970.'
        refuse_type(schema, EVENT_COLUMN, column, ("timestamp", "bigint"), remedy)
        return schema if column in known else schema.remove(schema.names.index(column))

    def agree(self, details: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Note the column."""
        return msgspec.structs.replace(details, event_column=agreed.options.event_column)

    def read(self, rows: TaskRows) -> None:
        """Read the column, as microseconds."""
        name = rows.plan.details.event_column
        values = rows.controls[EVENT_US] = rows.whole_numbers(name)
        is_number = pa.types.is_integer(as_is(rows.given.column(name)).type)
        rows.refuse(EVENT_COLUMN, name, _of_events(values, now_us(), is_number=is_number))

    def resolve_ties(self, batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
        """Leave each cell of a key and a time once."""
        return without_ties(batch, plan)

    def dated(self, rows: Stamped) -> Stamped:
        """Take the timestamps that the rows bring along."""
        return rows._replace(stamps=event_times(rows.batch))


def event_times(batch: pa.RecordBatch) -> Ints:
    """Return the write timestamps that the rows of the log bring along."""
    found: Ints = elements(batch.column(EVENT_US), "i8")
    return found


def _of_events(values: pa.Array, now_us: int, *, is_number: bool) -> list[Reason]:
    ahead_us = now_us + AHEAD_S * 1_000_000
    early = "is before 2001 as microseconds" if is_number else "is not after 1970"
    return [
        (
            values.is_null(),
            "is null, and not the time of an event",
            'Drop such rows, .na.drop(subset=["{name}"]), or fill them in.',
        ),
        (
            are_bad(pc.less(values, int64(_LEAST_US if is_number else 1))),
            early,
            'Milliseconds become an instant by timestamp_millis("{name}"), seconds by timestamp_seconds.',
        ),
        (
            are_bad(pc.greater(values, int64(ahead_us))),
            f"is more than {AHEAD_S} seconds ahead of the clock, and would hide what comes until then",
            'Correct its clock or time zone; or bound it: least("{name}", current_timestamp()).',
        ),
    ]


def without_ties(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Return the batch with each cell once, and at most one delete, of each key and time.

    A null that leaves a cell as it is, is no cell. A delete that an upsert of its key follows moves a
    microsecond back: of two equal times a tombstone wins. A delete of a range is left as it is.

    A static column is a cell of the partition. Where nulls are written, each row of the partition brings it
    along, so all of one time get the last one's value.

    :param batch: as the log has it.
    :param plan: with its operation column, if it has one.
    """
    stamps = event_times(batch)
    in_order = np.sort(stamps)
    if not (in_order[1:] == in_order[:-1]).any():
        return batch
    table, time = plan.of_table(), fixed(stamps, ">i8")

    def numbers(roles: Collection[str]) -> Array:
        """Return a number for each row, the same for rows of one time that are alike in some columns."""
        return distinct_keys(batch, table, time, roles=roles).numbers

    rows, groups = np.arange(batch.num_rows), {"regular": numbers(KEY)}
    values = [column for column in table.columns if column.role not in KEY]
    if any(column.role == "static" for column in values):
        groups["static"] = numbers(_PARTITION)
    if all(group.max() + 1 == len(rows) for group in groups.values()):
        return batch
    upserts = _upserts(batch, plan)
    last_delete, last_upsert = (_last(groups["regular"], which) for which in (~upserts, upserts))
    hidden = upserts & (rows < last_delete)
    moved = ~upserts & (rows < last_upsert)
    stays = (rows == last_delete) | ((rows == last_upsert) & ~hidden)
    unset = plan.details.nulls == "unset"
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns[EVENT_US] = indices(stamps - moved)
    for column in values:
        given, static = columns[column.name], column.role == "static"
        written = upserts if static else upserts & ~hidden
        if unset:
            written = written & booleans(given.is_valid())
        last = _last(groups[column.role], written)
        stays |= rows == last
        if unset:
            columns[column.name] = given.take(_positions(np.where(rows == last, rows, -1)))
        elif static:
            columns[column.name] = given.take(_positions(np.where(upserts, last, rows)))
    found = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return found.filter(flags(stays))


def _upserts(batch: pa.RecordBatch, plan: CassandraPlan) -> Array:
    if plan.operation is None:
        return np.ones(batch.num_rows, np.bool_)
    upserts: Array = ~booleans(are_deletes(batch.column(plan.operation)))
    return upserts


def _last(group: Array, which: Array) -> Array:
    """Return for each row the position of the last row of its group among some; -1 for none.

    :param which: booleans, which rows these are.
    """
    found = np.full(group.max() + 1, -1)
    positions = np.flatnonzero(which)
    found[group[positions]] = positions  # of several, numpy keeps the last
    last: Array = found[group]
    return last


def _positions(of: Array) -> pa.Array:
    """Return positions as `take` has them, null for -1."""
    positions = indices(of)
    if (of >= 0).all():
        return positions
    return pc.if_else(flags(of >= 0), positions, null(pa.int64()))
