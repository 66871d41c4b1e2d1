"""The demo's Cassandra: an embedded node; the control sends one INSERT for each row."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from wal_sink.demo.database import Client, Database, LedgerRow
from wal_sink.demo.queries import CONTROL, TENTH, Query
from wal_sink.testing import flights
from wal_sink.testing.crash import PAUSING_TARGET
from wal_sink.testing.servers.cassandra import EmbeddedCassandra

_KEYSPACE = "travel"
_HOST = "127.0.0.1"
_IN_FLIGHT = 100
_READ_TIMEOUT_S = 60
_TENTH = f"""
CREATE TABLE {_KEYSPACE}.{{}} (
    key uuid PRIMARY KEY, origin text, day date, scheduled timestamp, carrier text, flight int
)
"""
_TABLES = (flights.TABLE, _TENTH.format(TENTH.table), _TENTH.format(CONTROL.table))


class Cassandra(Database):
    """Keys are primary keys: a row of the same key overwrites, and one of another key stays for ever."""

    target = "cassandra"

    def __init__(self, node: EmbeddedCassandra) -> None:
        self._node = node
        self.title = node.title

    @classmethod
    @contextmanager
    def start(cls, folder: Path, say: Callable[[str], None]) -> Iterator[Self]:
        """Start a node."""
        # The server warns of each count(*), of whose cost the demo is aware.
        logging.getLogger("cassandra.protocol").setLevel(logging.ERROR)
        node = EmbeddedCassandra(folder / "cassandra", heap="1g")
        say(f"Starting {node.title}; the first time its jars are downloaded …")
        with node:
            node.create_keyspace(_KEYSPACE)
            for table in _TABLES:
                node.execute(table)
            yield cls(node)

    @property
    def address(self) -> str:
        """The node's CQL port, as text."""
        return str(self._node.port)

    def count(self, table: str) -> int:
        """Count the rows of a table, as a reader sees them."""
        (row,) = self._read(f"SELECT count(*) FROM {_KEYSPACE}.{table}")  # noqa: S608
        return int(row[0])

    def rows(self, query: Query) -> Iterator[Sequence[Any]]:
        """Yield the rows of the query's table; the driver reads a page at a time."""
        select = f"SELECT {', '.join(query.columns)} FROM {_KEYSPACE}.{query.table}"  # noqa: S608
        yield from self._read(select)

    def ledger(self, query_id: str) -> LedgerRow | None:
        """Read the ledger row of a query."""
        rows = self._node.execute(
            f"SELECT flushed, begun FROM {_KEYSPACE}.wal_sink_ledger WHERE query_id = %s",  # noqa: S608
            [query_id],
        )
        return LedgerRow(rows[0].flushed, rows[0].begun) if rows else None

    def _read(self, select: str) -> Any:
        return self._node.session().execute(select, timeout=_READ_TIMEOUT_S)


class CassandraClient(Client):
    """Writes to the node."""

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options for one table."""
        return {
            "target": PAUSING_TARGET,
            "cassandra.contactPoints": _HOST,
            "cassandra.port": self.address,
            "keyspace": _KEYSPACE,
            "table": table,
        }

    def insert(self, table: str, rows: Sequence[Sequence[Any]], half: Callable[[], None]) -> None:
        """Send a prepared INSERT for each row, many at a time."""
        from cassandra.cluster import Cluster  # noqa: PLC0415 - in tasks only
        from cassandra.concurrent import execute_concurrent_with_args  # noqa: PLC0415 - as above

        values = [(uuid.UUID(key), *others) for key, *others in rows]
        cluster = Cluster([_HOST], int(self.address))
        try:
            session = cluster.connect(_KEYSPACE)
            insert = session.prepare(
                f"INSERT INTO {table} (key, origin, day, scheduled, carrier, flight)"  # noqa: S608
                " VALUES (?, ?, ?, ?, ?, ?)"
            )
            middle = len(values) // 2
            execute_concurrent_with_args(session, insert, values[:middle], _IN_FLIGHT)
            half()
            execute_concurrent_with_args(session, insert, values[middle:], _IN_FLIGHT)
        finally:
            cluster.shutdown()
