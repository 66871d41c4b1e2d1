"""Targets whose rows are staged, or added in a transaction: what only such can lose or double."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import pytest

from tests.flush.jobs import Job
from tests.kills.every_fault import When, every_fault
from tests.protocol import raw
from tests.protocol.adding import AddingTarget, AddingWorld, Pair, StagingSession, StagingTarget
from tests.protocol.cases import covered
from tests.protocol.engine import flush, until_idle
from wal_sink.errors import TargetUnavailable
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.window import Window
from wal_sink.flush.write import WriteRows
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.targets.base import Target
from wal_sink.testing.faults import Faults, FaultyTarget

pytestmark = pytest.mark.rule("repeatable")

PARTS = [[(f"{part}-{n}", n) for n in range(20)] for part in range(3)]


@pytest.mark.parametrize("kind", [AddingTarget, StagingTarget])
@pytest.mark.parametrize("when", get_args(When))
@pytest.mark.parametrize("role", ["flusher", "flusher of a backlog"])
def test_appended_rows_are_in_the_table_once_despite_faults(
    role: str, when: When, kind: type[AddingTarget]
) -> None:
    """The target appends rows, so a row that is written twice is visible twice."""
    hit = every_fault(lambda: AddingWorld(kind), role, when)
    covered(f"fault at every operation of a {role}, {kind.__name__}, {when}", f"{len(hit)}")


@pytest.mark.rule("ledger")
@pytest.mark.parametrize("kind", [AddingTarget, StagingTarget])
def test_rows_are_not_sent_again_after_lost_commit_answer(kind: type[AddingTarget]) -> None:
    world = AddingWorld(kind)
    world.run().batch([("a", 1)])
    faults = Faults(0, "after", ConnectionError, "finish ")
    flusher = world.flusher(faults)
    with pytest.raises(TargetUnavailable):
        until_idle(flusher)
    flusher.close()
    writes = sum(name.startswith("write") for name in faults.operations)
    flush(flusher)
    assert writes == sum(name.startswith("write") for name in faults.operations)
    raw.complete(world, 1, "")


@pytest.fixture
def staging() -> AddingWorld:
    """A query with one completed epoch of three partitions."""
    world = AddingWorld(StagingTarget)
    world.run().batch(*PARTS)
    return world


def staged(world: AddingWorld) -> dict[bytes, list[Pair]]:
    assert isinstance(world.adding, StagingTarget)
    return world.adding.staged


def by_tasks(world: AddingWorld, target: Target | None = None, *, twice: bool = False) -> WriteRows:
    """Write windows by a job, and check that nothing of them is visible yet."""
    job = Job(target, twice=twice)

    def write(window: Window, connection: TargetConnection, reporter: Reporter) -> bool:
        job(window, connection, reporter)
        assert world.visible() == [], "a reader sees half an epoch"
        return True

    return write


@pytest.mark.parametrize("twice", [False, True])
def test_rows_staged_by_tasks_are_added_once(staging: AddingWorld, *, twice: bool) -> None:
    """The rows that the first of two copies of a task has staged stay invisible."""
    flusher = staging.flusher()
    flusher._write_rows = by_tasks(staging, twice=twice)
    until_idle(flusher)
    flusher.close()
    raw.complete(staging, 1, "")


def test_rows_staged_before_a_task_failed_are_discarded(staging: AddingWorld) -> None:
    """The next try stages all rows again."""
    broken = FaultyTarget(staging.adding, Faults(3, error=ConnectionError, matching="write"))
    flusher = staging.flusher()
    flusher._write_rows = by_tasks(staging, broken)
    with pytest.raises(TargetUnavailable):
        until_idle(flusher)
    assert staged(staging) == {}
    flush(flusher)
    raw.complete(staging, 1, "")


def test_flusher_that_is_interrupted_discards_what_it_staged(staging: AddingWorld) -> None:
    flusher = staging.flusher()
    write = by_tasks(staging)

    def interrupted(window: Window, connection: TargetConnection, reporter: Reporter) -> bool:
        write(window, connection, reporter)
        return False

    flusher._write_rows = interrupted
    for _ in range(3):
        flusher.run_once()
    assert (staged(staging), staging.visible()) == ({}, [])
    flush(staging.flusher())
    raw.complete(staging, 1, "")


@pytest.mark.rule("ledger")
@pytest.mark.parametrize("arrives", ["before the next try", "after it"])
def test_commit_that_arrives_late_adds_rows_once(
    staging: AddingWorld, monkeypatch: pytest.MonkeyPatch, arrives: str
) -> None:
    """Given a `finish` whose request arrives while the flusher stages all rows again."""
    late: list[tuple[LedgerRow | None, LedgerRow, Sequence[bytes]]] = []
    outcomes: list[Outcome] = []
    real = StagingSession.finish

    def land() -> None:
        with staging.adding.connect(staging.query_id) as session:
            assert isinstance(session, StagingSession)
            outcomes.append(real(session, *late[0]))

    def finish(
        self: StagingSession,
        current: LedgerRow | None,
        new: LedgerRow,
        receipts: Sequence[bytes] = (),
    ) -> Outcome:
        receipts = (*receipts, *self.drain())
        if not receipts:
            return real(self, current, new)
        if not late:
            late.append((current, new, receipts))
            return Outcome.UNKNOWN
        if not outcomes and arrives.startswith("before"):
            land()
        outcome = real(self, current, new, receipts)
        if not outcomes:
            land()
        return outcome

    monkeypatch.setattr(StagingSession, "finish", finish)
    flush(staging.flusher())
    expected = Outcome.APPLIED if arrives.startswith("before") else Outcome.CONFLICT
    assert outcomes == [expected]
    raw.complete(staging, 1, "")


@pytest.mark.rule("ledger")
def test_overtaken_flusher_discards_only_its_own_staged_rows(
    staging: AddingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another flusher finishes the window while this flusher stages the same rows."""
    flusher = staging.flusher()
    write = by_tasks(staging)

    def overtaken(window: Window, connection: TargetConnection, reporter: Reporter) -> bool:
        done = write(window, connection, reporter)
        flush(staging.flusher())
        return done

    flusher._write_rows = overtaken
    flush(flusher)
    rows = [row for part in staged(staging).values() for row in part]
    assert sorted(rows) == sorted(staging.visible())
    raw.complete(staging, 1, "")
