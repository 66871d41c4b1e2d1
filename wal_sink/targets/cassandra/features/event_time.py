"""Event time: a column decides between versions of a row, as their write timestamp.

Of two rows of one key and one event time Cassandra keeps the larger value of each cell, as for every client.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.clock import now_us
from wal_sink.targets.arrow_values import int64
from wal_sink.targets.cassandra.arrow_buffers import elements
from wal_sink.targets.cassandra.casts import as_is
from wal_sink.targets.cassandra.feature import Agreement, Feature, Ints, Stamped, TaskRows, are_bad
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import EVENT_COLUMN
from wal_sink.targets.cassandra.row_plan import CassandraRowPlan
from wal_sink.targets.cassandra.rules import Reason
from wal_sink.targets.operations import refuse_type

EVENT_US = "wal_sink:timestamp_us"
"""The log's column of a row's write timestamp, microseconds since 1970. What a table has of an event time is
rounded to milliseconds."""

AHEAD_S = 3_600
"""How far an event time may lie ahead of the task's clock, in seconds."""
_LEAST_US = 10**15
"""2001-09-09: a bigint below that counts milliseconds or seconds."""


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
