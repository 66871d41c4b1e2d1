"""A target whose rows count when `finish` takes effect: what only such a one can lose or double."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol import raw
from tests.protocol.adding_world import AddingWorld
from tests.protocol.engine import NOW_US, flush, until_rest
from tests.protocol.operators import query
from wal_sink.admin.rewind import plan_rewind
from wal_sink.admin.skip import plan_skip
from wal_sink.errors import SchemaMismatch, TargetUnavailable
from wal_sink.flush.flusher import Flusher
from wal_sink.model.ledger import LedgerState, Outcome, Window
from wal_sink.targets.sql.session import SqlSession
from wal_sink.testing.faults import Faults

ROWS = [("a", 1), ("b", 2)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AddingWorld]:
    """A query with one epoch that is checkpointed, and not flushed."""
    world = AddingWorld(tmp_path)
    world.run().batch(ROWS)
    yield world
    world.end_sessions()


def steps_until_begun(world: AddingWorld) -> Flusher:
    """Return a flusher that has begun epoch 0 and written nothing: its connection broke."""
    flusher = world.flusher(Faults(at=0, error=ConnectionError, matching="start"))
    with pytest.raises(TargetUnavailable):
        until_rest(flusher)
    flusher.close()
    assert world.begun.first == 0
    return flusher


def test_a_begun_epoch_that_is_given_up_has_no_row_in_the_table(world: AddingWorld) -> None:
    """Rows count with `finish` alone, so nothing is to be known of those in the table."""
    steps_until_begun(world)
    place = open_backend(f"memory://{world.query_id}/given-up")
    plan = plan_skip(query(world), world.target, 0, place, NOW_US, begun=False)
    assert "none is in the table" in plan.consequences
    assert not plan.carry_out(NOW_US).rows_possibly_in_target
    until_rest(world.flusher())
    assert world.visible() == []


def test_rule_15_a_table_that_was_altered_between_two_windows_takes_no_rows(
    world: AddingWorld,
) -> None:
    """Also over a connection that has compared it: what is encoded for the old types may fit the new ones."""
    flusher = world.flusher()
    until_rest(flusher)
    with sqlite3.connect(world.path) as connection:
        connection.executescript("DROP TABLE t; CREATE TABLE t (k TEXT, v REAL)")
    connection.close()
    world.run().batch(ROWS)
    with pytest.raises(SchemaMismatch, match=r"column v was INTEGER"):
        until_rest(flusher)
    assert world.visible() == []
    flusher.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_rule_16_an_answer_to_commit_that_is_lost_is_read_back(
    world: AddingWorld, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Whether the transaction has ended or not: without it, all rows are written again with `finish`."""
    commits: list[Window] = []
    asked: list[str] = []
    real, start, commit = SqlSession._conditional, SqlSession.start, SqlSession.commit

    def noted_start(self: SqlSession, window: Window) -> None:
        asked.append("start")
        start(self, window)

    def noted_commit(self: SqlSession, seen: LedgerState, new: LedgerState) -> Outcome:
        asked.append("commit")
        return commit(self, seen, new)

    def lossy(self: SqlSession, update: object) -> Outcome:
        window = self._window
        if window is None or commits:
            return real(self, update)  # type: ignore[arg-type]
        commits.append(window)
        if when == "after":
            real(self, update)  # type: ignore[arg-type]
        else:
            self._roll_back()
        return Outcome.UNKNOWN

    monkeypatch.setattr(SqlSession, "_conditional", lossy)
    monkeypatch.setattr(SqlSession, "start", noted_start)
    monkeypatch.setattr(SqlSession, "commit", noted_commit)
    flush(world.flusher())
    assert commits
    assert asked == ["start", "commit"] * (1 if when == "after" else 2)
    raw.complete(world, 1, when)


def test_rule_16_a_transaction_that_the_database_lost_is_written_again(
    world: AddingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had acknowledged COMMIT, and fell back to a replica that lagged behind: no shadowed ledger."""
    lost: list[LedgerState] = []
    real = SqlSession.commit

    def commit(self: SqlSession, seen: LedgerState, new: LedgerState) -> Outcome:
        if lost:
            return real(self, seen, new)
        lost.append(new)
        self._roll_back()
        return Outcome.APPLIED

    monkeypatch.setattr(SqlSession, "commit", commit)
    flusher = world.flusher()
    with pytest.raises(TargetUnavailable, match="Epoch 0 could not be finished"):
        until_rest(flusher)
    flush(flusher)
    assert lost
    raw.complete(world, 1, "")


def test_rule_15_a_flusher_that_is_interrupted_leaves_no_lock(world: AddingWorld) -> None:
    """Its transaction holds the ledger row: another flusher has to get it at once."""
    flusher = steps_until_begun(world)
    flusher.interrupt()
    flusher.run_once()
    assert world.visible() == []
    flush(world.flusher())
    raw.complete(world, 1, "")
    flusher.close()


def test_a_commit_that_fails_for_good_is_refused_with_its_reason(world: AddingWorld) -> None:
    """A constraint that is checked at COMMIT: the mark does not move, and the operator reads why."""
    connection = sqlite3.connect(world.path)
    connection.executescript(
        "ALTER TABLE t RENAME TO old; CREATE TABLE keys (k TEXT PRIMARY KEY);"
        "CREATE TABLE t (k TEXT REFERENCES keys DEFERRABLE INITIALLY DEFERRED, v INTEGER);"
    )
    connection.close()
    target = world.target
    opened = target.open  # type: ignore[attr-defined]

    def strict() -> sqlite3.Connection:
        connection: sqlite3.Connection = opened()
        connection.execute("PRAGMA foreign_keys = ON")
        return connection

    target.open = strict  # type: ignore[attr-defined]
    with pytest.raises(Exception, match="FOREIGN KEY constraint failed"):
        until_rest(world.flusher())
    assert (world.state.flushed, world.visible()) == (-1, [])


def test_a_rewind_says_that_rows_are_added_again(world: AddingWorld) -> None:
    """The operator has to know: nothing in the table tells a repeated row from another one."""
    world.retention_s = 3600
    flush(world.flusher())
    plan = plan_rewind(query(world), world.target, -1, NOW_US)
    assert "come twice unless the table, too, is set back to epoch -1" in plan.consequences
    plan.carry_out(NOW_US)
    flush(world.flusher())
    assert sorted(world.visible()) == sorted(ROWS * 2)
