"""The contract of atomic targets over a real server: a table without a key, and one whose rows are staged."""

from __future__ import annotations

import pytest

from wal_sink.demo.servers.postgresql import Server
from wal_sink.targets.base import Target
from wal_sink.targets.postgresql import PostgresqlOptions, PostgresqlTarget
from wal_sink.testing.contracts.deletes import COLUMN, OPERATIONS
from wal_sink.testing.contracts.ledger import Stored
from wal_sink.testing.contracts.refusals import RefusalsContract
from wal_sink.testing.contracts.server_restart import RestartContract
from wal_sink.testing.contracts.transactional import SqlContract
from wal_sink.testing.contracts.unavailable import UNAVAILABLE, UnavailableContract


class TestAppend(RefusalsContract, SqlContract, RestartContract):
    """A table without a key; rows are copied into it."""

    most_kills = 12

    table = "k text, n bigint, v bigint, t text, d double precision"

    @pytest.fixture
    def target(self, postgresql: Server, schema: str) -> PostgresqlTarget:
        self.server = postgresql
        postgresql.execute(f"CREATE TABLE {schema}.rows ({self.table})")
        options = PostgresqlOptions(uri=postgresql.uri, table=f"{schema}.rows", lock_timeout=0.5)
        return PostgresqlTarget(options)

    def records(self, target: Target) -> list[Stored]:
        assert isinstance(target, PostgresqlTarget)
        return self.server.execute(f"SELECT k, n, v, t, d FROM {target.table_name}")

    def refuse_long(self, target: Target) -> None:
        assert isinstance(target, PostgresqlTarget)
        self.take_long(target)
        self.server.execute(
            f"ALTER TABLE {target.table_name} ADD CONSTRAINT short CHECK (length(t) <= 4000) NOT VALID"
        )

    def take_long(self, target: Target) -> None:
        assert isinstance(target, PostgresqlTarget)
        self.server.execute(f"ALTER TABLE {target.table_name} DROP CONSTRAINT IF EXISTS short")

    def restart(self, target: Target) -> None:
        self.server.kill()
        self.server.start()


class TestDeletes(UnavailableContract):
    """A table with a key, which is not the DataFrame's order."""

    @pytest.fixture
    def target(self, postgresql: Server, schema: str) -> PostgresqlTarget:
        self.server = postgresql
        postgresql.execute(
            f"CREATE TABLE {schema}.rows (k text, n int, v bigint, t text, PRIMARY KEY (n, k))"
        )
        options = PostgresqlOptions(
            uri=postgresql.uri,
            table=f"{schema}.rows",
            mode="upsert",
            operation_column=COLUMN,
            operations=OPERATIONS,
            unavailable_value=UNAVAILABLE,
        )
        return PostgresqlTarget(options)

    def records(self, target: Target) -> list[Stored]:
        assert isinstance(target, PostgresqlTarget)
        return self.server.execute(f"SELECT k, n, v, t, NULL FROM {target.table_name}")
