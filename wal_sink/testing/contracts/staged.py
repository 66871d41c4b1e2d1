"""Checks a target whose rows are staged, and count when `finish` commits them: guarantees 9 to 11.

A plug-in author gives a fixture and two methods::

    class TestMyTarget(StagedContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # adds rows to an empty table with the columns of SCHEMA and no key

        def records(self, target: Target) -> list[tuple[str | None, int | None, int | None, str | None]]:
            ...  # read the table by other means: (k, n, v, t), a row that is there twice comes twice

        def doubles(self, target: Target) -> list[float | None]:
            ...  # read column d

        def conflict_after_commit(self, patch: pytest.MonkeyPatch, landed: Callable[[], object]) -> None:
            ...  # optional, and worth it: see there
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Delivery, Session, Slice, StagedSession, Target
from wal_sink.testing.contracts.ledger import begin, begun_window, finish, row_of
from wal_sink.testing.contracts.rows import (
    ROWS,
    Record,
    deliver,
    refused,
    write_and_drain,
    write_window,
)
from wal_sink.testing.contracts.transactional import CountedContract
from wal_sink.testing.pauses import PAUSES, Pause, Point, pauses, pausing

__all__ = ["StagedContract"]

OTHERS: list[Record] = [("c", 3, 30, "z")]
KILLED_AT: tuple[Point, ...] = ("flushing", "finishing", "finished")
_PATIENCE_S = 60.0
"""How long another process may take to come to its point."""
RECEIPT_BYTES = 16_384
"""A window may have thousands of receipts, which the driver collects."""


class StagedContract(CountedContract):
    """Subclass as `Test…` with a fixture `target`, `records` and `doubles`."""

    def test_the_target_is_what_this_suite_is_for(self, target: Target, session: Session) -> None:
        """Many sessions stage, one commits."""
        assert target.delivery is Delivery.STAGED, "see the suites of wal_sink.testing.contracts"
        assert target.parallel_writes
        assert isinstance(session, StagedSession)

    @pytest.mark.usefixtures("session")
    def test_a_drain_has_the_receipts_since_the_last_one(
        self, target: Target, plan: Plan, owner: Owner
    ) -> None:
        """So each row is under one receipt."""
        with target.connect(owner) as other:
            receipts = write_and_drain(other, plan, self.slice(target, plan, ROWS))
            more = write_and_drain(other, plan, self.slice(target, plan, OTHERS))
            assert other.drain() == ()
        assert receipts
        assert more
        assert not {*receipts} & {*more}
        assert max(map(len, receipts + more)) <= RECEIPT_BYTES

    def test_what_other_processes_have_staged_counts(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """Their sessions are long closed when the flusher commits what they wrote."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
            elsewhere = pool.submit(
                _stage_elsewhere, target, owner, plan, self.slice(target, plan, OTHERS)
            ).result()
        assert self.records(target) == []
        receipts = (*(session.drain() or ()), *elsewhere)
        assert finish(session, window, receipts) is Outcome.APPLIED
        assert sorted(map(str, self.records(target))) == sorted(map(str, ROWS + OTHERS))

    def test_only_what_finish_is_given_counts(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """A try that died has left receipts which no flusher has; they are of no window."""
        write_window(session, window, plan, self.slice(target, plan, OTHERS))
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert finish(session, window, receipts) is Outcome.APPLIED
        deliver(session, plan, self.slice(target, plan, ROWS))
        assert sorted(map(str, self.records(target))) == sorted(map(str, ROWS * 2))

    def test_another_session_may_finish(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """A receipt does not depend on the session that made it."""
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.close()
        with target.connect(owner) as other:
            assert finish(other, window, receipts) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)

    def test_receipts_are_committed_once(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """Neither for the same window again nor, by a session that knows no better, for a later one."""
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert finish(session, window, receipts) is Outcome.APPLIED
        with target.connect(owner) as late, refused(target):
            assert finish(late, window, receipts) is Outcome.CONFLICT
        assert len(self.records(target)) == len(ROWS)

    def conflict_after_commit(
        self,
        patch: pytest.MonkeyPatch,  # noqa: ARG002 -- for suites
        landed: Callable[[], object],  # noqa: ARG002
    ) -> None:
        """Let the next commit of `finish` land, call `landed`, and let your driver report a conflict then.

        That is what a driver does that repeats a request whose answer was lost. Replace, by `patch`, the
        function of your target that asks the driver to commit.
        """
        pytest.skip("the target's suite has no conflict_after_commit")

    @pytest.mark.parametrize("moved_on", [False, True])
    def test_a_commit_that_met_itself_is_not_refused(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        window: Window,
        owner: Owner,
        *,
        moved_on: bool,
    ) -> None:
        """It took effect; what is refused would be deleted. Another flusher may have moved the row on."""
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS))

        def landed() -> None:
            if moved_on:
                with target.connect(owner) as other:
                    assert begin(other, begun_window(1, rows=0)) is Outcome.APPLIED

        outcome = Outcome.UNKNOWN
        with pytest.MonkeyPatch.context() as patch, refused(target):
            self.conflict_after_commit(patch, landed)
            outcome = finish(session, window, receipts)
        assert outcome is not Outcome.CONFLICT
        with target.connect(owner) as other:
            assert row_of(other).flushed == 0
        assert sorted(map(str, self.records(target))) == sorted(map(str, ROWS))

    def test_finish_is_refused_when_another_window_is_begun(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """Nothing becomes visible, and the mark stays."""
        other = begun_window(0, rows=len(ROWS))
        receipts = write_window(session, other, plan, self.slice(target, plan, ROWS))
        with refused(target):
            assert finish(session, other, receipts) is Outcome.CONFLICT
        assert self.records(target) == []
        assert row_of(session).begun == window

    def test_what_is_discarded_does_not_count(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """If `finish` comes all the same, and the rows are gone, nothing may become visible."""
        assert isinstance(session, StagedSession)
        lost = write_window(session, window, plan, self.slice(target, plan, OTHERS))
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.discard(lost)
        session.discard(lost)
        assert finish(session, window, receipts) is Outcome.APPLIED
        assert sorted(map(str, self.records(target))) == sorted(map(str, ROWS))

    @pytest.mark.parametrize("gone", [{0}, {1}, {2}, {0, 1, 2}])
    def test_finish_needs_what_is_staged(
        self, target: Target, plan: Plan, session: Session, window: Window, gone: set[int]
    ) -> None:
        """Rows of a receipt are gone, of one or of all: the mark must not move without them."""
        assert isinstance(session, StagedSession)
        rows = self.slice(target, plan, ROWS)
        session.start(window)
        drains = [write_and_drain(session, plan, rows) for _ in range(3)]
        for number in gone:
            session.discard(drains[number])
        with refused(target):
            assert finish(session, window, sum(drains, ())) is Outcome.CONFLICT
        assert self.records(target) == []
        assert row_of(session).begun == window

    @pytest.mark.parametrize("point", KILLED_AT)
    def test_a_flusher_is_killed(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        window: Window,
        owner: Owner,
        tmp_path: Path,
        point: Point,
    ) -> None:
        """With half of its rows staged, with all of them, or right after `finish` has answered."""
        marker = tmp_path / "reached"
        rows = self.slice(target, plan, ROWS)
        pause = Pause(point=point, table="t", epoch=0, marker=str(marker))
        flusher = multiprocessing.get_context("forkserver").Process(
            target=_flush_elsewhere, args=(target, owner, window, plan, rows, pauses(pause))
        )
        flusher.start()
        try:
            give_up_s = time.monotonic() + _PATIENCE_S
            while not marker.exists():
                assert flusher.is_alive(), f"it ended before the point {point}"
                assert time.monotonic() < give_up_s, f"it does not come to the point {point}"
                flusher.join(0.01)
        finally:
            flusher.kill()
            flusher.join()
        if point != "finished":
            assert row_of(session).begun == window
            assert self.records(target) == []
            receipts = write_window(session, window, plan, rows)
            assert finish(session, window, receipts) is Outcome.APPLIED
        assert row_of(session).last == window
        assert sorted(map(str, self.records(target))) == sorted(map(str, ROWS))


def _stage_elsewhere(target: Target, owner: Owner, plan: Plan, rows: Slice) -> tuple[bytes, ...]:
    with target.connect(owner) as session:
        return write_and_drain(session, plan, rows)


def _flush_elsewhere(
    target: Target, owner: Owner, window: Window, plan: Plan, rows: Slice, paused: str
) -> None:
    os.environ[PAUSES] = paused
    with pausing(target.connect(owner), "t") as session:
        finish(session, window, write_window(session, window, plan, rows))
