"""Detects, while a connection is open, that a table has changed since the plan was made.

When a table changes, the server forgets its prepared statements. The driver prepares a statement again under
the same id, without comparing the types. Then rows that are encoded for the old types could be written:
eight bytes of a text are a valid bigint. So before rows are sent, and again when all are acknowledged, a
node is asked for the version of its schema by one small read. If the version has changed, the table is
compared again.
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
from wal_sink.targets.columns import published_elsewhere

_VERSION = "SELECT schema_version FROM system.local"

CHECK_EVERY_S = 1.0
"""Seconds between two checks while rows are sent. At the end of a window there always is a check."""


class DriftWatch:
    """Watches the table of the plans of one connection.

    :param session: the driver's session.
    :param table: the table of the options.
    """

    def __init__(self, session: Any, table: TableName) -> None:
        self._session = session
        self._table = table
        self._plans: list[CassandraPlan] = []
        self._metadata: TableMetadata | None = None
        """The table's metadata at the last read."""
        self._version: UUID | None = None
        self._checked_s = float("-inf")

    @property
    def default_ttl_s(self) -> int:
        """The table's default TTL in seconds; 0 for none."""
        return self._metadata.default_ttl if self._metadata else 0

    def add(self, plan: CassandraPlan) -> None:
        """Compare a plan with its table, now and after each change of the schema.

        :raises SchemaMismatch: the table has changed since the plan was made.
        :raises OptionError: the plan is for another table than the options.
        """
        name = plan.details.name
        # Otherwise a plan that somebody else wrote to the log could name any table of the role.
        if name != self._table:
            options = [f"keyspace={name.keyspace}", f"table={name.table}"]
            raise published_elsewhere(f"the table {name}", str(self._table), options)
        # The version is read before the table, so the next check detects a change in between.
        plans = [*self._plans, plan]
        self._compare(plans, *self._schema_version())
        self._plans = plans

    def check(self, *, now: bool) -> None:
        """Compare the table again if the schema has changed.

        :param now: True to check even if the last check is younger than `CHECK_EVERY_S`.
        :raises SchemaMismatch: the table has changed since a plan was made.
        :raises TargetUnavailable: the table was created again, and rows that were written before are lost.
        """
        if not self._plans or (not now and time.monotonic() - self._checked_s < CHECK_EVERY_S):
            return
        version, node = self._schema_version()
        if version != self._version:
            self._compare(self._plans, version, node)
        self._checked_s = time.monotonic()

    def _compare(self, plans: list[CassandraPlan], version: UUID, node: Any) -> None:
        """Compare plans with the table as a node has it.

        :raises SchemaMismatch, TargetUnavailable: see `check`.
        """
        metadata = retrying()(read_table, self._session, self._table, node)
        for plan in plans:
            refuse_changed(plan, metadata)
        if self._metadata and self._metadata.id != metadata.id:
            raise TargetUnavailable(
                f"{self._table} was dropped and created again after rows were written to it.",
                "No action is needed for this window: the flush writes it again. But the new table lacks the"
                " rows of earlier epochs.",
            )
        self._metadata, self._version = metadata, version

    def _schema_version(self) -> tuple[UUID, Any]:
        """Return the version of a node's schema, and the node.

        A change reaches one node after the other, so the table has to be read from the node with this
        version.
        """
        answer = retrying()(self._session.execute, _VERSION)
        return answer.one().schema_version, answer.response_future.coordinator_host
