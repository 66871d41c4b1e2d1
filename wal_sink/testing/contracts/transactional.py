"""Checks targets whose rows count when `finish` takes effect: guarantee 7, and what SQL databases owe.

A plug-in author gives a fixture and two methods, the same for each suite here::

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
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Target, TransactionalSession
from wal_sink.targets.sql import SqlTarget
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.testing.contracts.kills import KillsContract
from wal_sink.testing.contracts.ledger import finish, following, row_of
from wal_sink.testing.contracts.rows import ROWS, Record, Table, deliver, refused


class CountedContract(KillsContract):
    """Part of the suites for targets that add rows; needs the fixture `target` and `records`."""

    @abstractmethod
    def records(self, target: Target) -> list[Record]:
        """Read the whole table by other means than the target, doubled rows twice."""

    def rows(self, target: Target) -> Table:
        """Return the rows by (k, n); fail for one that is in the table twice."""
        records = self.records(target)
        assert len(set(records)) == len(records), "rows are doubled"
        return {(str(k), int(n or 0)): (v, t) for k, n, v, t in records}

    def assert_records(self, target: Target, expected: Sequence[Record]) -> None:
        """Compare the table with rows, in any order."""
        assert sorted(map(str, self.records(target))) == sorted(map(str, expected))

    def test_rows_are_visible_after_finish_only(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """While rows are written readers see none of them; afterwards all."""
        current = row_of(session)
        session.write(plan, self.slice(target, plan, ROWS))
        assert self.records(target) == []
        assert finish(session, current, following(current)) is Outcome.APPLIED
        self.assert_records(target, ROWS)

    def test_equal_rows_are_all_kept(self, target: Target, plan: Plan, session: Session) -> None:
        """Without a key, each row of the log is a row of the table: balances and counters are exact."""
        deliver(session, plan, self.slice(target, plan, ROWS), self.slice(target, plan, ROWS))
        deliver(session, plan, self.slice(target, plan, ROWS))
        self.assert_records(target, ROWS * 3)

    @pytest.mark.parametrize("first", [0, 1])
    def test_one_of_two_sessions_adds_rows(
        self, target: Target, plan: Plan, session: Session, query_id: str, first: int
    ) -> None:
        """Two flushers write one window. One of them waits, has a conflict, or raises; rows come once."""
        current, rows = row_of(session), self.slice(target, plan, ROWS)
        session.write(plan, rows)
        with target.connect(query_id) as other:
            with refused(target):
                if other.read() == current:
                    other.write(plan, rows)
            both = (session, other)
            applied = [_finished(target, both[i], current) for i in (first, 1 - first)]
        with target.connect(query_id) as third:
            assert sum(applied) <= 1
            if not any(applied):  # each has kept the other from it
                assert third.read() == current
                deliver(third, plan, rows)
            assert row_of(third).epoch == current.epoch + 1
        assert len(self.records(target)) == len(ROWS)

    def test_stalled_session_adds_no_rows(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """It wakes after another one has finished the window: before it writes, or after."""
        rows = self.slice(target, plan, ROWS)
        with target.connect(query_id) as stalled:
            current = row_of(stalled)
            deliver(session, plan, rows)
            with refused(target):
                stalled.write(plan, rows)
                assert finish(stalled, current, following(current)) is Outcome.CONFLICT
        self.assert_records(target, ROWS)
        assert row_of(session).epoch == current.epoch + 1


def _finished(target: Target, session: Session, current: LedgerRow) -> bool:
    finished = False
    with refused(target):
        finished = finish(session, current, following(current)) is Outcome.APPLIED
    return finished  # noqa: RET504 -- the block may end by an error that passes


class TransactionalContract(CountedContract):
    """Subclass as `Test…` with a fixture `target`, `records` and `doubles`."""

    def test_session_is_of_this_suite(self, target: Target, session: Session) -> None:
        """A transaction belongs to one session."""
        assert isinstance(session, TransactionalSession), "see wal_sink.testing.contracts.cells"
        assert not target.parallel_writes


class SqlContract(TransactionalContract):
    """Subclass as `Test…` with a fixture `target`, `records` and `doubles`."""

    @pytest.fixture
    def connection(self, target: Target, plan: Plan) -> Iterator[Any]:
        """Open a connection as a session does."""
        assert isinstance(target, SqlTarget), "use TransactionalContract"
        assert plan.target == target.name
        connection = target.open()
        yield connection
        with contextlib.suppress(Exception):  # a test may have closed it
            connection.close()

    @pytest.fixture
    def ledger(self, target: Target, connection: Any, query_id: str) -> Ledger:
        """Return the ledger row of the session, in the connection's transaction."""
        assert isinstance(target, SqlTarget)
        return Ledger(connection, target.ledger_name, target.parameter, query_id)

    @pytest.fixture
    def uncommitted(
        self, target: Target, plan: Plan, session: Session, connection: Any, ledger: Ledger
    ) -> Any:
        """Return the connection with all that finishes a window, but COMMIT."""
        assert isinstance(target, SqlTarget)
        current = row_of(session)
        assert ledger.hold(current)
        target.insert(connection, plan, self.slice(target, plan, ROWS).batch)
        assert ledger.move(current, following(current))
        return connection

    @pytest.mark.parametrize("end", ["close", "rollback"])
    def test_uncommitted_window_leaves_neither_rows_nor_epoch(
        self, target: Target, plan: Plan, session: Session, uncommitted: Any, end: str
    ) -> None:
        """The connection is lost between the last statement and COMMIT, or goes on."""
        getattr(uncommitted, end)()
        assert row_of(session).epoch == -1, "the ledger's table has no transactions"
        assert self.records(target) == [], "the table has no transactions"
        deliver(session, plan, self.slice(target, plan, ROWS))

    @pytest.mark.usefixtures("session")
    def test_window_has_one_commit(
        self, target: Target, plan: Plan, query_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The connection is lost before the first COMMIT of the window, or the second, and so on."""
        assert isinstance(target, SqlTarget)
        rows = self.slice(target, plan, ROWS)
        commits, open_ = _Commits(), target.open
        monkeypatch.setattr(target, "open", lambda: _Connection(open_(), commits))
        for rows_before in itertools.count():
            with target.connect(query_id) as session:
                current = row_of(session)
                commits.left = rows_before
                with contextlib.suppress(_ConnectionLost):
                    session.write(plan, rows)
                    finish(session, current, following(current))
                lost, commits.left = commits.left < 0, None
            with target.connect(query_id) as other:
                epoch = row_of(other).epoch
            assert len(self.records(target)) == len(ROWS) * (epoch + 1)
            if not lost:
                break
        assert rows_before > 0, "sessions commit over other connections than those of `open`"

    def test_refused_rows_raise_in_insert(
        self, target: Target, plan: Plan, connection: Any
    ) -> None:
        """Not later: the session takes what raises nothing for rows that are in the table."""
        assert isinstance(target, SqlTarget)
        changed, rows = self.unwritable(target, plan)
        with pytest.raises(Exception):  # noqa: B017, PT011 -- whatever the driver has for it
            target.insert(connection, changed, rows.batch)

    def test_update_counts_the_rows_it_finds(self, session: Session, ledger: Ledger) -> None:
        """Also where it changes nothing: a claim may write the row as it is."""
        assert ledger.touch(row_of(session)) == 1

    def test_ledger_row_moves_in_its_transaction_only(
        self, session: Session, connection: Any, ledger: Ledger
    ) -> None:
        """A driver that has lost the transaction, and connected again without an error, moves nothing."""
        current = row_of(session)
        assert ledger.hold(current)
        connection.rollback()
        assert not ledger.move(current, following(current))


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
