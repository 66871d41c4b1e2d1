"""Contract suites for the three kinds of session. An author derives from the suite of the target's kind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from wal_sink.errors import InvalidRow
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import (
    IdempotentSession,
    RowSlice,
    Session,
    StagedSession,
    Target,
    TransactionalSession,
)
from wal_sink.targets.sql import SqlTarget
from wal_sink.testing.contracts.kills import KillsContract
from wal_sink.testing.contracts.ledger import finish, following, row_of, tolerate_retried_errors
from wal_sink.testing.contracts.rows import BASE_US, ROWS, Record, deliver

OTHERS: list[Record] = [("c", 3, 30, "z")]
RECEIPT_BYTES = 16_384
"""The maximum size of a receipt. The driver collects all receipts of a window, which may be thousands."""
_PATIENCE_S = 60.0
"""Seconds in which another process must finish a window."""


class SequentialContract(KillsContract):
    """The suite for an `IdempotentSession` without `parallel_writes`: one session writes all rows."""

    parallel = False
    """The value that the target's `parallel_writes` must have."""

    def test_session_is_of_the_class_of_this_suite(self, target: Target, session: Session) -> None:
        assert isinstance(session, IdempotentSession), "derive the suite of its session"
        assert target.parallel_writes == self.parallel, "use TargetContract for parallel_writes"

    def test_rows_are_durable_after_drain(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Rows are in the table when `drain` returns. The ledger row is unchanged until `finish`."""
        write(session, plan, self.slice(target, plan, ROWS))
        assert self.rows(target) == {("a", 1): (10, "x"), ("b", 2): (None, "y")}
        assert row_of(session).epoch == -1

    def test_rows_written_again_change_nothing(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A slice is written again as a whole, in parts, and after a newer row with the same key."""
        old = self.slice(target, plan, [("a", 1, v, str(v)) for v in (3, 1, 2)])
        new = self.slice(target, plan, [("b", 1, 1, "new")], us=BASE_US + 100)
        older = self.slice(target, plan, [("b", 1, 2, "old"), ("c", 1, 1, None)])
        parts = [old._replace(batch=old.batch[n : n + 1], first_us=BASE_US + n) for n in (1, 0)]
        for rows in (old, *parts, older, new, older):
            write(session, plan, rows)
            assert self.rows(target)["a", 1] == (2, "2")
        assert self.rows(target) == {("a", 1): (2, "2"), ("b", 1): (1, "new"), ("c", 1): (1, None)}

    def test_unset_null_keeps_the_older_value(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """With `nulls=unset`, a null in a new row does not change the cell."""
        write(session, plan, self.slice(target, plan, [("a", 1, 5, "x")]))
        write(session, plan, self.slice(target, plan, [("a", 1, None, "y")], us=BASE_US + 1))
        assert self.rows(target) == {("a", 1): (5, "y")}

    def test_null_key_is_refused_by_check(self, target: Target, plan: Plan) -> None:
        """A task refuses the row before the epoch is published; the error names the column."""
        with pytest.raises(InvalidRow, match=r"\bn\b"):
            self.slice(target, plan, [("a", 1, 1, "x"), ("a", None, 1, "x")])


class TargetContract(SequentialContract):
    """The suite for an `IdempotentSession` with `parallel_writes`: many sessions write the rows."""

    parallel = True

    def test_rows_written_by_another_process_stay(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """Another process writes rows and closes its session; then the flusher calls `finish`."""
        current = row_of(session)
        session.write(plan, self.slice(target, plan, [("a", 1, 1, "here")]))
        elsewhere = self.slice(target, plan, [("a", 1, 2, "elsewhere")], us=BASE_US + 1)
        with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
            pool.submit(_write_elsewhere, target, query_id, plan, elsewhere).result()
        assert finish(session, current, following(current)) is Outcome.APPLIED
        assert self.rows(target) == {("a", 1): (2, "elsewhere")}


class CountedContract(KillsContract):
    """A part of the suites for transactional and staged sessions, whose rows `finish` makes visible."""

    def assert_records(self, target: Target, expected: Sequence[Record]) -> None:
        """Compare the table with `expected`, in any order."""
        records = [record[:4] for record in self.records(target)]
        assert sorted(map(str, records)) == sorted(map(str, expected))

    def test_rows_are_visible_only_after_finish(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        current = row_of(session)
        session.write(plan, self.slice(target, plan, ROWS))
        self.assert_records(target, [])
        assert finish(session, current, following(current)) is Outcome.APPLIED
        self.assert_records(target, ROWS)

    def test_equal_rows_are_all_kept(self, target: Target, plan: Plan, session: Session) -> None:
        """The table has no key, so each row of the log is a row of the table."""
        deliver(session, plan, self.slice(target, plan, ROWS), self.slice(target, plan, ROWS))
        deliver(session, plan, self.slice(target, plan, ROWS))
        self.assert_records(target, ROWS * 3)

    def test_stalled_session_adds_no_rows(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """A flusher stalls. After another flusher has finished the window, the first writes it again."""
        rows = self.slice(target, plan, ROWS)
        with target.connect(query_id) as stalled:
            current = row_of(stalled)
            deliver(session, plan, rows)
            with tolerate_retried_errors(target):
                stalled.write(plan, rows)
                assert finish(stalled, current, following(current)) is Outcome.CONFLICT
        self.assert_records(target, ROWS)
        assert row_of(session).epoch == current.epoch + 1


class TransactionalContract(CountedContract):
    """The suite for a `TransactionalSession`."""

    def test_session_is_of_the_class_of_this_suite(self, target: Target, session: Session) -> None:
        assert isinstance(session, TransactionalSession), "derive the suite of its session"
        assert not target.parallel_writes


class SqlContract(TransactionalContract):
    """The suite for a target on `SqlTarget`."""

    def test_insert_raises_if_the_server_refuses_rows(self, target: Target, plan: Plan) -> None:
        """`insert` itself must raise, since the session counts rows as written when `insert` returns."""
        assert isinstance(target, SqlTarget), "use TransactionalContract"
        changed, rows = self.unwritable(target, plan)
        with contextlib.closing(target.open()) as connection, pytest.raises(Exception):  # noqa: B017, PT011 -- any error of the driver
            target.insert(connection, changed, rows.batch)


class StagedContract(CountedContract):
    """The suite for a `StagedSession`."""

    def test_session_is_of_the_class_of_this_suite(self, target: Target, session: Session) -> None:
        assert isinstance(session, StagedSession), "derive the suite of its session"
        assert target.parallel_writes

    def test_rows_staged_by_another_process_are_added(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """The flusher finishes a window with its own rows, and with rows that another process has staged."""
        current = row_of(session)
        session.write(plan, self.slice(target, plan, ROWS))
        with ProcessPoolExecutor(1, get_context("forkserver")) as pool:
            others = self.slice(target, plan, OTHERS)
            receipts = pool.submit(_stage_elsewhere, target, query_id, plan, others).result()
        self.assert_records(target, [])
        assert finish(session, current, following(current), receipts) is Outcome.APPLIED
        self.assert_records(target, ROWS + OTHERS)

    def test_finish_adds_only_the_rows_of_its_receipts(
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
        with target.connect(query_id) as late, tolerate_retried_errors(target):
            assert finish(late, current, following(current), receipts) is Outcome.CONFLICT
        deliver(session, plan, self.slice(target, plan, ROWS))
        self.assert_records(target, ROWS * 2)

    def conflict_after_commit(
        self,
        patch: pytest.MonkeyPatch,  # noqa: ARG002 -- a suite uses it
        landed: Callable[[], object],  # noqa: ARG002
    ) -> None:
        """Use `patch` to replace the function of your target that commits.

        The new function commits, calls `landed`, and reports a conflict. A driver does this if it repeats a
        request whose answer was lost, since the second request conflicts with the first.
        """
        pytest.skip("the target's suite has no conflict_after_commit")

    @pytest.mark.parametrize("moved_on", [False, True])
    def test_commit_that_conflicts_with_itself_returns_no_conflict(
        self, target: Target, plan: Plan, session: Session, query_id: str, *, moved_on: bool
    ) -> None:
        """A commit succeeds, and its repetition conflicts.

        `finish` must not return CONFLICT, since the flusher would then delete the files.

        :param moved_on: True if another flusher finishes the next window before the conflict is reported.
        """
        current = row_of(session)
        receipts = stage(session, plan, self.slice(target, plan, ROWS))

        def landed() -> None:
            if moved_on:
                with target.connect(query_id) as other:
                    deliver(other, plan)

        outcome = Outcome.UNKNOWN
        with pytest.MonkeyPatch.context() as patch, tolerate_retried_errors(target):
            self.conflict_after_commit(patch, landed)
            outcome = finish(session, current, following(current), receipts)
        assert outcome is not Outcome.CONFLICT
        with target.connect(query_id) as other:
            assert row_of(other).epoch == current.epoch + 1 + moved_on
        self.assert_records(target, ROWS)

    def test_conflict_adds_no_staged_rows(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """If another flusher has updated the ledger row, `finish` adds no row and does not update it."""
        current = row_of(session)
        receipts = stage(session, plan, self.slice(target, plan, ROWS))
        with target.connect(query_id) as other:
            deliver(other, plan)
            row = row_of(other)
        with tolerate_retried_errors(target):
            assert finish(session, current, following(current), receipts) is Outcome.CONFLICT
        self.assert_records(target, [])
        assert row_of(session) == row

    @pytest.mark.parametrize("gone", [{0}, {2}, {0, 1, 2}])
    def test_finish_with_a_discarded_receipt_changes_nothing(
        self, target: Target, plan: Plan, session: Session, query_id: str, gone: set[int]
    ) -> None:
        """If rows of one or all receipts are deleted, `finish` must not update the ledger row."""
        assert isinstance(session, StagedSession)
        current, rows = row_of(session), self.slice(target, plan, ROWS)
        drains = [stage(session, plan, rows) for _ in range(3)]
        for number in gone:
            session.discard(drains[number])
            session.discard(drains[number])
        with tolerate_retried_errors(target):
            assert finish(session, current, following(current), sum(drains, ())) is Outcome.CONFLICT
        session.close()
        self.assert_records(target, [])
        with target.connect(query_id) as other:
            assert other.read() == current
            deliver(other, plan, rows)
        self.assert_records(target, ROWS)

    def test_finished_window_survives_a_kill_of_its_flusher(
        self, target: Target, plan: Plan, session: Session, tmp_path: Path
    ) -> None:
        """A flusher's process is killed after `finish` has returned APPLIED. The rows are in the table."""
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


def write(session: Session, plan: Plan, rows: RowSlice) -> None:
    """Write rows and drain the session."""
    assert isinstance(session, IdempotentSession)
    session.write(plan, rows)
    session.drain()


def stage(session: Session, plan: Plan, rows: RowSlice) -> tuple[bytes, ...]:
    """Stage rows; return their receipts."""
    assert isinstance(session, StagedSession)
    session.write(plan, rows)
    return session.drain()


def _write_elsewhere(target: Target, query_id: str, plan: Plan, rows: RowSlice) -> None:
    with target.connect(query_id) as session:
        write(session, plan, rows)


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
