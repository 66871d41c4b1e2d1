"""CQL that errors print, and the ledger's table."""

from __future__ import annotations

import pyarrow as pa

from wal_sink.targets.cassandra.names import qualified, quote
from wal_sink.targets.cassandra.options import TableName
from wal_sink.targets.cassandra.schema.suggest import suggest

LEDGER_COLUMNS = {
    "query_id": "text",
    "log_id": "text",
    "checkpoint": "text",
    "flushed": "bigint",
    "last_us": "bigint",
    "begun": "text",
    "last": "text",
}
"""The first is the primary key. README.md says what each means."""


def create_keyspace(keyspace: str) -> str:
    """Return a CREATE KEYSPACE to start from."""
    return (
        f"CREATE KEYSPACE {quote(keyspace)}\n"
        "  WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3};"
    )


def make_durable(keyspace: str) -> str:
    """Return the ALTER KEYSPACE that turns the commit log on."""
    return f"Run: ALTER KEYSPACE {quote(keyspace)} WITH durable_writes = true;"


def create_table(name: TableName, schema: pa.Schema) -> str:
    """Return a CREATE TABLE for a DataFrame; the key is a guess, and says so."""
    lines, types = [], dict[str, str]()
    for field in schema:
        cql = suggest(name.keyspace, field.name, field.type, types)
        lines.append(
            f"  {quote(field.name)} {cql},"
            if cql
            else f"  -- {quote(field.name)}: {field.type} is not supported yet"
        )
    first = quote(schema.names[0]) if len(schema) else "…"
    return "\n".join(
        [
            *types.values(),
            f"CREATE TABLE {qualified(*name)} (",
            *lines,
            f"  PRIMARY KEY ({first})  -- choose: rows with equal keys overwrite each other",
            ");",
        ]
    )


def create_ledger(name: TableName) -> str:
    """Return the CREATE TABLE of the ledger."""
    columns = ", ".join(
        f"{column} {cql}" + (" PRIMARY KEY" if column == "query_id" else "")
        for column, cql in LEDGER_COLUMNS.items()
    )
    return f"CREATE TABLE IF NOT EXISTS {qualified(*name)} ({columns})"
