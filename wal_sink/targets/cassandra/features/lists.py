"""Lists that are not frozen: the server gives each write elements of its own (rule 26)."""

from __future__ import annotations

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import WriteDemands
from wal_sink.targets.cassandra.feature import Feature
from wal_sink.targets.cassandra.row_options import (
    EVENT_COLUMN,
    EXPIRES_COLUMN,
    TTL,
    TTL_COLUMN,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan, Lives
from wal_sink.targets.cassandra.schema.table import TableMetadata
from wal_sink.targets.cassandra.types import has_lists

_FROZEN = "Make the columns frozen<list<…>>, leave them out of the DataFrame"


class Lists(Feature):
    """No option: the table's columns ask for it."""

    def demands(self, plan: CassandraPlan) -> WriteDemands:
        """Send each row once with a timestamp."""
        return WriteDemands(sent_once=True)

    def used(self, plan: CassandraPlan) -> bool:
        """Whether a column is such a list."""
        return has_lists(plan)

    def refuse_drift(self, plan: CassandraPlan, live: TableMetadata) -> None:
        """Refuse what hangs on a row's timestamp, which each attempt at its list raises; also at the start.

        :raises SchemaMismatch: rows bring their timestamps along, or live for a number of seconds.
        """
        if plan.details.event_column:
            raise SchemaMismatch(
                f"{live.name} has lists that are not frozen, and {EVENT_COLUMN} is given: a row that is"
                " written twice at the time of its event would have their elements twice.",
                f"{_FROZEN}, or leave out the option.",
            )
        lives = plan.details.lives or Lives()
        asked = {
            TTL: lives.ttl_s,
            TTL_COLUMN: lives.ttl_column,
            f"default_time_to_live = {live.default_ttl}": live.default_ttl,
        }
        if seconds := ", ".join(name for name, value in asked.items() if value):
            raise SchemaMismatch(
                f"{live.name} has lists that are not frozen, and its rows live for a number of seconds"
                f" ({seconds}): they count from a row's timestamp, which each attempt at its lists raises.",
                f"{_FROZEN}; or say when rows expire by {EXPIRES_COLUMN} alone, and ALTER TABLE {live.name}"
                " WITH default_time_to_live = 0.",
            )
