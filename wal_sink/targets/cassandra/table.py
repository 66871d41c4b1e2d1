"""Reads the metadata of a table, and makes the CQL statements that create a table or add a column."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, cast
from uuid import UUID

import pyarrow as pa
from cassandra import Unauthorized

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.model.spark_types import canonical, fields, is_array, spark_type
from wal_sink.targets.cassandra.driver.internals import has_one_schema
from wal_sink.targets.cassandra.row_plan import KEY, TableName
from wal_sink.targets.cassandra.types import CQL_FOR, UserTypes
from wal_sink.targets.ddl import Layout, quote, refuse_unknown_columns

Role = Literal["partition", "clustering", "static", "regular"]


class ColumnMetadata(NamedTuple):
    """A column of a table."""

    name: str
    type: str
    """The type as `system_schema` prints it, such as `frozen<list<int>>`; "text" for a varchar."""
    role: Role


class TableMetadata(NamedTuple):
    """The metadata of a table, which may be missing, and of its keyspace."""

    name: TableName
    keyspaces: tuple[str, ...]
    durable: bool
    """True if the keyspace writes to the commit log (`durable_writes`)."""
    tables: tuple[str, ...]
    """All tables of the keyspace, without materialized views."""
    columns: tuple[ColumnMetadata, ...]
    """The columns of the table; empty if there is no table."""
    default_ttl: int
    """`default_time_to_live` in seconds; 0 for none."""
    types: UserTypes = MappingProxyType({})
    """All user-defined types of the keyspace."""
    id: UUID | None = None
    """The table's id. A table that is dropped and created again has a new id."""

    @property
    def exists(self) -> bool:
        """True if the keyspace has a table of this name. A materialized view does not count."""
        return self.name.table in self.tables

    @property
    def key(self) -> list[ColumnMetadata]:
        """The columns of the primary key."""
        return [column for column in self.columns if column.role in KEY]


def refuse_not_durable(metadata: TableMetadata) -> None:
    """Refuse a keyspace with `durable_writes = false`, which loses acknowledged rows in a crash.

    :raises SchemaMismatch: the keyspace has this setting.
    """
    if not metadata.durable:
        raise SchemaMismatch(
            f"Keyspace {metadata.name.keyspace} has durable_writes = false: if a server's process ends,"
            " acknowledged rows are lost, and the log may have deleted them.",
            f"Run:\nALTER KEYSPACE {quote(metadata.name.keyspace)} WITH durable_writes = true;",
        )


def read_table(session: Any, name: TableName, node: Any = None) -> TableMetadata:
    """Read the metadata of a table, which may be missing.

    :param session: the driver's session.
    :param node: the driver's host to read from; None for any node.
    :raises Exception: an error of the driver.
    """

    def rows(what: str, source: str, *key: str) -> list[Any]:
        names = ("keyspace_name", "table_name")[: len(key)]
        where = " AND ".join(f"{column} = %s" for column in names)
        query = f"SELECT {what} FROM system_schema.{source}" + (where and f" WHERE {where}")  # noqa: S608 -- constants
        nonlocal node  # all reads go to one node, because another node may lag
        answer = session.execute(query, key, host=node)
        node = answer.response_future.coordinator_host
        return list(answer)

    keyspaces = {row.keyspace_name: row.durable_writes for row in rows("*", "keyspaces")}
    tables = {
        row.table_name: row
        for row in rows("table_name, default_time_to_live, id", "tables", name.keyspace)
    }
    table = tables.get(name.table)
    columns = rows("column_name, kind, position, type", "columns", *name)
    return TableMetadata(
        name=name,
        keyspaces=tuple(sorted(keyspaces)),
        durable=keyspaces.get(name.keyspace, True),
        tables=tuple(sorted(tables)),
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
        id=table.id if table else None,
    )


CREATE_S = 60.0
"""Seconds to wait for a CREATE TABLE. All nodes have to agree on the table, which takes longer than a row."""


def create_table(session: Any, statement: str, name: object, kind: str = "Table") -> None:
    """Send a CREATE TABLE, and wait until the nodes agree on the table.

    :param kind: the noun of an error, such as "Table".
    :raises SchemaMismatch: the role may not create the table.
    :raises TargetUnavailable: the table was created, but the nodes do not agree on it yet.
    """
    try:
        result = session.execute(statement, timeout=CREATE_S)
    except Unauthorized as error:
        raise SchemaMismatch(
            f"{kind} {name} does not exist, and this role may not create it: {error}",
            f"Let a role with the permission CREATE run:\n{statement};",
        ) from error
    if not result.response_future.is_schema_agreed:
        raise TargetUnavailable(
            f"The nodes do not agree yet that {name} was created.",
            "Check that all nodes are up (nodetool describecluster), and start again.",
        )


AGREEMENT_S = 10.0
"""Seconds to wait until all nodes have the same schema."""


def refuse_disagreement(session: Any, name: TableName) -> None:
    """Wait until all nodes that are up have the same schema, so that each node knows whether a table exists.

    :raises TargetUnavailable: the nodes do not agree in time.
    """
    if not has_one_schema(session, AGREEMENT_S):
        raise TargetUnavailable(
            f"A node lacks {name}, and the nodes do not agree on the schema. If another node has the table, a"
            " second CREATE TABLE could replace it, and its rows would be lost.",
            "Check that all nodes are up and have one schema version (nodetool describecluster).",
        )


def keyspace_statement(keyspace: str) -> str:
    """Return a CREATE KEYSPACE statement. Its replication is only an example."""
    return (
        f"CREATE KEYSPACE {quote(keyspace)}\n"
        "  WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3};"
    )


def proposed_statement(name: TableName, schema: pa.Schema) -> str:
    """Return a CREATE TABLE for a DataFrame, with a comment that the user has to choose the primary key."""
    lines = []
    for field in schema:
        column, cql = quote(field.name), suggest_type(field.type)
        lines.append(
            f"{column} {cql}" if cql else f"-- {column}: {field.type} is not supported yet"
        )
    first = quote(schema.names[0]) if len(schema) else "…"
    key = f"PRIMARY KEY ({first})  -- choose: rows with equal keys overwrite each other"
    return _create_table(name, [*lines, key])


def _create_table(name: TableName, lines: list[str]) -> str:
    return f"CREATE TABLE {name} (\n  " + ",\n  ".join(lines) + "\n);"


def suggest_type(source: pa.DataType) -> str | None:
    """Return a CQL type for a column or a part of a column; None if CQL has no such type.

    A struct becomes a tuple, because the table can be created without a user-defined type then.
    """
    source = canonical(source)
    if is_array(source):
        element = suggest_type(source.value_type)
        return element and f"frozen<list<{_frozen(element)}>>"
    if pa.types.is_map(source):
        key, value = suggest_type(source.key_type), suggest_type(source.item_type)
        return f"map<{_frozen(key)}, {_frozen(value)}>" if key and value else None
    if pa.types.is_struct(source):
        parts = [_frozen(cql) for field in fields(source) if (cql := suggest_type(field.type))]
        is_whole = 0 < source.num_fields == len(parts)
        return f"frozen<tuple<{', '.join(parts)}>>" if is_whole else None
    return CQL_FOR.get(spark_type(source))


def _frozen(cql: str) -> str:
    return f"frozen<{cql}>" if cql.startswith("map<") else cql


def new_table(
    metadata: TableMetadata,
    schema: pa.Schema,
    layout: Layout,
    names: Mapping[str, str],
) -> TableMetadata:
    """Return the metadata of the table that option `createTable` would create for a DataFrame.

    A start compares the DataFrame with this metadata before it creates the table.

    :param metadata: the metadata of the missing table.
    :param schema: the columns of the DataFrame that are written.
    :param layout: the primary key, as `options.primary_key` returns it.
    :param names: the table's names of renamed columns, by the DataFrame's names.
    :raises SchemaMismatch: the DataFrame lacks a column of the key, or has a type that CQL lacks.
    """
    refuse_unknown_columns(layout, schema)
    columns = [_column(field, layout, names) for field in schema]
    by_name = {names.get(name, name): number for number, name in enumerate(layout.key)}
    columns.sort(key=lambda column: by_name.get(column.name, len(by_name)))
    return metadata._replace(tables=(*metadata.tables, metadata.name.table), columns=tuple(columns))


def _column(field: pa.Field, layout: Layout, names: Mapping[str, str]) -> ColumnMetadata:
    cql = suggest_type(field.type)
    if cql is None:
        raise SchemaMismatch(
            f"Column {field.name} is of type {field.type}, for which Cassandra has no type.",
            f"Cast or drop {field.name}.",
        )
    role: Role = "regular"
    if field.name in layout.key:
        role = "partition" if field.name in layout.partition else "clustering"
        cql = _frozen(cql)
    return ColumnMetadata(names.get(field.name, field.name), cql, role)


def create_statement(table: TableMetadata) -> str:
    """Return the CREATE TABLE of a table that does not exist yet."""
    lines = [f"{quote(column.name)} {column.type}" for column in table.columns]
    parts = [
        ", ".join(quote(column.name) for column in table.columns if column.role == role)
        for role in KEY
    ]
    key = ", ".join(filter(None, (f"({parts[0]})", parts[1])))
    return _create_table(table.name, [*lines, f"PRIMARY KEY ({key})"])
