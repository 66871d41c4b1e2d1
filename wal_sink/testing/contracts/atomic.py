"""Checks a target whose rows count when `finish` takes effect: guarantees 7 and 8.

A plug-in author gives a fixture and one method::

    class TestMyTarget(AtomicContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # adds rows to an empty table with the columns of SCHEMA and no key

        def records(self, target: Target) -> list[tuple[str | None, int | None, int | None, str | None]]:
            ...  # read the table by other means: (k, n, v, t), a row that is there twice comes twice
"""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Iterator

import msgspec
import pytest

from wal_sink.errors import SchemaMismatch, TargetUnavailable, WalSinkError
from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Delivery, Session, Slice, Target
from wal_sink.testing.contracts.ledger import begun_window, mark_of
from wal_sink.testing.contracts.rows import BASE_US, Record, RowsContract, Table, deliver

__all__ = ["AtomicContract"]

ROWS: list[Record] = [("a", 1, 10, "x"), ("b", 2, None, "y")]


class AtomicContract(RowsContract):
    """Subclass as `Test…` with a fixture `target` and `records`."""

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

    def test_the_target_is_what_this_suite_is_for(self, target: Target) -> None:
        """A transaction belongs to one session."""
        assert target.delivery is Delivery.ATOMIC, "use wal_sink.testing.contracts.target"
        assert not target.parallel_writes

    def test_no_row_is_seen_before_finish(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """Neither while they are written nor after `drain`; afterwards all are."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        assert self.records(target) == []
        session.drain()
        assert self.records(target) == []
        assert session.finish(window) is Outcome.APPLIED
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
        _write_window(session, window, plan, self.slice(target, plan, ROWS))
        _write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert session.finish(window) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)

    def test_a_session_that_ends_before_finish_leaves_nothing(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """Nothing but the begun window, which the next session finishes."""
        _write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.close()
        with target.connect(owner) as other:
            assert self.records(target) == []
            assert mark_of(other).begun == window
            _write_window(other, window, plan, self.slice(target, plan, ROWS))
            assert other.finish(window) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)

    def test_finish_without_the_rows_is_not_applied(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """The rows were written in a session that is lost: the mark must not move without them."""
        _write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.close()
        with target.connect(owner) as other:
            with _refused(target):
                assert other.finish(window) is Outcome.REFUSED
            assert mark_of(other).flushed == -1
        assert self.records(target) == []

    def test_rows_without_start_never_count(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """They belong to no transaction that `finish` would end."""
        with _refused(target):
            session.write(plan, self.slice(target, plan, ROWS))
            session.drain()
        with _refused(target):
            assert session.finish(window) is Outcome.REFUSED
        assert self.records(target) == []

    def test_of_two_sessions_one_delivers(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """Two flushers resume one window. One of them waits, is refused, or raises; rows come once."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        with target.connect(owner) as other:
            with _refused(target):
                _write_window(other, window, plan, self.slice(target, plan, ROWS))
            delivered = [_finished(target, each, window) for each in (session, other)]
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
        with target.connect(owner) as late, _refused(target):
            _write_window(late, first, plan, self.slice(target, plan, ROWS))
            assert late.finish(first) is Outcome.REFUSED
        assert len(self.records(target)) == len(ROWS)
        assert mark_of(session).flushed == 0

    def test_an_error_leaves_nothing_of_the_window(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """Rows that were taken before the error do not count, and the session goes on."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        with pytest.raises(self.unwritable_error):
            _write_and_drain(session, *self.unwritable(target, plan))
        with _refused(target):
            assert session.finish(window) is Outcome.REFUSED
        assert self.records(target) == []
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS, us=BASE_US))
        session.drain()
        assert session.finish(window) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)


def _write_window(session: Session, window: Window, plan: Plan, rows: Slice) -> None:
    session.start(window)
    _write_and_drain(session, plan, rows)


def _write_and_drain(session: Session, plan: Plan, rows: Slice) -> None:
    session.write(plan, rows)
    session.drain()


def _finished(target: Target, session: Session, window: Window) -> bool:
    finished = False
    with _refused(target):
        session.drain()
        finished = session.finish(window) is Outcome.APPLIED
    return finished  # noqa: RET504 -- the block may end by an error that passes


@contextlib.contextmanager
def _refused(target: Target) -> Iterator[None]:
    """Let the block raise what a flusher would meet by trying again."""
    try:
        yield
    except (AssertionError, WalSinkError) as error:
        if not isinstance(error, TargetUnavailable):
            raise
    except Exception as error:
        if target.classify(error) == "fatal":
            raise
