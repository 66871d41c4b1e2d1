"""Checks a target whose rows are staged, and count when `finish` adds them: guarantees 8 to 10."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, Session, StagedSession, Target
from wal_sink.testing.contracts.ledger import finish, following, refused, row_of
from wal_sink.testing.contracts.rows import ROWS, Record, deliver
from wal_sink.testing.contracts.transactional import CountedContract

__all__ = ["StagedContract"]

OTHERS: list[Record] = [("c", 3, 30, "z")]
RECEIPT_BYTES = 16_384
"""A window may have thousands of receipts, which the driver collects."""
_PATIENCE_S = 60.0
"""How long another process may take to finish a window."""


def stage(session: Session, plan: Plan, rows: RowSlice) -> tuple[bytes, ...]:
    """Write rows; return their receipts."""
    assert isinstance(session, StagedSession)
    session.write(plan, rows)
    return session.drain()


class StagedContract(CountedContract):
    """Subclass as `Test…`."""

    def test_session_is_of_this_suite(self, target: Target, session: Session) -> None:
        """Many sessions stage, one finishes."""
        assert isinstance(session, StagedSession), "see wal_sink.testing.contracts.cells"
        assert target.parallel_writes

    def test_rows_staged_by_other_processes_count(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """Their sessions are closed when the flusher finishes; its own rows count as well."""
        current = row_of(session)
        session.write(plan, self.slice(target, plan, ROWS))
        with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
            others = self.slice(target, plan, OTHERS)
            receipts = pool.submit(_stage_elsewhere, target, query_id, plan, others).result()
        self.assert_records(target, [])
        assert finish(session, current, following(current), receipts) is Outcome.APPLIED
        self.assert_records(target, ROWS + OTHERS)

    def test_finish_adds_its_own_receipts_alone(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """Each row is under one receipt; those that a try left behind count never, and none counts twice."""
        with target.connect(query_id) as died:
            others = stage(died, plan, self.slice(target, plan, OTHERS))
            receipts = stage(died, plan, self.slice(target, plan, ROWS))
            assert died.drain() == ()  # type: ignore[attr-defined]
        assert others
        assert receipts
        assert not {*receipts} & {*others}
        assert max(map(len, receipts + others)) <= RECEIPT_BYTES
        current = row_of(session)
        assert finish(session, current, following(current), receipts) is Outcome.APPLIED
        with target.connect(query_id) as late, refused(target):
            assert finish(late, current, following(current), receipts) is Outcome.CONFLICT
        deliver(session, plan, self.slice(target, plan, ROWS))
        self.assert_records(target, ROWS * 2)

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
        self.assert_records(target, [])
        assert row_of(session) == row

    @pytest.mark.parametrize("gone", [{0}, {2}, {0, 1, 2}])
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
        self.assert_records(target, [])
        with target.connect(query_id) as other:
            assert other.read() == current
            deliver(other, plan, rows)
        self.assert_records(target, ROWS)

    def test_flusher_killed_after_finish_leaves_its_window(
        self, target: Target, plan: Plan, session: Session, tmp_path: Path
    ) -> None:
        """Its process is gone, with all that its driver had in memory."""
        current, marker = row_of(session), tmp_path / "finished"
        rows, new = self.slice(target, plan, ROWS), following(current)
        flusher = get_context("forkserver").Process(
            target=_flush_elsewhere, args=(target, current, new, plan, rows, marker)
        )
        flusher.start()
        try:
            give_up_s = time.monotonic() + _PATIENCE_S
            while not marker.exists():
                assert flusher.is_alive(), "the flusher ended"
                assert time.monotonic() < give_up_s, "finish does not answer"
                flusher.join(0.01)
        finally:
            flusher.kill()
            flusher.join()
        assert row_of(session) == new
        self.assert_records(target, ROWS)


def _stage_elsewhere(
    target: Target, query_id: str, plan: Plan, rows: RowSlice
) -> tuple[bytes, ...]:
    with target.connect(query_id) as session:
        return stage(session, plan, rows)


def _flush_elsewhere(
    target: Target, current: LedgerRow, new: LedgerRow, plan: Plan, rows: RowSlice, marker: Path
) -> None:
    with target.connect(new.query_id) as session:
        assert session.read() == current
        session.write(plan, rows)
        assert finish(session, current, new) is Outcome.APPLIED
        marker.touch()
        time.sleep(_PATIENCE_S)  # to be killed
