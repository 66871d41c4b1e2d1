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
from wal_sink.demo.stores import AtHalf, RowStore


class Postgresql(RowStore):
    """The tables have no key. A row that is written twice is two rows."""

    target = "postgresql"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, notify: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - temporary
        """Start a server."""
        server = Server({"timezone": "UTC"})
        notify(f"Starting {server.title} …")
        with server:
            yield cls(server.uri, server, server.title)

    def create(self) -> None:
        """Make the control's table."""
        self.server.execute(
            f"CREATE TABLE {CONTROL.table} (key text, origin text, day date, scheduled timestamptz,"
            " carrier text, flight int)"
        )

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options for a table."""
        return {
            "target": PAUSING_POSTGRESQL,
            "postgresql.uri": self.address,
            "table": table,
            "createTable": "true",
        }

    def insert(self, table: str, rows: Sequence[Row], at_half: AtHalf) -> None:
        """Copy the rows in one transaction. If the task is killed, the database rolls back."""
        import psycopg  # noqa: PLC0415 - in tasks only

        statement = f"COPY {table} (key, origin, day, scheduled, carrier, flight) FROM STDIN"
        with (
            psycopg.connect(self.address) as connection,
            connection.cursor() as cursor,
            cursor.copy(statement) as copy,
        ):
            for number, row in enumerate(rows):
                if number == len(rows) // 2:
                    at_half()
                copy.write_row(row)

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        if self.server.execute("SELECT to_regclass(%s)", [table]) == [(None,)]:
            return 0
        ((rows,),) = self.server.execute(f"SELECT count(*) FROM {table}")  # noqa: S608
        return int(rows)

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table."""
        select = f"SELECT {', '.join(query.columns)} FROM {query.table}"  # noqa: S608
        rows: Iterable[Sequence[Any]] = self.server.execute(select)
        return rows
