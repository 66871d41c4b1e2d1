"""Option createTable: the table that a DataFrame needs, as it will be, and the statement that makes it.

A start agrees with the table as it will be, and then makes it: one that is refused leaves no table behind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from cassandra import AlreadyExists, Unauthorized

from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.targets.cassandra.names import Key, TableName, quote
from wal_sink.targets.cassandra.row_plan import ADDED_COLUMN
from wal_sink.targets.cassandra.schema import ddl
from wal_sink.targets.cassandra.schema.table import ColumnMetadata, Role, TableMetadata
from wal_sink.targets.create_table import Layout, refuse_unknown_columns

CREATE_S = 60.0
"""How long the nodes have to create a table: all have to agree on it, which takes longer than a row."""


class NewTable(NamedTuple):
    """A table that is missing."""

    statement: str
    live: TableMetadata
    """The table as it will be."""


def new_table(
    live: TableMetadata, schema: pa.Schema, key: Key, names: Mapping[str, str], *, totals: bool
) -> NewTable:
    """Return the table that takes a DataFrame.

    :param live: what the cluster has under its name: nothing.
    :param schema: of the columns that are written.
    :param key: by the DataFrame's names.
    :param names: the table's by the DataFrame's, for those that differ.
    :param totals: whether it needs the column that says what is in the totals.
    :raises SchemaMismatch: the DataFrame lacks a column of the key, or has one that createTable cannot make.
    """
    refuse_unknown_columns(Layout(key=key.columns), schema)
    columns = [_column(live.name, field, key, names) for field in schema]
    if totals:
        columns.append(ColumnMetadata(ADDED_COLUMN, "text", "regular"))
    by_name = {names.get(name, name): number for number, name in enumerate(key.columns)}
    columns.sort(key=lambda column: by_name.get(column.name, len(by_name)))
    will_be = live._replace(tables=(*live.tables, live.name.table), columns=tuple(columns))
    return NewTable(_statement(live.name, columns), will_be)


def make_table(session: Any, new: NewTable) -> None:
    """Make the table, and wait until the nodes agree on it; one that another start has made stays.

    :param session: the driver's session.
    :raises SchemaMismatch: the role may not create it.
    :raises TargetUnavailable: it was created, but the nodes do not agree on it yet.
    """
    name = new.live.name
    try:
        result = session.execute(new.statement.rstrip(";"), timeout=CREATE_S)
        refuse_disagreement(result, name)
    except AlreadyExists:
        return  # what it is like is compared next
    except Unauthorized as error:
        raise SchemaMismatch(
            f"Table {name} does not exist, and this role may not create it: {error}",
            f"Have it created:\n{new.statement}",
        ) from error


def refuse_disagreement(result: Any, name: TableName) -> None:
    """Refuse to go on where the driver's wait for schema agreement has ended without it.

    :param result: of a CREATE TABLE.
    :raises TargetUnavailable: the nodes do not agree.
    """
    if not result.response_future.is_schema_agreed:
        raise TargetUnavailable(
            f"The nodes do not agree yet that {name} was created.",
            "See that all nodes are up (nodetool describecluster), and start again.",
        )


def _column(
    table: TableName, field: pa.Field, key: Key, names: Mapping[str, str]
) -> ColumnMetadata:
    types: dict[str, str] = {}
    cql = ddl.suggest_type(table.keyspace, field.name, field.type, types)
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
    if field.name in key.columns:
        role = "partition" if field.name in key.partition else "clustering"
        cql = f"frozen<{cql}>" if cql.startswith("map<") else cql
    return ColumnMetadata(names.get(field.name, field.name), cql, role)


def _statement(name: TableName, columns: Sequence[ColumnMetadata]) -> str:
    lines = [f"  {quote(column.name)} {column.type}" for column in columns]
    parts = [
        ", ".join(quote(column.name) for column in columns if column.role == role)
        for role in ("partition", "clustering")
    ]
    key = ", ".join(filter(None, (f"({parts[0]})", parts[1])))
    return (
        ",\n".join([f"CREATE TABLE {name} (\n" + lines[0], *lines[1:], f"  PRIMARY KEY ({key})"])
        + "\n);"
    )
