"""Contract suites for targets with a `TransactionalSession`, guarantee 7, and for those on `SqlTarget`."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest

from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Target, TransactionalSession
from wal_sink.targets.sql import SqlTarget
from wal_sink.testing.contracts.kills import KillsContract
from wal_sink.testing.contracts.ledger import finish, following, refused, row_of
from wal_sink.testing.contracts.rows import ROWS, Record, deliver


class CountedContract(KillsContract):
    """A part of the suites for transactional and staged sessions: `finish` makes all rows visible."""

    def assert_records(self, target: Target, expected: Sequence[Record]) -> None:
        """Compare the table with `expected`, in any order."""
        records = [record[:4] for record in self.records(target)]
        assert sorted(map(str, records)) == sorted(map(str, expected))

    def test_rows_are_visible_after_finish_only(
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
        """A flusher wakes after another flusher has finished the window, and writes the window again."""
        rows = self.slice(target, plan, ROWS)
        with target.connect(query_id) as stalled:
            current = row_of(stalled)
            deliver(session, plan, rows)
            with refused(target):
                stalled.write(plan, rows)
                assert finish(stalled, current, following(current)) is Outcome.CONFLICT
        self.assert_records(target, ROWS)
        assert row_of(session).epoch == current.epoch + 1


class TransactionalContract(CountedContract):
    """The suite for a `TransactionalSession`."""

    def test_session_is_of_this_suite(self, target: Target, session: Session) -> None:
        assert isinstance(session, TransactionalSession), "see wal_sink.testing.contracts"
        assert not target.parallel_writes


class SqlContract(TransactionalContract):
    """The suite for a target on `SqlTarget`."""

    def test_refused_rows_raise_in_insert(self, target: Target, plan: Plan) -> None:
        """`insert` itself must raise: the session counts rows as written when `insert` returns."""
        assert isinstance(target, SqlTarget), "use TransactionalContract"
        changed, rows = self.unwritable(target, plan)
        with contextlib.closing(target.open()) as connection, pytest.raises(Exception):  # noqa: B017, PT011 -- any error of the driver
            target.insert(connection, changed, rows.batch)
