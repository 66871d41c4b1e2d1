"""A query whose target is a table of a real PostgreSQL; checkpoint and log are in memory."""

from __future__ import annotations

import psycopg

from tests.protocol.engine import World, in_memory
from wal_sink.demo.servers.postgresql import Server
from wal_sink.model.ledger import LedgerRow
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget


class PostgresqlWorld(World):
    """Rows are added to a table without a key, in a schema of its own.

    :param port: where the target connects; None: the server itself.
    """

    adds = True

    def __init__(self, server: Server, schema: str, port: int | None = None) -> None:
        self.server = server
        self._table = f"{schema}.rows"
        server.execute(f"CREATE TABLE {self._table} (k text, v bigint)")
        uri = server.uri.replace(f":{server.port}/", f":{port or server.port}/")
        options = PostgresqlOptions(uri=uri, table=self._table, lock_timeout=0.3, request_timeout=2)
        super().__init__(*in_memory(), PostgresqlTarget(options))

    def visible(self) -> list[tuple[str, int]]:
        """Read the table as another client does."""
        return self.server.execute(f"SELECT k, v FROM {self._table}")

    def ledger(self) -> LedgerRow | None:
        """Read the ledger as another client does; there is none before the first plan."""
        with self.target.connect(self.query_id) as session:
            try:
                return session.read()
            except psycopg.errors.UndefinedTable:
                return None
