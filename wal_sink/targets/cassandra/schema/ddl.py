"""The CQL statements that errors propose: a CREATE TABLE for a DataFrame, with the types that it needs."""

from __future__ import annotations

import re

import pyarrow as pa

from wal_sink.model.plan import canonical, fields, is_array, spark_type
from wal_sink.targets.cassandra.names import TableName, quote
from wal_sink.targets.cassandra.types import CQL_FOR


def create_keyspace(keyspace: str) -> str:
    """Return a CREATE KEYSPACE to start from."""
    return (
        f"CREATE KEYSPACE {quote(keyspace)}\n"
        "  WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3};"
    )


def create_table(name: TableName, schema: pa.Schema) -> str:
    """Return a CREATE TABLE for a DataFrame; its comment says that the key is a guess."""
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
    """Return an ALTER TABLE for a column of a DataFrame; None where it takes more than that."""
    types: dict[str, str] = {}
    cql = suggest_type(name.keyspace, field.name, field.type, types)
    return None if types or cql is None else f"ALTER TABLE {name} ADD {quote(field.name)} {cql};"


def suggest_type(
    keyspace: str, path: str, source: pa.DataType, types: dict[str, str]
) -> str | None:
    """Return a CQL type that holds a column; None when there is none.

    :param path: the column and the fields down to this part of it; user-defined types are named after it.
    :param types: gets the CREATE TYPE of each user-defined type by its name, inner types first.
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
