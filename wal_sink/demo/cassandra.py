"""Cassandra in the demo: an embedded node. The control sends an INSERT for each row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pyspark.sql import Row

from wal_sink.demo.crash import PAUSING_TARGET
from wal_sink.demo.queries import CONTROL, FLIGHTS, Query
from wal_sink.demo.servers.cassandra import EmbeddedCassandra
from wal_sink.demo.stores import AtHalf, RowStore

_KEYSPACE = "travel"
_HOST = "127.0.0.1"
_IN_FLIGHT = 100
_READ_TIMEOUT_S = 60
_CONTROL = f"""
CREATE TABLE {_KEYSPACE}.{CONTROL.table} (
    key text PRIMARY KEY, origin text, day date, scheduled timestamp, carrier text, flight int
)
"""


class Cassandra(RowStore):
    """A row overwrites the row with the same primary key. A row with another key is an extra row."""

    target = "cassandra"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, notify: Callable[[str], None]) -> Iterator[Self]:
        """Start a node."""
        # The server warns of the cost of each count(*).
        logging.getLogger("cassandra.protocol").setLevel(logging.ERROR)
        node = EmbeddedCassandra(folder / "cassandra", heap="1g")
        notify(f"Starting {node.title}; the first start downloads its jars …")
        with node:
            yield cls(str(node.port), node, node.title)

    def create(self) -> None:
        """Make the keyspace and the control's table."""
        self.server.create_keyspace(_KEYSPACE)
        self.server.execute(_CONTROL)

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options for a table. Flights have a partition for each airport and day."""
        keys = {"keyColumns": "key"}
        if table == FLIGHTS.table:
            keys = {
                "keyColumns": "origin,day,scheduled,carrier,flight",
                "partitionColumns": "origin,day",
            }
        return {
            "createTable": "true",
            **keys,
            "target": PAUSING_TARGET,
            "cassandra.contactPoints": _HOST,
            "cassandra.port": self.address,
            "keyspace": _KEYSPACE,
            "table": table,
        }

    def insert(self, table: str, rows: Sequence[Row], at_half: AtHalf) -> None:
        """Send a prepared INSERT for each row, up to 100 at the same time."""
        from cassandra.cluster import Cluster  # noqa: PLC0415 - in tasks only
        from cassandra.concurrent import execute_concurrent_with_args  # noqa: PLC0415 - as above

        cluster = Cluster([_HOST], int(self.address))
        try:
            session = cluster.connect(_KEYSPACE)
            insert = session.prepare(
                f"INSERT INTO {table} (key, origin, day, scheduled, carrier, flight)"  # noqa: S608
                " VALUES (?, ?, ?, ?, ?, ?)"
            )
            middle = len(rows) // 2
            execute_concurrent_with_args(session, insert, rows[:middle], _IN_FLIGHT)
            at_half()
            execute_concurrent_with_args(session, insert, rows[middle:], _IN_FLIGHT)
        finally:
            cluster.shutdown()

    def count(self, table: str) -> int:
        """Count the rows of a table."""
        tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s"
        if (table,) not in self.server.execute(tables, [_KEYSPACE]):
            return 0
        (row,) = self._read(f"SELECT count(*) FROM {_KEYSPACE}.{table}")  # noqa: S608
        return int(row[0])

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Return the rows of the query's table. The driver reads a page at a time."""
        select = f"SELECT {', '.join(query.columns)} FROM {_KEYSPACE}.{query.table}"  # noqa: S608
        rows: Iterable[Sequence[Any]] = self._read(select)
        return rows

    def _read(self, select: str) -> Any:
        return self.server.session().execute(select, timeout=_READ_TIMEOUT_S)
