"""Whether tables are still what plans were made for, while a connection is open.

The server forgets a prepared statement when its table changes, and the driver prepares it anew, with the same
id and without a look at the types. Rows that are encoded for the old types would then be sent on: eight bytes
of a text are a fine bigint. So before rows go out, and again when all are acknowledged, the server is asked
whether the schema has changed at all: one small read of the node's own. Where it has, the table is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from wal_sink.errors import CorruptLog, TargetUnavailable
from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.names import qualified
from wal_sink.targets.cassandra.options import TableName
from wal_sink.targets.cassandra.schema.compare import refuse_changed, refuse_hidden
from wal_sink.targets.cassandra.schema.live_table import LiveTable, read_table
from wal_sink.targets.cassandra.write.send import PATIENCE, retrying

LOOK_S = 1.0
"""How old the last look may be when rows go out; when they are acknowledged, it is always made."""


@dataclass
class _Watched:
    plan: Plan
    live: LiveTable
    """As it was seen last."""
    first_us: int | None = None
    """The lowest timestamp of rows that are not all acknowledged."""


class Watch:
    """Watches the tables of one connection's plans.

    :param session: the driver's session.
    """

    def __init__(self, session: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._plans: dict[str, _Watched] = {}
        self._version: UUID | None = None
        self._looked = float("-inf")

    def add(self, plan: Plan) -> None:
        """Compare a plan with its table, and from now on again when the schema changes.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises CorruptLog: the plan was edited.
        """
        # Before the comparison: what changes in between is seen by the next look.
        version, node = self._schema_version()
        self._plans[plan.key] = _Watched(plan, self._compare(plan, node))
        if self._version is None:
            self._version, self._looked = version, self._clock()

    def write(self, plan: Plan, first_us: int) -> None:
        """Take notice of rows that go out.

        :param plan: one that was added.
        :param first_us: their lowest write timestamp, microseconds since 1970.
        :raises SchemaMismatch: a column was dropped after that, and added again.
        """
        watched = self._plans[plan.key]
        if watched.first_us is None or first_us < watched.first_us:
            watched.first_us = first_us
            refuse_hidden(plan, watched.live, first_us)

    def forget(self) -> None:
        """Take notice that all rows are acknowledged, or not wanted any more."""
        for watched in self._plans.values():
            watched.first_us = None

    def look(self, *, now: bool) -> None:
        """See that nothing has changed; on the way not more often than `LOOK_S`.

        :raises SchemaMismatch: a table is no longer what a plan says, or hides what was written.
        :raises TargetUnavailable: a table was made anew, and what was written to the old one is gone.
        """
        if not self._plans or (not now and self._clock() - self._looked < LOOK_S):
            return
        version, node = self._schema_version()
        if version != self._version:
            for watched in self._plans.values():
                self._compare_again(watched, node)
            self._version = version
        self._looked = self._clock()

    def _compare_again(self, watched: _Watched, node: Any) -> None:
        before, watched.live = watched.live, self._compare(watched.plan, node)
        if watched.live.id != before.id:
            raise TargetUnavailable(
                f"{watched.plan.table} was dropped and made again since rows were written to it",
                "Nothing: what is begun is written again by itself. Earlier epochs are not in"
                " the new table.",
            )
        if watched.first_us is not None:
            refuse_hidden(watched.plan, watched.live, watched.first_us)

    def _compare(self, plan: Plan, node: Any) -> LiveTable:
        """Compare with the table as a node has it; return that."""
        name = TableName(plan.details["keyspace"], plan.details["table"])
        if plan.table != qualified(*name):  # plans come from a shared folder, and become statements
            raise CorruptLog(
                f"Plan {plan.key} writes to {plan.table} and was agreed for {qualified(*name)}",
                "Somebody has edited it. Restore the file in the log's plans/ folder from a copy.",
            )
        live = retrying(PATIENCE)(read_table, self._session, name, node)
        refuse_changed(plan, live)
        return live

    def _schema_version(self) -> tuple[UUID, Any]:
        """Ask a node for the digest of the schema as it has it; return which one, too.

        A change reaches one node after the other: the table is read from the node that has this version.
        """
        query = "SELECT schema_version FROM system.local"
        answer = retrying(PATIENCE)(self._session.execute, query)
        return answer.one().schema_version, answer.response_future.coordinator_host
