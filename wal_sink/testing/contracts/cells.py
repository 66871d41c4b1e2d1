"""Contract suites for targets with an `IdempotentSession`: a row consists of cells with write timestamps."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from wal_sink.errors import InvalidRow
from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import IdempotentSession, RowSlice, Session, Target
from wal_sink.testing.contracts.kills import KillsContract
from wal_sink.testing.contracts.ledger import finish, following, row_of
from wal_sink.testing.contracts.rows import BASE_US, ROWS


class SequentialContract(KillsContract):
    """The suite for an `IdempotentSession` without `parallel_writes`: one session writes all rows."""

    parallel = False
    """The value that the target's `parallel_writes` must have."""

    def test_session_is_of_this_suite(self, target: Target, session: Session) -> None:
        assert isinstance(session, IdempotentSession), "see wal_sink.testing.contracts"
        assert target.parallel_writes == self.parallel, "use TargetContract for parallel_writes"

    def test_rows_are_durable_after_drain(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Rows are in the table when `drain` returns, and the ledger row is unchanged until `finish`."""
        write(session, plan, self.slice(target, plan, ROWS))
        assert self.rows(target) == {("a", 1): (10, "x"), ("b", 2): (None, "y")}
        assert row_of(session).epoch == -1

    def test_rows_written_again_change_nothing(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A slice is written again: whole, in parts, and after a newer row of its key."""
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
        with pytest.raises(InvalidRow, match="n"):
            self.slice(target, plan, [("a", 1, 1, "x"), ("a", None, 1, "x")])


class TargetContract(SequentialContract):
    """The suite for an `IdempotentSession` with `parallel_writes`: many sessions write rows."""

    parallel = True

    def test_rows_of_another_process_count(
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


def _write_elsewhere(target: Target, query_id: str, plan: Plan, rows: RowSlice) -> None:
    with target.connect(query_id) as session:
        write(session, plan, rows)


def write(session: Session, plan: Plan, rows: RowSlice) -> None:
    """Write rows and drain the session."""
    assert isinstance(session, IdempotentSession)
    session.write(plan, rows)
    session.drain()
