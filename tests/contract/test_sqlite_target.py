"""The contract of atomic targets over the example that `docs/targets.md` grows from."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from sqlite_target import SqliteOptions, SqliteTarget
from wal_sink.errors import SchemaMismatch
from wal_sink.model.ledger import Outcome, Owner
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Target
from wal_sink.targets.compared import Compares
from wal_sink.testing.contracts.ledger import begun_window
from wal_sink.testing.contracts.rows import Record
from wal_sink.testing.contracts.sql import SqlContract


class TestSqlite(SqlContract):
    """A table without a key."""

    @pytest.fixture
    def target(self, tmp_path: Path) -> SqliteTarget:
        path = tmp_path / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE t (k TEXT, n INTEGER, v INTEGER, t TEXT)")
        return SqliteTarget(SqliteOptions(path=str(path), table="t"))

    def records(self, target: Target) -> list[Record]:
        assert isinstance(target, SqliteTarget)
        with sqlite3.connect(target.options.path) as connection:
            return connection.execute("SELECT k, n, v, t FROM t").fetchall()

    def test_a_comparison_sees_an_altered_table(
        self, target: SqliteTarget, plan: Plan, owner: Owner
    ) -> None:
        """It writes nothing, and leaves no transaction that would hold up others."""
        with target.connect(owner) as session, target.connect(owner) as other:
            assert isinstance(session, Compares)
            session.compare(plan)
            other.create(-1)
            with sqlite3.connect(target.options.path) as connection:
                connection.execute("ALTER TABLE t DROP COLUMN v")
            with pytest.raises(SchemaMismatch, match="v of table"):
                session.compare(plan)
            assert other.begin(begun_window(0)) is Outcome.APPLIED
