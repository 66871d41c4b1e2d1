"""Whether tables are still what plans were made for, while a connection is open.

The server forgets a prepared statement when its table changes, and the driver prepares it anew, with the same
id and without a look at the types. Rows that are encoded for the old types would then be sent on: eight bytes
of a text are a fine bigint. So before rows go out, and again when all are acknowledged, the server is asked
whether the schema has changed at all: one small read of the node's own. Where it has, the table is compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from wal_sink.errors import CorruptLog, TargetUnavailable
from wal_sink.targets.base import Plan
from wal_sink.targets.cassandra.compare import refuse_changed
from wal_sink.targets.cassandra.live import read_table
from wal_sink.targets.cassandra.names import qualified
from wal_sink.targets.cassandra.options import TableName
from wal_sink.targets.cassandra.send import PATIENCE, retrying

LOOK_S = 1.0
"""How old the last look may be when rows go out; when they are acknowledged, it is always made."""


class Watch:
    """Watches the tables of one connection's plans.

    :param session: the driver's session.
    """

    def __init__(self, session: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._clock = clock
        self._plans: dict[str, tuple[Plan, UUID | None]] = {}
        self._version: UUID | None = None
        self._looked = float("-inf")

    def add(self, plan: Plan) -> None:
        """Compare a plan with its table, and from now on again when the schema changes.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises CorruptLog: the plan was edited.
        """
        version = self._schema_version()  # before: what changes in between is seen by the next look
        self._plans[plan.key] = plan, self._compare(plan)
        if self._version is None:
            self._version, self._looked = version, self._clock()

    def look(self, *, now: bool) -> None:
        """See that nothing has changed; on the way not more often than `LOOK_S`.

        :raises SchemaMismatch: a table is no longer what a plan says.
        :raises TargetUnavailable: a table was made anew, and what was written to the old one is gone.
        """
        if not self._plans or (not now and self._clock() - self._looked < LOOK_S):
            return
        version = self._schema_version()
        if version != self._version:
            for plan, made in self._plans.values():
                if self._compare(plan) != made:
                    raise TargetUnavailable(
                        f"{plan.table} was dropped and made again since rows were written to it",
                        "Nothing: what is begun is written again by itself. Earlier epochs are not in"
                        " the new table.",
                    )
            self._version = version
        self._looked = self._clock()

    def _compare(self, plan: Plan) -> UUID | None:
        """Compare; return what tells the table from one that is made again under its name."""
        name = TableName(plan.details["keyspace"], plan.details["table"])
        if plan.table != qualified(*name):  # plans come from a shared folder, and become statements
            raise CorruptLog(
                f"Plan {plan.key} writes to {plan.table} and was agreed for {qualified(*name)}",
                "Somebody has edited it. Restore the file in the log's plans/ folder from a copy.",
            )
        live = retrying(PATIENCE)(read_table, self._session, name)
        refuse_changed(plan, live)
        return live.id

    def _schema_version(self) -> UUID:
        """Ask a node for the digest of the schema as it has it."""
        query = "SELECT schema_version FROM system.local"
        row = retrying(PATIENCE)(lambda: self._session.execute(query).one())
        version: UUID = row.schema_version
        return version
