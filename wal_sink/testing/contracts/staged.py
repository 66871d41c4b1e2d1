"""Checks a target whose rows are staged, and count when `finish` adds them: guarantees 8 to 10.

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

from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, Session, StagedSession, Target
from wal_sink.testing.contracts.ledger import finish, following, row_of
from wal_sink.testing.contracts.rows import ROWS, Record, deliver, refused
from wal_sink.testing.contracts.transactional import CountedContract
from wal_sink.testing.pauses import PAUSES, Pause, Point, pauses, pausing

__all__ = ["StagedContract"]

OTHERS: list[Record] = [("c", 3, 30, "z")]
KILLED_AT: tuple[Point, ...] = ("flushing", "finishing", "finished")
_PATIENCE_S = 60.0
"""How long another process may take to come to its point."""
RECEIPT_BYTES = 16_384
"""A window may have thousands of receipts, which the driver collects."""


def stage(session: Session, plan: Plan, rows: RowSlice) -> tuple[bytes, ...]:
    """Write rows; return their receipts."""
    assert isinstance(session, StagedSession)
    session.write(plan, rows)
    return session.drain()


class StagedContract(CountedContract):
    """Subclass as `Test…` with a fixture `target`, `records` and `doubles`."""

    def test_session_is_of_this_suite(self, target: Target, session: Session) -> None:
        """Many sessions stage, one finishes."""
        assert isinstance(session, StagedSession), "see wal_sink.testing.contracts.cells"
        assert target.parallel_writes

    @pytest.mark.usefixtures("session")
    def test_drain_returns_receipts_since_the_last_one(
        self, target: Target, plan: Plan, query_id: str
    ) -> None:
        """So each row is under one receipt; nobody sees it."""
        with target.connect(query_id) as other:
            receipts = stage(other, plan, self.slice(target, plan, ROWS))
            more = stage(other, plan, self.slice(target, plan, OTHERS))
            assert other.drain() == ()  # type: ignore[attr-defined]
        assert receipts
        assert more
        assert not {*receipts} & {*more}
        assert max(map(len, receipts + more)) <= RECEIPT_BYTES
        assert self.records(target) == []

    def test_rows_staged_by_other_processes_count(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """Their sessions are closed when the flusher finishes; its own rows count as well."""
        current = row_of(session)
        session.write(plan, self.slice(target, plan, ROWS))
        with ProcessPoolExecutor(1, multiprocessing.get_context("forkserver")) as pool:
            others = self.slice(target, plan, OTHERS)
            receipts = pool.submit(_stage_elsewhere, target, query_id, plan, others).result()
        assert self.records(target) == []
        assert finish(session, current, following(current), receipts) is Outcome.APPLIED
        self.assert_records(target, ROWS + OTHERS)

    def test_only_receipts_given_to_finish_count(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """A try that died has left receipts which no flusher has."""
        with target.connect(query_id) as died:
            stage(died, plan, self.slice(target, plan, OTHERS))
            receipts = stage(died, plan, self.slice(target, plan, ROWS))
        current = row_of(session)
        assert finish(session, current, following(current), receipts) is Outcome.APPLIED
        deliver(session, plan, self.slice(target, plan, ROWS))
        self.assert_records(target, ROWS * 2)

    def test_receipts_are_added_once(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """Not again by a session that has read the ledger row before."""
        current = row_of(session)
        receipts = stage(session, plan, self.slice(target, plan, ROWS))
        assert finish(session, current, following(current), receipts) is Outcome.APPLIED
        with target.connect(query_id) as late, refused(target):
            assert finish(late, current, following(current), receipts) is Outcome.CONFLICT
        self.assert_records(target, ROWS)

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
    def test_commit_that_met_itself_is_no_conflict(
        self, target: Target, plan: Plan, session: Session, query_id: str, *, moved_on: bool
    ) -> None:
        """It took effect; after a conflict its files would be deleted. Another flusher may go on."""
        current = row_of(session)
        receipts = stage(session, plan, self.slice(target, plan, ROWS))

        def landed() -> None:
            if moved_on:
                with target.connect(query_id) as other:
                    deliver(other, plan)

        outcome = Outcome.UNKNOWN
        with pytest.MonkeyPatch.context() as patch, refused(target):
            self.conflict_after_commit(patch, landed)
            outcome = finish(session, current, following(current), receipts)
        assert outcome is not Outcome.CONFLICT
        with target.connect(query_id) as other:
            assert row_of(other).epoch == current.epoch + 1 + moved_on
        self.assert_records(target, ROWS)

    def test_conflict_adds_no_staged_rows(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """The ledger row was moved to another attempt: nothing becomes visible, and it stays."""
        current = row_of(session)
        receipts = stage(session, plan, self.slice(target, plan, ROWS))
        with target.connect(query_id) as other:
            deliver(other, plan)
            row = row_of(other)
        with refused(target):
            assert finish(session, current, following(current), receipts) is Outcome.CONFLICT
        assert self.records(target) == []
        assert row_of(session) == row

    @pytest.mark.parametrize("gone", [{0}, {1}, {2}, {0, 1, 2}])
    def test_discarded_receipt_is_not_added(
        self, target: Target, plan: Plan, session: Session, query_id: str, gone: set[int]
    ) -> None:
        """Rows of one receipt are gone, or of all: the ledger row must not move without them."""
        assert isinstance(session, StagedSession)
        current, rows = row_of(session), self.slice(target, plan, ROWS)
        drains = [stage(session, plan, rows) for _ in range(3)]
        for number in gone:
            session.discard(drains[number])
            session.discard(drains[number])
        with refused(target):
            assert finish(session, current, following(current), sum(drains, ())) is Outcome.CONFLICT
        session.close()
        assert self.records(target) == []
        with target.connect(query_id) as other:
            assert other.read() == current
            deliver(other, plan, rows)
        self.assert_records(target, ROWS)

    @pytest.mark.parametrize("point", KILLED_AT)
    def test_killed_flusher_leaves_whole_windows(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        tmp_path: Path,
        point: Point,
    ) -> None:
        """With half of its rows staged, with all of them, or right after `finish` has answered."""
        current, rows = row_of(session), self.slice(target, plan, ROWS)
        marker, new = tmp_path / "reached", following(current)
        pause = pauses(Pause(point=point, table="t", epoch=0, marker=str(marker)))
        flusher = multiprocessing.get_context("forkserver").Process(
            target=_flush_elsewhere, args=(target, new, plan, rows, pause)
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
            assert row_of(session) == current
            assert self.records(target) == []
            deliver(session, plan, rows)
        else:
            assert row_of(session) == new
        self.assert_records(target, ROWS)


def _stage_elsewhere(
    target: Target, query_id: str, plan: Plan, rows: RowSlice
) -> tuple[bytes, ...]:
    with target.connect(query_id) as session:
        return stage(session, plan, rows)


def _flush_elsewhere(
    target: Target, new: LedgerRow, plan: Plan, rows: RowSlice, pause: str
) -> None:
    os.environ[PAUSES] = pause
    with pausing(target.connect(new.query_id), "t") as session:
        current = row_of(session)
        session.write(plan, rows)
        finish(session, current, new)
