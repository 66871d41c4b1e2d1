"""CQL statements that create what a DataFrame needs. Errors propose them; `createTable` runs one."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import canonical, fields, is_array, spark_type
from wal_sink.targets.cassandra.row_plan import KEY, TableName
from wal_sink.targets.cassandra.table import ColumnMetadata, Role, TableMetadata
from wal_sink.targets.cassandra.types import CQL_FOR
from wal_sink.targets.ddl import Layout, quote, refuse_unknown_columns


def create_keyspace(keyspace: str) -> str:
    """Return a CREATE KEYSPACE as a starting point."""
    return (
        f"CREATE KEYSPACE {quote(keyspace)}\n"
        "  WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3};"
    )


def create_table(name: TableName, schema: pa.Schema) -> str:
    """Return a CREATE TABLE for a DataFrame. A comment in it says that the primary key is a guess."""
    lines, types = [], dict[str, str]()
    for field in schema:
        cql = suggest_type(name.keyspace, field.name, field.type, types)
        lines.append(
            f"  {quote(field.name)} {cql},"
            if cql
            else f"  -- {quote(field.name)}: {field.type} is not supported yet"
        )
    first = quote(schema.names[0]) if len(schema) else "…"
    return "\n".join(
        [
            *types.values(),
            f"CREATE TABLE {name} (",
            *lines,
            f"  PRIMARY KEY ({first})  -- choose: rows with equal keys overwrite each other",
            ");",
        ]
    )


def add_column(name: TableName, field: pa.Field) -> str | None:
    """Return an ALTER TABLE that adds a column; None if the column needs a user-defined type, too."""
    types: dict[str, str] = {}
    cql = suggest_type(name.keyspace, field.name, field.type, types)
    return None if types or cql is None else f"ALTER TABLE {name} ADD {quote(field.name)} {cql};"


def suggest_type(
    keyspace: str, path: str, source: pa.DataType, types: dict[str, str]
) -> str | None:
    """Return a CQL type for a column; None if there is none.

    :param path: the column and the fields down to this part of it. User-defined types are named after it.
    :param types: receives the CREATE TYPE of each new user-defined type by name, inner types first.
    """
    source = canonical(source)
    if is_array(source):
        element = suggest_type(keyspace, f"{path}_element", source.value_type, types)
        return element and f"frozen<list<{_frozen(element)}>>"
    if pa.types.is_map(source):
        key = suggest_type(keyspace, f"{path}_key", source.key_type, types)
        value = suggest_type(keyspace, f"{path}_value", source.item_type, types)
        return "map<{}, {}>".format(*map(_frozen, (key, value))) if key and value else None
    if pa.types.is_struct(source):
        return _suggest_user_type(keyspace, path, source, types)
    return CQL_FOR.get(spark_type(source))


def _frozen(cql: str) -> str:
    return f"frozen<{cql}>" if cql.startswith("map<") else cql


def _suggest_user_type(
    keyspace: str, path: str, source: pa.DataType, types: dict[str, str]
) -> str | None:
    lines = []
    for field in fields(source):
        cql = suggest_type(keyspace, f"{path}_{field.name}", field.type, types)
        if cql is None:
            return None
        lines.append(f"  {quote(field.name)} {_frozen(cql)}")
    name = re.sub(r"\W", "_", path, flags=re.ASCII)
    while name in types:
        name += "_"
    body = ",\n".join(lines)
    types[name] = f"CREATE TYPE {quote(keyspace)}.{quote(name)} (\n{body}\n);"
    return f"frozen<{quote(name)}>"


def new_table(
    metadata: TableMetadata,
    schema: pa.Schema,
    layout: Layout,
    names: Mapping[str, str],
) -> TableMetadata:
    """Return the table that option `createTable` would create for a DataFrame.

    The start compares the DataFrame with this table before it creates the table, so a start that is refused
    creates nothing.

    :param metadata: the metadata under the table's name; there is no such table yet.
    :param schema: the columns that are written.
    :param layout: the primary key, as `primary_key` returns it.
    :param names: the names that columns of the DataFrame have in the table, if they differ there.
    :raises SchemaMismatch: the DataFrame lacks a column of the key, or a column has a type that
        `createTable` cannot create.
    """
    refuse_unknown_columns(layout, schema)
    columns = [_column(metadata.name, field, layout, names) for field in schema]
    by_name = {names.get(name, name): number for number, name in enumerate(layout.key)}
    columns.sort(key=lambda column: by_name.get(column.name, len(by_name)))
    return metadata._replace(tables=(*metadata.tables, metadata.name.table), columns=tuple(columns))


def _column(
    table: TableName, field: pa.Field, layout: Layout, names: Mapping[str, str]
) -> ColumnMetadata:
    types: dict[str, str] = {}
    cql = suggest_type(table.keyspace, field.name, field.type, types)
    if cql is None:
        raise SchemaMismatch(
            f"{field.name} is of type {field.type}, which Cassandra has no type for.",
            "Cast it, or drop it.",
        )
    if types:
        raise SchemaMismatch(
            f"{field.name} is a struct, which takes a user-defined type, and createTable makes none.",
            "Create the table yourself: without createTable, the error has the statements.",
        )
    role: Role = "regular"
    if field.name in layout.key:
        role = "partition" if field.name in layout.partition else "clustering"
        cql = _frozen(cql)
    return ColumnMetadata(names.get(field.name, field.name), cql, role)


def create_statement(table: TableMetadata) -> str:
    """Return the CREATE TABLE of a table that `new_table` has returned."""
    lines = [f"  {quote(column.name)} {column.type}" for column in table.columns]
    parts = [
        ", ".join(quote(column.name) for column in table.columns if column.role == role)
        for role in KEY
    ]
    key = ", ".join(filter(None, (f"({parts[0]})", parts[1])))
    body = ",\n".join([*lines, f"  PRIMARY KEY ({key})"])
    return f"CREATE TABLE {table.name} (\n{body}\n);"
