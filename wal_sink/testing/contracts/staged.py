"""Contract suite for targets with a `StagedSession`, guarantees 8 to 10: `finish` adds staged rows."""

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
"""The maximum size of a receipt: the driver collects all receipts of a window, which may be thousands."""
_PATIENCE_S = 60.0
"""How long another process may take to finish a window."""


def stage(session: Session, plan: Plan, rows: RowSlice) -> tuple[bytes, ...]:
    """Stage rows; return their receipts."""
    assert isinstance(session, StagedSession)
    session.write(plan, rows)
    return session.drain()


class StagedContract(CountedContract):
    """The suite for a `StagedSession`."""

    def test_session_is_of_this_suite(self, target: Target, session: Session) -> None:
        assert isinstance(session, StagedSession), "see wal_sink.testing.contracts"
        assert target.parallel_writes

    def test_rows_staged_by_other_processes_count(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """The flusher finishes with rows of a closed session in another process, and with its own."""
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
        """Receipts of a failed window add no rows, and a receipt adds its rows only once."""
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
        patch: pytest.MonkeyPatch,  # noqa: ARG002 -- a suite uses it
        landed: Callable[[], object],  # noqa: ARG002
    ) -> None:
        """Replace, by `patch`, the function of your target that commits: it commits, then reports a conflict.

        A driver does this if it repeats a request whose answer was lost: the first request wins over the
        second. The new function calls `landed` between the commit and the conflict.
        """
        pytest.skip("the target's suite has no conflict_after_commit")

    @pytest.mark.parametrize("moved_on", [False, True])
    def test_commit_that_met_itself_is_no_conflict(
        self, target: Target, plan: Plan, session: Session, query_id: str, *, moved_on: bool
    ) -> None:
        """A commit lands and its repetition conflicts: CONFLICT would let the flusher delete the files.

        :param moved_on: another flusher finishes the next window before the conflict is reported.
        """
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
        """Another flusher moved the ledger row: `finish` adds no row and leaves the ledger row unchanged."""
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
        """The rows of one receipt are deleted, or of all: `finish` must not move the ledger row."""
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
        """A flusher's process is killed after `finish` returned APPLIED: its rows are in the table."""
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
        time.sleep(_PATIENCE_S)  # the test kills this process
