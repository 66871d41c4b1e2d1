"""The demo's PostgreSQL: a private server; the control copies rows in transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pyspark.sql import Row

from wal_sink.demo.crash import PAUSING_POSTGRESQL
from wal_sink.demo.queries import CONTROL, Query
from wal_sink.demo.servers.postgresql import Server
from wal_sink.demo.stores import Half, RowStore


class Postgresql(RowStore):
    """No table has a key: rows are added, so a row that is written twice is there twice."""

    target = "postgresql"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, say: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - Cassandra's
        """Start a server, in a folder of its own that goes with it."""
        server = Server({"timezone": "UTC"})
        say(f"Starting {server.title} …")
        with server:
            yield cls(server.uri, server, server.title)

    def create(self) -> None:
        """Make the control's table."""
        self.server.execute(
            f"CREATE TABLE {CONTROL.table} (key text, origin text, day date, scheduled timestamptz,"
            " carrier text, flight int)"
        )

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options for one table, which the start makes."""
        return {
            "target": PAUSING_POSTGRESQL,
            "postgresql.uri": self.address,
            "table": table,
            "createTable": "true",
        }

    def insert(self, table: str, rows: Sequence[Row], half: Half) -> None:
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

    def count(self, table: str) -> int:
        """Count the rows of a table, as a reader sees them."""
        if self.server.execute("SELECT to_regclass(%s)", [table]) == [(None,)]:
            return 0
        ((rows,),) = self.server.execute(f"SELECT count(*) FROM {table}")  # noqa: S608
        return int(rows)

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table."""
        select = f"SELECT {', '.join(query.columns)} FROM {query.table}"  # noqa: S608
        rows: Iterable[Sequence[Any]] = self.server.execute(select)
        return rows
