"""Notices, while a connection is open, that a table is no longer what a plan was made for.

The server forgets a prepared statement when its table changes, and the driver prepares it again, with the
same id and without comparing the types. Rows that are encoded for the old types would then be sent on:
eight bytes of a text are a valid bigint. So before rows go out, and again when all are acknowledged, a
node is asked for the version of its schema: one small read. Where that has changed, the table is compared
again.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from wal_sink.errors import TargetUnavailable
from wal_sink.targets.cassandra.compare import refuse_changed
from wal_sink.targets.cassandra.driver.errors import retrying
from wal_sink.targets.cassandra.row_plan import CassandraPlan, TableName
from wal_sink.targets.cassandra.table import TableMetadata, read_table
from wal_sink.targets.registry import published_elsewhere

_VERSION = "SELECT schema_version FROM system.local"

CHECK_EVERY_S = 1.0
"""Seconds after which rows wait for another check before they go out; at the end there always is one."""


class DriftWatch:
    """Watches the table of one connection's plans.

    :param session: the driver's session.
    :param table: the one that the options name.
    """

    def __init__(self, session: Any, table: TableName) -> None:
        self._session = session
        self._table = table
        self._plans: list[CassandraPlan] = []
        self._live: TableMetadata | None = None
        """The table as it was read last."""
        self._version: UUID | None = None
        self._checked_s = float("-inf")

    @property
    def default_ttl_s(self) -> int:
        """The table's default TTL in seconds; 0: rows never expire."""
        return self._live.default_ttl if self._live else 0

    def add(self, plan: CassandraPlan) -> None:
        """Compare a plan with its table, now and whenever the schema changes.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options name.
        """
        name = plan.details.name
        # Or who may write to the log could write to each table of the role.
        if name != self._table:
            options = [f"keyspace={name.keyspace}", f"table={name.table}"]
            raise published_elsewhere(f"the table {name}", str(self._table), options)
        # The version is read before the table: what changes in between is seen by the next check.
        plans = [*self._plans, plan]
        self._compare(plans, *self._schema_version())
        self._plans = plans

    def check(self, *, now: bool) -> None:
        """Compare the table again if the schema has changed.

        :param now: also if the last check is younger than `CHECK_EVERY_S`.
        :raises SchemaMismatch: the table is no longer what a plan says.
        :raises TargetUnavailable: the table was created again, and what was written to the old one is gone.
        """
        if not self._plans or (not now and time.monotonic() - self._checked_s < CHECK_EVERY_S):
            return
        version, node = self._schema_version()
        if version != self._version:
            self._compare(self._plans, version, node)
        self._checked_s = time.monotonic()

    def _compare(self, plans: list[CassandraPlan], version: UUID, node: Any) -> None:
        """Compare plans with the table as a node has it."""
        former, self._live = self._live, retrying()(read_table, self._session, self._table, node)
        for plan in plans:
            refuse_changed(plan, self._live)
        if former and former.id != self._live.id:
            raise TargetUnavailable(
                f"{self._table} was dropped and created again after rows were written to it.",
                "No action is needed for this window: the flush writes it again. The new table lacks the"
                " epochs before it.",
            )
        self._version = version

    def _schema_version(self) -> tuple[UUID, Any]:
        """Ask a node for the version of its schema; return it with the node.

        A change reaches one node after the other: the table is read from the node that has this version.
        """
        answer = retrying()(self._session.execute, _VERSION)
        return answer.one().schema_version, answer.response_future.coordinator_host
