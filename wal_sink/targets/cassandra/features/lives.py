"""How long rows live: for seconds that options, a column or the table say, or until a time of expiry.

A row is written late after an outage, and again after a crash. A life that began anew each time would grow by
that; so what is fixed is the second at which it ends, and what is sent is the rest of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.clock import now_us
from wal_sink.errors import OptionError
from wal_sink.targets.arrow_values import int64, not_deleted, null
from wal_sink.targets.cassandra.arrow_buffers import elements
from wal_sink.targets.cassandra.feature import Agreement, Feature, Ints, Stamped, TaskRows, are_bad
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.cassandra.row_options import EXPIRES_COLUMN, TTL, TTL_COLUMN
from wal_sink.targets.cassandra.row_plan import MOST_TTL_S, CassandraPlan, CassandraRowPlan, Lives
from wal_sink.targets.cassandra.rules import Reason
from wal_sink.targets.operations import refuse_type, refuse_written

log = logging.getLogger(__name__)

LIFE_S = "wal_sink:ttl_s"
"""The log's column of seconds that a row lives; null for a delete."""
EXPIRES_US = "wal_sink:expires_us"
"""The log's column of when a row expires, microseconds since 1970; null for a delete."""

_SECOND_US = 1_000_000


class RowLives(Feature):
    """`cassandra.ttl`, `cassandra.ttlColumn` and `cassandra.expiresAtColumn`."""

    noted = "lives"

    def describe(self, options: CassandraOptions) -> Mapping[str, str]:
        """Say what ends a row's life."""
        if options.ttl is not None:
            return {"life": f"{options.ttl} s from when the row was published ({TTL})"}
        if column := options.ttl_column:
            return {"life": f"seconds in {column}, from when the row was published ({TTL_COLUMN})"}
        if column := options.expires_column:
            return {"life": f"until {column} ({EXPIRES_COLUMN})"}
        return {}

    def written(
        self, schema: pa.Schema, options: CassandraOptions, known: set[str], place: str
    ) -> pa.Schema:
        """Leave out the column of seconds, and that of expiry unless the table has it."""
        if column := options.ttl_column:
            refuse_type(
                schema,
                TTL_COLUMN,
                column,
                ("tinyint", "smallint", "int", "bigint"),
                'Make it whole seconds: .cast("bigint").',
            )
            refuse_written(TTL_COLUMN, column, known, place, "seconds to live are")
        if column := options.expires_column:
            remedy = 'Make it an instant: .cast("timestamp").'
            refuse_type(schema, EXPIRES_COLUMN, column, ("timestamp",), remedy)
        lacking = {options.ttl_column, options.expires_column} - known
        return pa.schema([field for field in schema if field.name not in lacking])

    def agree(self, details: CassandraRowPlan, agreed: Agreement) -> CassandraRowPlan:
        """Note what the server takes.

        :raises OptionError: a life as long as the option says ends after that.
        """
        given, live = agreed.options, agreed.live
        lives = Lives(
            ttl_s=given.ttl, ttl_column=given.ttl_column, expires_column=given.expires_column
        )
        if lives == Lives():
            if live.default_ttl:
                log.info(
                    "%s has default_time_to_live = %d. A row expires that many seconds after it was"
                    " published",
                    live.name,
                    live.default_ttl,
                )
            return details
        latest_s = latest_expiry_s(agreed.server.compatibility)
        return msgspec.structs.replace(details, lives=for_server(lives, latest_s, int(time.time())))

    def read(self, rows: TaskRows) -> None:
        """Read the column, as whole numbers; a delete has no life."""
        lives, deletes = rows.plan.details.lives, rows.deletes
        assert lives is not None
        if name := lives.ttl_column:
            values = rows.whole_numbers(name)
            rows.controls[LIFE_S] = _alive(values, deletes)
            rows.refuse(TTL_COLUMN, name, _of_seconds(values, deletes, lives))
        if name := lives.expires_column:
            values = rows.whole_numbers(name)
            rows.controls[EXPIRES_US] = _alive(values, deletes)
            rows.refuse(EXPIRES_COLUMN, name, _of_expiry(values, deletes, lives, now_us()))

    def seconds_left(
        self, rows: Stamped, plan: CassandraPlan, now_s: Callable[[], int], default_ttl_s: int
    ) -> Ints | None:
        """Count to the end of each row's life."""
        lives = plan.details.lives
        if lives is None and not default_ttl_s:
            return None
        return seconds_left(rows.batch, rows.stamps, lives or Lives(), now_s(), default_ttl_s)


def latest_expiry_s(compatibility: str | None) -> int:
    """Return the last second at which a life may end, since 1970, a minute early.

    Before Cassandra 5, and there too until it is told that no node has to go back, it is kept in 31 bits.

    :param compatibility: the server's setting `storage_compatibility_mode`; None: it has none, or hides it.
    """
    return (2**32 - 3 if compatibility == "NONE" else 2**31 - 2) - 60


def for_server(lives: Lives, latest_s: int, now_s: int) -> Lives:
    """Return the lives with what the server takes.

    :param latest_s: see `latest_expiry_s`.
    :raises OptionError: a life as long as the option says ends after that.
    """
    most_s = min(MOST_TTL_S, latest_s - now_s)
    if lives.ttl_s is not None and lives.ttl_s > most_s:
        last_day = "2038-01-19" if latest_s < 2**31 else "2106-02-07"
        raise OptionError(
            f"Option {TTL} is {lives.ttl_s}: such a life ends after {last_day}, the last"
            " day that this server can keep as its end.",
            f"Take {most_s} or less. From Cassandra 5 on lives may end later once every node has"
            " storage_compatibility_mode: NONE in cassandra.yaml.",
        )
    return msgspec.structs.replace(lives, latest_s=latest_s, most_ttl_s=most_s)


def _alive(values: pa.Array, deletes: pa.Array | None) -> pa.Array:
    return values if deletes is None else pc.if_else(deletes, null(pa.int64()), values)


def _of_seconds(values: pa.Array, deletes: pa.Array | None, lives: Lives) -> list[Reason]:
    most_s = lives.most_ttl_s
    keep = "Fill it in, .na.fill(…), or write rows that live for ever by a query of their own."
    return [
        (not_deleted(values.is_null(), deletes), "is null, and not seconds to live", keep),
        (
            are_bad(pc.less(values, int64(1)), deletes),
            "is not one second to live or more",
            "Drop such rows; or write a delete, by operationColumn, for those that shall go.",
        ),
        (
            are_bad(pc.greater(values, int64(most_s)), deletes),
            f"is more than the {most_s} seconds that the server takes",
            f'Take the smaller of the two: least("{{name}}", lit({most_s})).',
        ),
    ]


def _of_expiry(
    values: pa.Array, deletes: pa.Array | None, lives: Lives, now_us: int
) -> list[Reason]:
    latest_us = now_us + MOST_TTL_S * _SECOND_US
    if lives.latest_s:
        latest_us = min(latest_us, lives.latest_s * _SECOND_US)
    return [
        (
            not_deleted(values.is_null(), deletes),
            "is null, and not a time of expiry",
            "Fill it in, or write rows that live for ever by a query of their own.",
        ),
        (
            are_bad(pc.greater(values, int64(latest_us)), deletes),
            "is later than the server can keep as a time of expiry",
            f'Take an earlier one: least("{{name}}", timestamp_seconds(lit({latest_us // _SECOND_US}))).',
        ),
    ]


def seconds_left(
    batch: pa.RecordBatch, stamps: Ints, lives: Lives, now_s: int, default_ttl_s: int = 0
) -> Ints:
    """Return the seconds that are left to each row, 0 or less for none.

    As Cassandra does, the end of a life is its second of writing plus its seconds, here those of the row's
    timestamp in the ledger. So each time the row is written, its life ends in the same second.

    :param batch: as the log has it.
    :param stamps: the timestamps of the rows in the ledger, microseconds since 1970, whatever event times
        they have.
    :param now_s: see `WriteClock`.
    :param default_ttl_s: of the table, for rows of which no option says anything.
    """
    if lives.expires_column:
        ends = -(-elements(batch.column(EXPIRES_US), "i8") // _SECOND_US)
        most: Ints | int = MOST_TTL_S
    else:
        most = (
            elements(batch.column(LIFE_S), "i8")
            if lives.ttl_column
            else lives.ttl_s or default_ttl_s
        )
        ends = stamps // _SECOND_US + most
    if lives.latest_s:
        ends = np.minimum(ends, lives.latest_s)
    # Where timestamps lie ahead of the clock, a life is not longer for that.
    left: Ints = np.minimum(ends - now_s, most)
    return left
