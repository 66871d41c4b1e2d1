"""The metadata of a table, read from `system_schema`."""

from __future__ import annotations

import itertools
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

from wal_sink.targets.cassandra.driver.errors import classify
from wal_sink.targets.cassandra.row_plan import KEY, TableName
from wal_sink.targets.cassandra.types import UserTypes

Role = Literal["partition", "clustering", "static", "regular"]


class ColumnMetadata(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    """The type as `system_schema` prints it, such as `frozen<list<int>>`. A varchar is a text there."""
    role: Role


class TableMetadata(NamedTuple):
    """The metadata under a table's name; the table itself may be missing."""

    name: TableName
    keyspaces: tuple[str, ...]
    """All keyspaces of the cluster."""
    durable: bool
    """True if writes to the keyspace go through the commit log."""
    tables: tuple[str, ...]
    """All tables of the keyspace, without materialized views."""
    views: tuple[str, ...]
    columns: tuple[ColumnMetadata, ...]
    """The columns of the table or view; empty if there is none of this name."""
    default_ttl: int
    """The TTL in seconds of rows that are written without a TTL; 0 for none."""
    types: UserTypes = MappingProxyType({})
    """The keyspace's user-defined types."""
    gc_grace_s: int = 864_000
    """Seconds after which the server may drop a tombstone."""
    id: UUID | None = None
    """The table's id. A table that is dropped and created again has a new id."""

    @property
    def exists(self) -> bool:
        """True if a table, not a view, has the name."""
        return self.name.table in self.tables

    @property
    def key(self) -> list[ColumnMetadata]:
        """The columns of the primary key."""
        return [column for column in self.columns if column.role in KEY]


def read_table(session: Any, name: TableName, node: Any = None) -> TableMetadata:
    """Read the metadata of a table, which may be missing.

    If the first node lacks the table, the metadata comes from a node that has it: the first node
    may lag, or another start may have just created the table.

    :param session: the driver's session.
    :param node: the driver's host that is read first; None for any.
    :raises Exception: an error of the driver.
    """
    metadata = _read(session, name, node)
    if not metadata.exists and (other := _node_with_table(session, name)) is not None:
        return _read(session, name, other)
    return metadata


def _read(session: Any, name: TableName, node: Any) -> TableMetadata:
    def rows(what: str, source: str, *key: str) -> list[Any]:
        names = ("keyspace_name", "table_name")[: len(key)]
        where = " AND ".join(f"{column} = %s" for column in names)
        query = f"SELECT {what} FROM system_schema.{source}" + (where and f" WHERE {where}")  # noqa: S608 -- constants
        nonlocal node  # another node may lag
        answer = session.execute(query, key, host=node)
        node = answer.response_future.coordinator_host
        return list(answer)

    keyspaces = {row.keyspace_name: row.durable_writes for row in rows("*", "keyspaces")}
    tables = {
        row.table_name: row
        for row in rows(
            "table_name, default_time_to_live, gc_grace_seconds, id", "tables", name.keyspace
        )
    }
    table = tables.get(name.table)
    views = rows("view_name", "views", name.keyspace)
    columns = rows("column_name, kind, position, type", "columns", *name)
    return TableMetadata(
        name=name,
        keyspaces=tuple(sorted(keyspaces)),
        durable=keyspaces.get(name.keyspace, True),
        tables=tuple(sorted(tables)),
        views=tuple(sorted(row.view_name for row in views)),
        columns=tuple(
            ColumnMetadata(
                row.column_name, cast("str", row.type), cast("Role", row.kind.removesuffix("_key"))
            )
            for row in sorted(columns, key=lambda row: (row.kind, row.position, row.column_name))
        ),
        default_ttl=(table.default_time_to_live or 0) if table else 0,
        types={
            row.type_name: tuple(zip(row.field_names, row.field_types, strict=True))
            for row in rows("type_name, field_names, field_types", "types", name.keyspace)
        },
        gc_grace_s=table.gc_grace_seconds if table else 864_000,
        id=table.id if table else None,
    )


_MOST_ASKED = 3
"""The number of nodes that are read for a table that one node lacks: few nodes lag behind at once."""


def _node_with_table(session: Any, name: TableName) -> Any:
    """Return a node that has the table; None if no node that answers has it."""
    query = "SELECT id FROM system_schema.tables WHERE keyspace_name = %s AND table_name = %s"
    for pool in itertools.islice(tuple(session.get_pools()), _MOST_ASKED):
        try:
            if session.execute(query, name, host=pool.host).one():
                return pool.host
        except Exception as error:
            if classify(error) == "fatal":
                raise
            # The next node may have the table.
    return None
