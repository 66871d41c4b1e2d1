"""The demo's PostgreSQL: a private server or a container; the control copies rows in transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from wal_sink.demo.database import Client, Database, LedgerRow
from wal_sink.demo.queries import QUERIES, Query
from wal_sink.testing import flights
from wal_sink.testing.crash import PAUSING_POSTGRESQL
from wal_sink.testing.servers import docker, postgresql
from wal_sink.testing.servers.postgresql import Server, choose

_TYPES = {"string": "text", "timestamp": "timestamptz", "date": "date", "int": "int"}
"""PostgreSQL's types of columns, by Spark's words for them."""


class Postgresql(Database):
    """No table has a key: rows are added, so a row that is written twice is there twice."""

    target = "postgresql"

    def __init__(self, server: Server, title: str) -> None:
        self._server = server
        self.title = title

    @classmethod
    @contextmanager
    def start(cls, folder: Path, say: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - Cassandra's
        """Start a server, in a folder of its own that goes with it."""
        chosen = choose("auto", postgresql.programs, docker.find)
        title = f"PostgreSQL, {chosen.said}"
        say(f"Starting {title} …")
        with chosen.server({"timezone": "UTC"}) as server:
            for query in QUERIES:
                server.execute(f"CREATE TABLE {query.table} ({', '.join(_columns(query))})")
            yield cls(server, title)

    @property
    def address(self) -> str:
        """The URI, with the password of this server alone."""
        return self._server.uri

    def count(self, table: str) -> int:
        """Count the rows of a table, as a reader sees them."""
        ((rows,),) = self._server.execute(f"SELECT count(*) FROM {table}")  # noqa: S608
        return int(rows)

    def rows(self, query: Query) -> Iterator[Sequence[Any]]:
        """Yield the rows of the query's table."""
        select = f"SELECT {', '.join(query.columns)} FROM {query.table}"  # noqa: S608
        yield from self._server.execute(select)

    def ledger(self, query_id: str) -> LedgerRow | None:
        """Read the ledger row of a query; the ledger's table is there once a query has made its plan."""
        if self._server.execute("SELECT to_regclass('wal_sink_ledger')") == [(None,)]:
            return None
        rows = self._server.execute(
            "SELECT flushed, begun FROM wal_sink_ledger WHERE query_id = %s", [query_id]
        )
        return LedgerRow(*rows[0]) if rows else None


class PostgresqlClient(Client):
    """Writes to the server."""

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options for one table."""
        return {"target": PAUSING_POSTGRESQL, "postgresql.uri": self.address, "table": table}

    def insert(self, table: str, rows: Sequence[Sequence[Any]], half: Callable[[], None]) -> None:
        """Copy the rows in a transaction of their own: a task that dies in it leaves nothing."""
        import psycopg  # noqa: PLC0415 - in tasks only

        statement = f"COPY {table} (key, origin, day, scheduled, carrier, flight) FROM STDIN"
        with (
            psycopg.connect(self.address) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for number, row in enumerate(rows):
                if number == len(rows) // 2:
                    half()
                copy.write_row(row)


def _columns(query: Query) -> Iterator[str]:
    """Yield the columns of a query's table, with their types."""
    types = dict(part.split() for part in flights.SCHEMA.split(", "))
    if "key" not in types and query.select[0].endswith(" AS key"):
        yield "key uuid"
    for name in query.columns:
        yield f"{name} {_TYPES[types[name]]}"
