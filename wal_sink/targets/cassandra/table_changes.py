"""Detects, while a session is open, that the table has changed since the plan was made.

When a table changes, the server forgets its prepared statements. The driver prepares a statement again under
the same id, and does not compare the types. Then rows that are encoded for the old types could be written as
other values: eight bytes of a text are a valid bigint. So the session reads the version of a node's schema
before it sends rows, and again when all rows are acknowledged. If the version has changed, the session
compares the table with its plans again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from wal_sink.errors import TargetUnavailable
from wal_sink.targets.cassandra.driver.requests import retrying
from wal_sink.targets.cassandra.plan import refuse_repeated_lists
from wal_sink.targets.cassandra.row_plan import CassandraPlan, TableName
from wal_sink.targets.cassandra.table import (
    ColumnMetadata,
    TableMetadata,
    read_table,
    refuse_not_durable,
)
from wal_sink.targets.columns import has_changed, published_elsewhere
from wal_sink.targets.ddl import quote

_VERSION = "SELECT schema_version FROM system.local"

CHECK_EVERY_S = 1.0
"""Seconds between two checks while rows are sent."""


class TableWatch:
    """Compares the plans of one session with their table, again after each change of the schema.

    :param session: the driver's session.
    :param table: the table that the options name.
    """

    def __init__(self, session: Any, table: TableName) -> None:
        self._session = session
        self._table = table
        self._plans: list[CassandraPlan] = []
        self._metadata: TableMetadata | None = None
        self._version: UUID | None = None
        self._checked_s = float("-inf")

    @property
    def default_ttl_s(self) -> int:
        """The table's default TTL in seconds; 0 for none."""
        return self._metadata.default_ttl if self._metadata else 0

    def add(self, plan: CassandraPlan) -> None:
        """Compare a plan with its table, now and at each later check.

        :raises SchemaMismatch: the table has changed since the plan was made.
        :raises OptionError: the plan is for another table than the options.
        """
        name = plan.details.name
        # A forged plan in the log could name any table to which the role may write.
        if name != self._table:
            options = [f"keyspace={name.keyspace}", f"table={name.table}"]
            raise published_elsewhere(f"the table {name}", str(self._table), options)
        # The version is read before the table, so the next check detects a change between the two reads.
        plans = [*self._plans, plan]
        self._compare(plans, *self._schema_version())
        self._plans = plans

    def check_if_due(self) -> None:
        """Call `check` if the last check is older than `CHECK_EVERY_S`."""
        if time.monotonic() - self._checked_s >= CHECK_EVERY_S:
            self.check()

    def check(self) -> None:
        """Compare the table again if the schema has changed.

        :raises SchemaMismatch: the table has changed since a plan was made.
        :raises TargetUnavailable: the table was dropped and created again, and lacks earlier rows.
        """
        if not self._plans:
            return
        version, node = self._schema_version()
        if version != self._version:
            self._compare(self._plans, version, node)
        self._checked_s = time.monotonic()

    def _compare(self, plans: list[CassandraPlan], version: UUID, node: Any) -> None:
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

        The table has to be read from the same node, because a change reaches the nodes one after the other.
        """
        answer = retrying()(self._session.execute, _VERSION)
        return answer.one().schema_version, answer.response_future.coordinator_host


def refuse_changed(plan: CassandraPlan, metadata: TableMetadata) -> None:
    """Refuse a table that has changed since the plan was made. Accept new columns and fields.

    :raises SchemaMismatch: a column of the plan, its user-defined type or the key has changed. Or the
        keyspace has `durable_writes = false`.
    """
    now = {column.name: column for column in metadata.columns}
    changes = [
        f"{column.in_table} was {column.type} ({column.role}), "
        + (f"is {_described(now[column.in_table])}" if column.in_table in now else "is gone")
        for column in plan.columns
        if now.get(column.in_table) != (column.in_table, column.type, column.role)
    ]
    planned = {column.in_table for column in plan.columns}
    optional = {"clustering"} if plan.writes_partitions else set()
    changes += [
        f"{column.name} is new, {_described(column)}"
        for column in metadata.key
        if column.name not in planned and column.role not in optional
    ]
    changes += [
        f"type {name} was ({_fields(fields)}), is ({_fields(metadata.types.get(name, ()))})"
        for name, fields in plan.details.types.items()
        if tuple(metadata.types.get(name, ()))[: len(fields)] != fields
    ]
    if not metadata.exists:
        changes = ["the table is gone"]
    else:
        refuse_not_durable(metadata)
    if changes:
        raise has_changed(plan.table, changes)
    refuse_repeated_lists(plan, metadata)


def _described(column: ColumnMetadata) -> str:
    return f"{column.type} ({column.role})"


def _fields(fields: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{quote(name)} {cql}" for name, cql in fields)
