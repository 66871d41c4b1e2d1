"""Notices, while a connection is open, that a table is no longer what a plan was made for.

The server forgets a prepared statement when its table changes, and the driver prepares it again, with the
same id and without comparing the types. Rows that are encoded for the old types would then be sent on:
eight bytes of a text are a valid bigint. So before rows go out, and again when all are acknowledged, a
node is asked for the version of its schema: one small read. Where that has changed, the table is compared
again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from wal_sink.errors import TargetUnavailable
from wal_sink.targets.cassandra.compare import refuse_changed, refuse_hidden
from wal_sink.targets.cassandra.driver.errors import retrying
from wal_sink.targets.cassandra.row_plan import CassandraPlan, TableName
from wal_sink.targets.cassandra.table import TableMetadata, read_table
from wal_sink.targets.registry import published_elsewhere

_VERSION = "SELECT schema_version FROM system.local"

CHECK_EVERY_S = 1.0
"""Seconds after which rows wait for another check before they go out; at the end there always is one."""


@dataclass
class _Watched:
    plan: CassandraPlan
    live: TableMetadata
    """As it was read last."""
    first_us: int | None = None
    """The lowest timestamp of the rows that are not acknowledged yet."""


class DriftWatch:
    """Watches the table of one connection's plans.

    :param session: the driver's session.
    :param table: the one that the options name.
    """

    def __init__(
        self,
        session: Any,
        table: TableName,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._table = table
        self._clock = clock
        self._plans: dict[str, _Watched] = {}
        """By the key of the plan."""
        self._version: UUID | None = None
        self._checked = float("-inf")

    def add(self, plan: CassandraPlan) -> None:
        """Compare a plan with its table, now and whenever the schema changes.

        :raises SchemaMismatch: the table is no longer what the plan says.
        :raises OptionError: the plan is for another table than the options name.
        """
        # Before the comparison: what changes in between is seen by the next check.
        version, node = self._schema_version()
        live = self._compare(plan, node)
        self._plans[plan.key] = _Watched(plan, live)
        if self._version is None:
            self._version, self._checked = version, self._clock()

    def expect_rows(self, plan: CassandraPlan, first_us: int) -> None:
        """Remember that rows go out, and refuse those that the table would hide.

        :param plan: one that was added.
        :param first_us: their lowest write timestamp, microseconds since 1970.
        :raises SchemaMismatch: a column was dropped after that, and added again.
        """
        watched = self._plans[plan.key]
        if watched.first_us is None or first_us < watched.first_us:
            watched.first_us = first_us
            refuse_hidden(plan, watched.live, first_us)

    def default_ttl_s(self, plan: CassandraPlan) -> int:
        """Return the table's default TTL in seconds; 0: rows never expire.

        :param plan: one that was added.
        """
        return self._plans[plan.key].live.default_ttl

    def clear_rows(self) -> None:
        """Forget the rows that were sent: they are acknowledged."""
        for watched in self._plans.values():
            watched.first_us = None

    def check(self, *, now: bool) -> None:
        """Compare the table again if the schema has changed.

        :param now: also if the last check is younger than `CHECK_EVERY_S`.
        :raises SchemaMismatch: the table is no longer what a plan says, or hides what was written.
        :raises TargetUnavailable: the table was created again, and what was written to the old one is gone.
        """
        if not self._plans or (not now and self._clock() - self._checked < CHECK_EVERY_S):
            return
        version, node = self._schema_version()
        if version != self._version:
            for watched in self._plans.values():
                self._compare_again(watched, node)
            self._version = version
        self._checked = self._clock()

    def _compare_again(self, watched: _Watched, node: Any) -> None:
        former, watched.live = watched.live, self._compare(watched.plan, node)
        if watched.live.id != former.id:
            raise TargetUnavailable(
                f"{watched.plan.table} was dropped and created again after rows were written to it.",
                "No action is needed for this window: the flush writes it again. The new table lacks the"
                " epochs before it.",
            )
        if watched.first_us is not None:
            refuse_hidden(watched.plan, watched.live, watched.first_us)

    def _compare(self, plan: CassandraPlan, node: Any) -> TableMetadata:
        """Compare a plan with the table as a node has it; return the table."""
        name = plan.details.name
        # Or who may write to the log could write to each table of the role.
        if name != self._table:
            options = [f"keyspace={name.keyspace}", f"table={name.table}"]
            raise published_elsewhere(f"the table {name}", str(self._table), options)
        live = retrying()(read_table, self._session, name, node)
        refuse_changed(plan, live)
        return live

    def _schema_version(self) -> tuple[UUID, Any]:
        """Ask a node for the version of its schema; return it with the node.

        A change reaches one node after the other: the table is read from the node that has this version.
        """
        answer = retrying()(self._session.execute, _VERSION)
        return answer.one().schema_version, answer.response_future.coordinator_host
