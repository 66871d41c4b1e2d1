"""Checks targets whose rows count when `commit` takes effect: guarantees 7 and 8, and those of SQL databases.

A plug-in author gives a fixture and two methods, alike to each suite here::

    class TestMyTarget(TransactionalContract):  # or SqlContract, of a target that derives SqlTarget
        @pytest.fixture
        def target(self) -> Target:
            ...  # adds rows to an empty table with the columns of SCHEMA and no key

        def records(self, target: Target) -> list[tuple[str | None, int | None, int | None, str | None]]:
            ...  # read the table by other means: (k, n, v, t), a row that is there twice comes twice

        def doubles(self, target: Target) -> list[float | None]:
            ...  # read column d

`CountedContract` has what is common to them and to `staged`. `SqlContract` also checks that ledger row and
rows are in one transaction of the database.
"""

from __future__ import annotations

import contextlib
import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

import pytest

from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.protocol import ledger as protocol
from wal_sink.targets.base import Delivery, Session, Target
from wal_sink.targets.sql import SqlTarget
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.testing.contracts.kills import KillsContract
from wal_sink.testing.contracts.ledger import begin, begun_window, commit, finish, row_of
from wal_sink.testing.contracts.rows import (
    ROWS,
    Record,
    Table,
    deliver,
    drained,
    refused,
    write_and_drain,
    write_window,
)


class CountedContract(KillsContract):
    """Part of the suites for targets that add rows; needs the fixture `target` and `records`."""

    @abstractmethod
    def records(self, target: Target) -> list[Record]:
        """Read the whole table by other means than the target, doubled rows twice."""

    def rows(self, target: Target) -> Table:
        """Return the rows by (k, n); fail for one that is there twice."""
        records = self.records(target)
        assert len(set(records)) == len(records), "rows are doubled"
        return {(str(k), int(n or 0)): (v, t) for k, n, v, t in records}

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
            assert row_of(other).begun == window
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
                assert row_of(third).flushed == 0
        assert len(self.records(target)) == len(ROWS)

    def test_a_window_is_finished_once(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """A flusher that wakes after the window was finished, and another one begun, adds nothing."""
        deliver(session, plan, self.slice(target, plan, ROWS))
        first = row_of(session).last
        assert first is not None
        begin(session, begun_window(1, rows=len(ROWS)))
        with target.connect(owner) as late, refused(target):
            receipts = write_window(late, first, plan, self.slice(target, plan, ROWS))
            assert finish(late, first, receipts) is Outcome.CONFLICT
        assert len(self.records(target)) == len(ROWS)
        assert row_of(session).flushed == 0


def _finished(target: Target, session: Session, window: Window) -> bool:
    finished = False
    with refused(target):
        finished = finish(session, window, drained(session)) is Outcome.APPLIED
    return finished  # noqa: RET504 -- the block may end by an error that passes


class TransactionalContract(CountedContract):
    """Subclass as `Test…` with a fixture `target`, `records` and `doubles`."""

    def test_the_target_is_what_this_suite_is_for(self, target: Target) -> None:
        """A transaction belongs to one session."""
        assert target.delivery is Delivery.TRANSACTIONAL, (
            "see the suites of wal_sink.testing.contracts"
        )
        assert not target.parallel_writes

    def test_start_forgets_what_was_drained(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """The server has taken the rows, and its transaction is given up."""
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert finish(session, window) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)

    def test_finish_without_the_rows_is_not_applied(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """The rows were written in a session that is lost: the mark must not move without them."""
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.close()
        with target.connect(owner) as other:
            with refused(target):
                assert finish(other, window) is Outcome.CONFLICT
            assert row_of(other).flushed == -1
        assert self.records(target) == []

    def test_another_update_commits_no_rows(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """The rows belong to `commit`; an update of the row in between gives them up."""
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        seen = row_of(session)
        moved = protocol.create(owner, 7)
        assert session.compare_and_set(seen, moved) is Outcome.APPLIED
        assert self.records(target) == []
        with refused(target):
            assert commit(session, seen) is Outcome.CONFLICT
        assert self.records(target) == []
        assert row_of(session) == moved

    def test_rows_without_start_never_count(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """They belong to no transaction that `finish` would end."""
        with refused(target):
            write_and_drain(session, plan, self.slice(target, plan, ROWS))
        with refused(target):
            assert finish(session, window) is Outcome.CONFLICT
        assert self.records(target) == []

    def test_an_error_leaves_nothing_of_the_window(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """The transaction is over: `finish` must not commit the rows before the error."""
        session.start(window)
        session.write(plan, self.slice(target, plan, ROWS))
        with pytest.raises(self.unwritable_error):
            write_and_drain(session, *self.unwritable(target, plan))
        with refused(target):
            assert finish(session, window) is Outcome.CONFLICT
        assert self.records(target) == []


PROOF = "0123456789abcdef"


class SqlContract(TransactionalContract):
    """Subclass as `Test…` with a fixture `target`, `records` and `doubles`."""

    @pytest.fixture
    def connection(self, target: Target, plan: Plan) -> Iterator[Any]:
        """Open a connection as a session does."""
        assert isinstance(target, SqlTarget), "use wal_sink.testing.contracts.transactional"
        assert plan.target == target.name
        connection = target.open()
        yield connection
        with contextlib.suppress(Exception):  # a test may have closed it
            connection.close()

    @pytest.fixture
    def ledger(self, target: Target, connection: Any, owner: Owner) -> Ledger:
        """Return the ledger row of the session, in the connection's transaction."""
        assert isinstance(target, SqlTarget)
        return Ledger(connection, target.ledger_name, target.parameter, owner)

    @pytest.fixture
    def uncommitted(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        window: Window,
        connection: Any,
        ledger: Ledger,
    ) -> Any:
        """Return the connection with all that finishes a window, but COMMIT."""
        assert isinstance(target, SqlTarget)
        seen = row_of(session)
        assert ledger.lock(window, PROOF)
        target.insert(connection, plan, self.slice(target, plan, ROWS).batch)
        assert ledger.replace(seen, protocol.finish(seen), PROOF)
        return connection

    def test_what_is_not_committed_leaves_neither_rows_nor_mark(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        window: Window,
        uncommitted: Any,
    ) -> None:
        """The connection is lost between the last statement and COMMIT: ledger and table are as before."""
        uncommitted.close()
        row = row_of(session)
        assert (row.flushed, row.begun) == (-1, window), "the ledger's table has no transactions"
        assert self.records(target) == [], "the table has no transactions"
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert finish(session, window) is Outcome.APPLIED

    @pytest.mark.usefixtures("session")
    def test_a_window_has_one_commit(
        self, target: Target, plan: Plan, owner: Owner, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The connection is lost before the first COMMIT since `start`, or the second, and so on."""
        assert isinstance(target, SqlTarget)
        rows = self.slice(target, plan, ROWS)
        commits, open_ = _Commits(), target.open
        monkeypatch.setattr(target, "open", lambda: _Connection(open_(), commits))
        for before in itertools.count():
            with target.connect(owner) as session:
                row = row_of(session)
                if (window := row.begun) is None:
                    window = begun_window(row.flushed + 1, rows=len(ROWS))
                    assert begin(session, window) is Outcome.APPLIED
                commits.left = before
                with contextlib.suppress(_ConnectionLost):
                    write_window(session, window, plan, rows)
                    finish(session, window)
                lost, commits.left = commits.left < 0, None
            with target.connect(owner) as other:
                flushed = row_of(other).flushed
            assert len(self.records(target)) == len(ROWS) * (flushed + 1)
            if not lost:
                break
        assert before > 0, "sessions commit over other connections than those of `open`"

    def test_what_the_database_refuses_is_raised(
        self, target: Target, plan: Plan, connection: Any
    ) -> None:
        """By `insert`, not later: the session takes what raises nothing for rows that are there."""
        assert isinstance(target, SqlTarget)
        changed, rows = self.unwritable(target, plan)
        with pytest.raises(Exception):  # noqa: B017, PT011 -- whatever the driver has for it
            target.insert(connection, changed, rows.batch)

    def test_a_rollback_takes_back_rows_and_mark(
        self, target: Target, session: Session, window: Window, uncommitted: Any
    ) -> None:
        """The same on a connection that goes on."""
        uncommitted.rollback()
        assert row_of(session).begun == window
        assert self.records(target) == []

    def test_an_update_counts_the_rows_that_it_finds(self, window: Window, ledger: Ledger) -> None:
        """Where it changes nothing, too: an operator's command may write the row as it is."""
        row = ledger.read()
        assert row is not None
        assert row.begun == window
        assert ledger.touch(row) == 1

    def test_only_the_transaction_that_holds_the_row_finishes(
        self, window: Window, connection: Any, ledger: Ledger
    ) -> None:
        """It alone reads the proof that it has written; `begun` is read as ever."""
        assert ledger.lock(window, PROOF)
        row = ledger.read()
        assert row is not None
        assert row.begun == window
        assert not ledger.replace(row, protocol.finish(row), "1" + PROOF)
        connection.rollback()
        assert not ledger.replace(row, protocol.finish(row), PROOF)


class _ConnectionLost(Exception):
    """The connection is lost before a COMMIT."""


class _Commits:
    """Counts COMMITs down to the one that does not come."""

    left: int | None = None
    """How many come before it; -1: it is over; None: all of them come."""


class _Connection:
    """A connection of a target that may be lost before a COMMIT."""

    def __init__(self, inner: Any, commits: _Commits) -> None:
        self._inner = inner
        self._commits = commits
        self._closed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def commit(self) -> None:
        """Commit, or close the connection in place of it."""
        if self._commits.left is not None:
            self._commits.left -= 1
            if self._commits.left < 0:
                self.close()
                raise _ConnectionLost
        self._inner.commit()

    def close(self) -> None:
        """Close it once: a driver may raise the second time."""
        if not self._closed:
            self._closed = True
            self._inner.close()
