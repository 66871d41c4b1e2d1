"""The contract suites over each SQL database: a table without a key, and a table with a key."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import ClassVar

import pytest

from tests.sql.stores import (
    APPEND,
    KEYED,
    DuckDb,
    Maria,
    Postgresql,
    Sqlite,
    Store,
    Unknown,
    new_store,
)
from wal_sink.errors import SchemaMismatch, TargetRefused, TargetUnavailable
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Target
from wal_sink.testing.contracts import (
    RefusalsContract,
    RestartContract,
    SqlContract,
    UnavailableContract,
)
from wal_sink.testing.contracts.ledger import Stored, Suite, finish, following, row_of
from wal_sink.testing.contracts.operations import COLUMN, OPERATIONS, UNAVAILABLE
from wal_sink.testing.contracts.rows import ROWS, Record, deliver


class OverStore(Suite):
    """Makes the target of a store. Each suite derives from this class."""

    store_type: type[Store]
    store: Store
    kind: type[Target] | None = None
    """The class of the target; None: that of the store."""
    ddl = APPEND
    options: ClassVar[dict[str, str]] = {}

    @pytest.fixture
    def target(self, request: pytest.FixtureRequest, tmp_path: Path) -> Target:
        self.store = new_store(self.store_type, request, tmp_path)
        self.store.execute(self.ddl)
        target = self.store.target(**self.options)
        return self.kind(target.options) if self.kind else target


class RowsContract(OverStore, SqlContract):
    """A table without a key."""

    def records(self, target: Target) -> list[Stored]:
        return self.store.execute("SELECT k, n, v, t, d FROM t")


class AppendContract(RefusalsContract, RowsContract):
    """A table without a key, in a database that has savepoints."""

    def refuse_long(self, target: Target) -> None:
        self.store.refuse_long()

    def accept_long(self, target: Target) -> None:
        self.store.accept_long()

    def restart(self, target: Target) -> None:
        assert isinstance(self.store, Maria | Postgresql)
        self.store.server.kill()
        self.store.server.start()


class KeyedContract(OverStore, UnavailableContract):
    """A table with a key, in another order than the columns of the DataFrame."""

    ddl = KEYED
    options: ClassVar = {
        "mode": "upsert",
        "operation_column": COLUMN,
        "operations": OPERATIONS,
        "unavailable_value": UNAVAILABLE,
    }

    def records(self, target: Target) -> list[Stored]:
        return self.store.execute("SELECT k, n, v, t, NULL FROM t")


class TestSqliteAppend(AppendContract):
    """SQLite."""

    store_type = Sqlite

    def test_rows_for_an_altered_table_raise_schema_mismatch(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The error blames the table, and not the rows that the server refuses."""
        rows = self.slice(target, plan, ROWS)
        deliver(session, plan, rows)
        self.store.execute("DROP TABLE t")
        self.store.execute(f"{APPEND.removesuffix(')')}, x INTEGER NOT NULL)")
        with pytest.raises(SchemaMismatch, match="column x is new and takes no null"):
            session.write(plan, rows._replace(epoch=1))

    def test_commit_blocked_by_a_reader_names_the_lock(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """SQLite leaves the transaction open. Its ledger row says that the window is finished."""
        assert isinstance(self.store, Sqlite)
        rows = self.slice(target, plan, ROWS)
        row = row_of(session)
        session.write(plan, rows)
        with contextlib.closing(sqlite3.connect(self.store.path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT k FROM t").fetchall()
            with pytest.raises(TargetUnavailable, match="Another session holds a lock on t"):
                finish(session, row, following(row))
        with target.connect(query_id) as other:
            assert row_of(session) == row_of(other) == row
        session.write(plan, rows)
        assert finish(session, row, following(row)) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)


class TestSqliteDeletes(KeyedContract):
    """SQLite."""

    store_type = Sqlite


class TestDuckDbAppend(RowsContract):
    """DuckDB, which has no savepoints."""

    store_type = DuckDb
    most_kills = 4

    def test_refused_row_stops_the_flush(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The error names the slice of the row, and nothing of the window stays."""
        written: list[Record] = [("a", 1, 1, "x"), ("b", 2, 2, "y")]
        rows = self.slice(target, plan, written)
        deliver(session, plan, rows)
        self.store.execute("CREATE UNIQUE INDEX u ON t (k)")
        with pytest.raises(TargetRefused, match=r"t refuses one of \d+ rows of epoch 1"):
            deliver(session, plan, rows._replace(epoch=1))
        self.assert_records(target, written)


class TestDuckDbDeletes(KeyedContract):
    """DuckDB, which has no savepoints."""

    store_type = DuckDb

    def test_new_row_with_unavailable_cell_is_refused(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The flush stops."""
        rows = self.slice(target, plan, [("u", "new", 1, 2, UNAVAILABLE)])
        with pytest.raises(TargetRefused, match="unavailableValue"):
            deliver(session, plan, rows)
        assert self.rows(target) == {}


@pytest.mark.mariadb
class TestMariaDbAppend(AppendContract, RestartContract):
    """MariaDB, whose server is killed."""

    store_type = Maria
    most_kills = 8


@pytest.mark.mariadb
class TestMariaDbDeletes(KeyedContract):
    """MariaDB."""

    store_type = Maria


@pytest.mark.postgresql
class TestPostgresqlAppend(AppendContract, RestartContract):
    """PostgreSQL, whose server is killed."""

    store_type = Postgresql
    most_kills = 12


@pytest.mark.postgresql
class TestPostgresqlDeletes(KeyedContract):
    """PostgreSQL."""

    store_type = Postgresql


@pytest.mark.postgresql
class TestUnknownAppend(AppendContract):
    """A database without a dialect of its own."""

    store_type = Unknown
    most_kills = 8
