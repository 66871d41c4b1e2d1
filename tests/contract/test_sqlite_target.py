"""The contract of SQL targets over the example of docs/targets.md."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from sqlite_target import SqliteOptions, SqliteTarget
from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan
from wal_sink.targets.base import ErrorClass, Session, Target
from wal_sink.targets.sql.session import SqlSession
from wal_sink.testing.contracts import RestartContract, SqlContract
from wal_sink.testing.contracts.kills import PlayedKills
from wal_sink.testing.contracts.ledger import Stored, Table, create, new_query
from wal_sink.testing.contracts.rows import deliver
from wal_sink.testing.faults import Faults


class Served(SqliteTarget):
    """A SQLite target whose connections are all lost at a restart, as those of a server are."""

    session: type[SqlSession] = SqlSession
    connections: ClassVar[list[sqlite3.Connection]] = []

    def open(self) -> sqlite3.Connection:
        self.connections.append(super().open())
        return self.connections[-1]

    def connect(self, query_id: str) -> Session:
        return self.session(self, self._open(), query_id)

    def classify(self, error: Exception) -> ErrorClass:
        closed = isinstance(error, sqlite3.ProgrammingError) and "closed" in str(error)
        return "retry" if closed else super().classify(error)

    def restart(self) -> None:
        while self.connections:
            self.connections.pop().close()


class TestSqlite(SqlContract, RestartContract):
    kind: type[Served] = Served

    @pytest.fixture
    def target(self, tmp_path: Path) -> SqliteTarget:
        path = tmp_path / "shop.db"
        with sqlite3.connect(path) as connection:
            connection.execute("CREATE TABLE t (k TEXT, n INTEGER, v INTEGER, t TEXT, d REAL)")
        return self.kind(SqliteOptions(path=str(path), table="t"))

    def restart(self, target: Target) -> None:
        assert isinstance(target, Served)
        target.restart()

    def records(self, target: Target) -> list[Stored]:
        assert isinstance(target, SqliteTarget)
        with sqlite3.connect(target.options.path) as connection:
            return connection.execute("SELECT k, n, v, t, d FROM t").fetchall()

    def test_compare_of_altered_table_raises(
        self, target: SqliteTarget, plan: Plan, query_id: str
    ) -> None:
        """`compare` raises for a lost column, and leaves no transaction that blocks other sessions."""
        with target.connect(query_id) as session, target.connect(query_id) as other:
            session.compare(plan)
            create(other, query_id)
            with sqlite3.connect(target.options.path) as connection:
                connection.execute("ALTER TABLE t DROP COLUMN v")
            with pytest.raises(SchemaMismatch, match="column v is gone"):
                session.compare(plan)
            another = new_query()
            with target.connect(another) as third:
                create(third, another)
                deliver(third, plan)


def test_lock_is_retried_and_missing_table_is_fatal(tmp_path: Path) -> None:
    """Both errors are an `OperationalError`; the target retries only the lock."""
    path = str(tmp_path / "shop.db")
    target = SqliteTarget(SqliteOptions(path=path, table="t"))
    with contextlib.closing(target.open()) as one, contextlib.closing(target.open()) as other:
        with pytest.raises(sqlite3.OperationalError, match="no such table") as missing:
            one.execute("SELECT * FROM t")
        assert target.classify(missing.value) == "fatal"
        one.execute("PRAGMA busy_timeout = 1")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked") as locked:
            one.execute("BEGIN EXCLUSIVE")
        assert target.classify(locked.value) == "retry"


class FewKills(TestSqlite):
    """The suite with a limit of kills, which notes the operations with a fault."""

    def __init__(self, most_kills: int) -> None:
        self.most_kills = most_kills
        self.met: list[str] = []

    def _play(self, query: PlayedKills, faults: Faults, expected: Table) -> None:
        super()._play(query, faults, expected)
        if faults.injected:
            self.met.append(faults.injected)


class TestFewKills:
    target = TestSqlite.target
    kind = TestSqlite.kind

    @pytest.mark.parametrize("most", [1, 5])
    @pytest.mark.parametrize(
        "test",
        [
            FewKills.test_flusher_that_dies_anywhere_loses_nothing,
            FewKills.test_answer_that_is_lost_anywhere_loses_nothing,
        ],
    )
    def test_suite_with_limited_kills_keeps_kill_in_finish(
        self, target: SqliteTarget, test: Callable[[FewKills, Target], None], most: int
    ) -> None:
        """A limit of one kill keeps the kill in `finish`, where rows and ledger change together."""
        suite = FewKills(most)
        target.plan(suite.frame([]).schema, "key")
        test(suite, target)
        assert "finish 1" in suite.met
        assert len(suite.met) <= most
