"""Checks what targets have in common whose rows count when `finish` takes effect: `atomic` and `staged`."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator

import msgspec
import pytest

from wal_sink.errors import SchemaMismatch, TargetUnavailable, WalSinkError
from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Slice, Target
from wal_sink.testing.contracts.ledger import begun_window, mark_of
from wal_sink.testing.contracts.rows import (
    BASE_US,
    Record,
    RowsContract,
    Table,
    deliver,
    drained,
    finish,
)

ROWS: list[Record] = [("a", 1, 10, "x"), ("b", 2, None, "y")]


class CountedContract(RowsContract):
    """Part of the suites for targets that add rows; needs the fixture `target` and `records`."""

    @abstractmethod
    def records(self, target: Target) -> list[Record]:
        """Read the whole table by other means than the target, doubled rows twice."""

    def rows(self, target: Target) -> Table:
        """Return the rows by (k, n); fail for one that is there twice."""
        records = self.records(target)
        assert len(set(records)) == len(records), "rows are doubled"
        return {(str(k), int(n or 0)): (v, t) for k, n, v, t in records}

    unwritable_error: type[Exception] = SchemaMismatch
    """What `write` or `drain` raises for `unwritable`."""

    def unwritable(self, target: Target, plan: Plan) -> tuple[Plan, Slice]:
        """Return rows that the target refuses, with their plan: one of a column that the table has lost."""
        first, *others = plan.columns
        gone = msgspec.structs.replace(first, name="is_gone")
        changed = msgspec.structs.replace(plan, key="another", columns=(gone, *others))
        return changed, self.slice(target, plan, ROWS)

    @pytest.fixture
    def window(self, session: Session) -> Window:
        """Return a window that the session has begun."""
        window = begun_window(0, rows=len(ROWS))
        assert session.begin(window) is Outcome.APPLIED
        return window

    def test_no_row_is_seen_before_finish(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """Neither while they are written nor after `drain`; afterwards all are."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        assert self.records(target) == []
        receipts = drained(session)
        assert self.records(target) == []
        assert finish(session, window, receipts) is Outcome.APPLIED
        assert sorted(map(str, self.records(target))) == sorted(map(str, ROWS))

    def test_equal_rows_are_different_rows(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Without a key, each row of the log is a row of the table: balances and counters are exact."""
        deliver(session, plan, self.slice(target, plan, ROWS), self.slice(target, plan, ROWS))
        deliver(session, plan, self.slice(target, plan, ROWS))
        assert sorted(map(str, self.records(target))) == sorted(map(str, ROWS * 3))

    def test_start_forgets_what_was_written(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """A flusher that was interrupted writes all rows of its window again."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert finish(session, window, receipts) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)

    def test_a_session_that_ends_before_finish_leaves_nothing(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """Nothing but the begun window, which the next session finishes."""
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.close()
        with target.connect(owner) as other:
            assert self.records(target) == []
            assert mark_of(other).begun == window
            receipts = write_window(other, window, plan, self.slice(target, plan, ROWS))
            assert finish(other, window, receipts) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)

    @pytest.mark.parametrize("first", [0, 1])
    def test_of_two_sessions_one_delivers(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        window: Window,
        owner: Owner,
        first: int,
    ) -> None:
        """Two flushers resume one window. One of them waits, is refused, or raises; rows come once."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        with target.connect(owner) as other:
            with refused(target):
                other.start(window)
                other.write(plan, self.slice(target, plan, ROWS))
            both = (session, other)
            delivered = [_finished(target, both[i], window) for i in (first, 1 - first)]
            assert sorted(delivered) == [False, True]
            with target.connect(owner) as third:
                assert mark_of(third).flushed == 0
        assert len(self.records(target)) == len(ROWS)

    def test_a_window_is_finished_once(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """A flusher that wakes after the window was finished, and another one begun, adds nothing."""
        deliver(session, plan, self.slice(target, plan, ROWS))
        first = mark_of(session).last
        assert first is not None
        session.begin(begun_window(1, rows=len(ROWS)))
        with target.connect(owner) as late, refused(target):
            receipts = write_window(late, first, plan, self.slice(target, plan, ROWS))
            assert finish(late, first, receipts) is Outcome.REFUSED
        assert len(self.records(target)) == len(ROWS)
        assert mark_of(session).flushed == 0

    def test_after_an_error_the_window_is_written_again(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """Rows that were taken before the error do not count, and the session goes on."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        with pytest.raises(self.unwritable_error):
            write_and_drain(session, *self.unwritable(target, plan))
        assert self.records(target) == []
        receipts = write_window(session, window, plan, self.slice(target, plan, ROWS, us=BASE_US))
        assert finish(session, window, receipts) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)


def write_window(session: Session, window: Window, plan: Plan, rows: Slice) -> tuple[bytes, ...]:
    """Write a window from the start; return its receipts."""
    session.start(window)
    return write_and_drain(session, plan, rows)


def write_and_drain(session: Session, plan: Plan, rows: Slice) -> tuple[bytes, ...]:
    """Write rows; return their receipts."""
    session.write(plan, rows)
    return drained(session)


def _finished(target: Target, session: Session, window: Window) -> bool:
    finished = False
    with refused(target):
        finished = finish(session, window, drained(session)) is Outcome.APPLIED
    return finished  # noqa: RET504 -- the block may end by an error that passes


@contextlib.contextmanager
def refused(target: Target) -> Iterator[None]:
    """Let the block raise what a flusher would meet by trying again."""
    try:
        yield
    except (AssertionError, WalSinkError) as error:
        if not isinstance(error, TargetUnavailable):
            raise
    except Exception as error:
        if target.classify(error) == "fatal":
            raise
