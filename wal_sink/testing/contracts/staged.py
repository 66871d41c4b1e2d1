"""Checks a target whose rows are staged, and count when `finish` commits them: guarantees 9 to 11.

A plug-in author gives a fixture and one method::

    class TestMyTarget(StagedContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # adds rows to an empty table with the columns of SCHEMA and no key

        def records(self, target: Target) -> list[tuple[str | None, int | None, int | None, str | None]]:
            ...  # read the table by other means: (k, n, v, t), a row that is there twice comes twice
"""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Delivery, Session, Slice, StagedSession, Target
from wal_sink.testing.contracts.counted import (
    ROWS,
    CountedContract,
    refused,
    write_and_drain,
    write_window,
)
from wal_sink.testing.contracts.ledger import begun_window, mark_of
from wal_sink.testing.contracts.rows import Record, deliver, finish

__all__ = ["StagedContract"]

OTHERS: list[Record] = [("c", 3, 30, "z")]
RECEIPT_BYTES = 16_384
"""A window may have thousands of receipts, which the driver collects."""


class StagedContract(CountedContract):
    """Subclass as `Test…` with a fixture `target` and `records`."""

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
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
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
            assert finish(late, window, receipts) is Outcome.REFUSED
        assert len(self.records(target)) == len(ROWS)

    def test_finish_is_refused_when_another_window_is_begun(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """Nothing becomes visible, and the mark stays."""
        other = begun_window(0, rows=len(ROWS))
        receipts = write_window(session, other, plan, self.slice(target, plan, ROWS))
        with refused(target):
            assert finish(session, other, receipts) is Outcome.REFUSED
        assert self.records(target) == []
        assert mark_of(session).begun == window

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

    def test_finish_needs_what_is_staged(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """Rows of a receipt are gone: the mark must not move without them."""
        assert isinstance(session, StagedSession)
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.discard(receipts)
        with refused(target):
            assert finish(session, window, receipts) is Outcome.REFUSED
        assert self.records(target) == []
        assert mark_of(session).begun == window


def _stage_elsewhere(target: Target, owner: Owner, plan: Plan, rows: Slice) -> tuple[bytes, ...]:
    with target.connect(owner) as session:
        return write_and_drain(session, plan, rows)
