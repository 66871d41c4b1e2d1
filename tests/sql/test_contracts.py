"""The contract suites over each SQL database: a table without a key, and a table with a key."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from tests.sql.mariadb import MariaDb
from tests.sql.stores import APPEND, KEYED, DuckDb, Maria, Postgresql, Sqlite, Store, Unknown
from wal_sink.demo.servers.postgresql import Server
from wal_sink.errors import SchemaMismatch, TargetRefused
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Target
from wal_sink.testing.contracts.deletes import COLUMN, OPERATIONS
from wal_sink.testing.contracts.ledger import Stored, finish, following, row_of
from wal_sink.testing.contracts.refusals import RefusalsContract
from wal_sink.testing.contracts.rows import ROWS, Record, deliver
from wal_sink.testing.contracts.server_restart import RestartContract
from wal_sink.testing.contracts.transactional import SqlContract
from wal_sink.testing.contracts.unavailable import UNAVAILABLE, UnavailableContract


class RowsContract(SqlContract):
    """A table without a key."""

    store: Store
    kind: type[Target] | None = None
    """The class of the target; None: that of the store."""

    def made(self, store: Store) -> Target:
        self.store = store
        store.execute(APPEND)
        target = store.target()
        return self.kind(target.options) if self.kind else target

    def records(self, target: Target) -> list[Stored]:
        return self.store.execute("SELECT k, n, v, t, d FROM t")


class AppendContract(RefusalsContract, RowsContract):
    """A table without a key, in a database that has savepoints."""

    def refuse_long(self, target: Target) -> None:
        self.store.refuse_long()

    def take_long(self, target: Target) -> None:
        self.store.take_long()

    def restart(self, target: Target) -> None:
        assert isinstance(self.store, Maria | Postgresql)
        self.store.server.kill()
        self.store.server.start()


class KeyedContract(UnavailableContract):
    """A table with a key, in another order than the columns of the DataFrame."""

    store: Store
    kind: type[Target] | None = None

    def made(self, store: Store) -> Target:
        self.store = store
        store.execute(KEYED)
        target = store.target(
            mode="upsert",
            operation_column=COLUMN,
            operations=OPERATIONS,
            unavailable_value=UNAVAILABLE,
        )
        return self.kind(target.options) if self.kind else target

    def records(self, target: Target) -> list[Stored]:
        return self.store.execute("SELECT k, n, v, t, NULL FROM t")


class OnSqlite:
    """Gives the store."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return self.made(Sqlite(tmp_path))  # type: ignore[attr-defined,no-any-return]


class OnDuckDb:
    """Gives the store."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> Target:
        return self.made(DuckDb(tmp_path))  # type: ignore[attr-defined,no-any-return]


class OnMariaDb:
    """Gives the store."""

    @pytest.fixture
    def target(self, mariadb: MariaDb, database: str) -> Target:
        return self.made(Maria(mariadb, database))  # type: ignore[attr-defined,no-any-return]


class OnPostgresql:
    """Gives the store."""

    store_type: type[Postgresql] = Postgresql

    @pytest.fixture
    def target(self, postgresql: Server, schema: str) -> Target:
        return self.made(self.store_type(postgresql, schema))  # type: ignore[attr-defined,no-any-return]


class TestSqliteAppend(OnSqlite, AppendContract):
    """SQLite."""

    def test_altered_table_refuses_no_row(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The error blames the table, and not the rows that the server refuses."""
        rows = self.slice(target, plan, ROWS)
        deliver(session, plan, rows)
        self.store.execute("DROP TABLE t")
        self.store.execute(f"{APPEND.removesuffix(')')}, x INTEGER NOT NULL)")
        with pytest.raises(SchemaMismatch, match="column x is new and takes no null"):
            session.write(plan, rows._replace(epoch=1))

    def test_commit_blocked_by_a_reader_is_unknown(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """SQLite leaves the transaction open. Its ledger row says that the window is finished."""
        assert isinstance(self.store, Sqlite)
        rows = self.slice(target, plan, ROWS)
        for blocked in (True, False):
            row = row_of(session)
            session.write(plan, rows)
            with contextlib.closing(sqlite3.connect(self.store.path)) as reader:
                reader.execute("BEGIN")
                if blocked:
                    reader.execute("SELECT k FROM t").fetchall()
                outcome = finish(session, row, following(row))
            assert outcome is (Outcome.UNKNOWN if blocked else Outcome.APPLIED)
            assert row_of(session).epoch == (-1 if blocked else 0)
            with target.connect(query_id) as other:
                assert row_of(session) == row_of(other)
        assert len(self.records(target)) == len(ROWS)


class TestSqliteDeletes(OnSqlite, KeyedContract):
    """SQLite."""


class TestDuckDbAppend(OnDuckDb, RowsContract):
    """DuckDB, which has no savepoints."""

    most_kills = 4

    def test_refused_row_stops_the_flush(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The error names the slice of the row, and nothing of the window stays."""
        written: list[Record] = [("a", 1, 1, "x"), ("b", 2, 2, "y")]
        rows = self.slice(target, plan, written)
        deliver(session, plan, rows)
        self.store.execute("CREATE UNIQUE INDEX u ON t (k)")
        with pytest.raises(TargetRefused, match=r"t refuses one of the \d+ rows after it, or"):
            deliver(session, plan, rows._replace(epoch=1))
        self.assert_records(target, written)


class TestDuckDbDeletes(OnDuckDb, KeyedContract):
    """DuckDB, which has no savepoints."""

    def test_new_row_with_unavailable_cell_is_refused(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """The flush stops, as DuckDB has no savepoints."""
        rows = self.slice(target, plan, [("u", "new", 1, 2, UNAVAILABLE)])
        with pytest.raises(TargetRefused, match="unavailableValue"):
            deliver(session, plan, rows)
        assert self.rows(target) == {}


class TestMariaDbAppend(OnMariaDb, AppendContract, RestartContract):
    """MariaDB, whose server is killed."""

    most_kills = 8


class TestMariaDbDeletes(OnMariaDb, KeyedContract):
    """MariaDB."""


class TestPostgresqlAppend(OnPostgresql, AppendContract, RestartContract):
    """PostgreSQL, whose server is killed."""

    most_kills = 12


class TestPostgresqlDeletes(OnPostgresql, KeyedContract):
    """PostgreSQL."""


class TestUnknownAppend(OnPostgresql, AppendContract):
    """A database without a dialect of its own."""

    store_type = Unknown
    most_kills = 8
