"""A target whose rows are staged: what only such a one can lose, double, or delete too early."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.protocol import raw
from tests.protocol.adding_world import AddingWorld
from tests.protocol.engine import flush, until_rest
from tests.protocol.staging_world import StagingSession, StagingWorld
from wal_sink.errors import TargetUnavailable
from wal_sink.flush.rows import WindowWrite
from wal_sink.flush.tasks import FlushTask, gravest
from wal_sink.model.ledger import LedgerState, Outcome, Owner
from wal_sink.model.plan import Plan
from wal_sink.protocol.windows import share_out
from wal_sink.targets.base import Slice, Target
from wal_sink.testing.faults import Faults, FaultyTarget

PARTS = [[(f"{part}-{n}", n) for n in range(20)] for part in range(3)]
FILES = 3
STORES = ("memory",)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[StagingWorld]:
    """A query with one epoch of three partitions that is checkpointed, and not flushed."""
    world = StagingWorld(tmp_path)
    world.run().batch(*PARTS)
    yield world
    world.end_sessions()


def by_tasks(world: StagingWorld, target: Target | None = None) -> Callable[[WindowWrite], bool]:
    """Write windows as a Spark job does, each task in a process of its own as far as its memory goes."""
    owner = Owner(world.query_id, "", "")
    task = FlushTask(world.log, target or world.target, owner, uuid.uuid4().hex)

    def write(window: WindowWrite) -> bool:
        found = [piece for begun in window.epochs for piece in window.pieces(begun)]
        shares = share_out(found, above_bytes=0, slots=2 * FILES)
        assert len(shares) > 1
        answers = [pickle.loads(pickle.dumps(task(share))) for share in shares]
        assert world.visible() == [], "a reader sees half an epoch"
        errors = []
        for answer in answers:
            if isinstance(answer, tuple):
                window.connection.staged(answer)
            else:
                errors.append(answer)
        if errors:
            raise gravest(errors)
        return True

    return write


def test_rule_15_tasks_stage_and_the_flusher_commits_once(
    world: StagingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first of two copies of a task has staged stays invisible: only one answer counts."""
    finished: list[Sequence[bytes]] = []
    real = StagingSession.commit

    def commit(
        self: StagingSession, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        finished.append(receipts)
        return real(self, seen, new, receipts)

    monkeypatch.setattr(StagingSession, "commit", commit)
    flusher = world.flusher()
    write = by_tasks(world)

    def twice(window: WindowWrite) -> bool:
        pieces = [piece for begun in window.epochs for piece in window.pieces(begun)]
        copy = FlushTask(world.log, world.target, Owner(world.query_id, "", ""), "a copy")
        assert isinstance(copy(pieces), tuple)
        return write(window)

    flusher._write_rows = twice
    until_rest(flusher)
    flusher.close()
    (receipts,) = filter(None, finished)  # those of create and begin have none
    assert len(world.staged()) > len(receipts) >= FILES
    raw.complete(world, 1, "")


def test_rule_15_what_tasks_have_staged_before_one_failed_is_discarded(world: StagingWorld) -> None:
    """The next try stages all rows again; none of the first is committed with them."""
    broken = FaultyTarget(world.target, Faults(3, error=ConnectionError, matching="write"))
    flusher = world.flusher()
    flusher._write_rows = by_tasks(world, broken)
    with pytest.raises(TargetUnavailable):
        until_rest(flusher)
    assert world.staged()
    flusher.close()
    assert world.staged() == []
    flush(flusher)
    raw.complete(world, 1, "")


def test_rule_15_a_connection_that_is_lost_takes_its_receipts_with_it(world: StagingWorld) -> None:
    """The rows of the epoch were staged over it: `finish` over another one would move the mark alone."""
    flusher = world.flusher()
    real = flusher._write_rows

    def write(window: WindowWrite) -> bool:
        written = real(window)
        window.connection.close()
        flusher._write_rows = real
        return written

    flusher._write_rows = write
    with pytest.raises(TargetUnavailable, match="staged again"):
        until_rest(flusher)
    assert world.visible() == []
    flush(flusher)
    raw.complete(world, 1, "")


def test_rule_15_a_flusher_that_is_interrupted_discards_what_it_has_staged(
    world: StagingWorld,
) -> None:
    """No other flusher will ever know of it."""
    flusher = world.flusher()
    write = by_tasks(world)

    def interrupted(window: WindowWrite) -> bool:
        write(window)
        flusher.interrupt()
        return False

    flusher._write_rows = interrupted
    while world.ledger() is None or world.ledger().begun is None:  # type: ignore[union-attr]
        flusher.run_once()
    assert (world.staged(), world.visible()) == ([], [])
    flush(world.flusher())
    raw.complete(world, 1, "")


@pytest.mark.parametrize("quicker", [False, True], ids=["late", "very late"])
def test_rule_16_what_a_lost_answer_may_still_commit_is_not_discarded(
    world: StagingWorld, monkeypatch: pytest.MonkeyPatch, quicker: bool
) -> None:
    """The request is on its way while the flusher stages all again. One of the two commits."""
    late: list[tuple[LedgerState | None, LedgerState, Sequence[bytes]]] = []
    outcomes: list[Outcome] = []
    real = StagingSession.commit

    def commit(
        self: StagingSession, seen: LedgerState | None, new: LedgerState, receipts: Sequence[bytes]
    ) -> Outcome:
        if not receipts:
            return real(self, seen, new, receipts)
        if not late:
            late.append((seen, new, receipts))
            return Outcome.UNKNOWN
        if not outcomes and not quicker:
            outcomes.append(arrives())
        outcome = real(self, seen, new, receipts)
        if quicker:
            outcomes.append(arrives())
        return outcome

    def arrives() -> Outcome:
        seen, new, receipts = late[0]
        assert {receipt.decode() for receipt in receipts} <= {*world.staged()}
        with world.target.connect(Owner(world.query_id, "", "")) as server:
            assert isinstance(server, StagingSession)
            return real(server, seen, new, receipts)

    monkeypatch.setattr(StagingSession, "commit", commit)
    flusher = world.flusher()
    with pytest.raises(TargetUnavailable, match="could not be finished"):
        until_rest(flusher)
    flush(flusher)
    assert outcomes == [Outcome.CONFLICT if quicker else Outcome.APPLIED]
    raw.complete(world, 1, "")


def test_rule_16_what_was_refused_is_discarded(
    world: StagingWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another flusher finished while this one staged: its files stay, these go."""
    real = StagingSession.write
    second: list[AddingWorld] = []

    def write(self: StagingSession, plan: Plan, rows: Slice) -> None:
        real(self, plan, rows)
        if not second:
            second.append(world)
            flush(world.flusher())

    monkeypatch.setattr(StagingSession, "write", write)
    flush(world.flusher())
    assert len(world.staged()) == len(PARTS) * 2  # the fault injector cuts each slice in two
    raw.complete(world, 1, "")
