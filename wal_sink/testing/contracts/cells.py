"""Checks a target against what `wal_sink.targets.base` promises: the contract suites of targets.

A plug-in author runs the suite of the target's session, by giving a fixture and a method::

    class TestMyTarget(TargetContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # writes to an empty table with the columns of WITH_DOUBLE; nulls unset; for an
            #      IdempotentSession the table has the key (k, n), else none

        def records(self, target: Target) -> list[tuple[str, int, int | None, str | None, float | None]]:
            ...  # read the table by other means: (k, n, v, t, d), a row that is there twice comes twice

========================================  ==============================================  ==============
suite                                     for                                             guarantees
========================================  ==============================================  ==============
`TargetContract`                          `IdempotentSession` with `parallel_writes`      1 to 6
`SequentialContract`                      `IdempotentSession` without it                  1 to 5
`transactional.TransactionalContract`     `TransactionalSession`                          1, 2 and 7
`transactional.SqlContract`               the same, on `targets.sql.SqlTarget`            1, 2 and 7
`staged.StagedContract`                   `StagedSession` with `parallel_writes`          1, 2, 8 to 10
========================================  ==============================================  ==============

Each suite kills flushers at each step (`kills`). Beside a suite: `server_restart.RestartContract` where a test can
kill the server, `refusals.RefusalsContract` where its session raises `RowsRefused`, and those of `deletes`.

No test of a suite passes without having checked something: what a target does not promise is in another one.
"""

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

__all__ = ["SequentialContract", "TargetContract"]


class SequentialContract(KillsContract):
    """Subclass as `Test…`: rows are cells, one session writes them."""

    parallel = False
    """True if this suite checks guarantee 6."""

    def test_session_is_of_this_suite(self, target: Target, session: Session) -> None:
        """Another suite checks what else the target promises."""
        assert isinstance(session, IdempotentSession), (
            "see the suites of wal_sink.testing.contracts"
        )
        assert target.parallel_writes == self.parallel, "use TargetContract for parallel_writes"

    def test_rows_are_durable_after_drain(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Readers may see them before `finish`; the ledger row does not move."""
        write(session, plan, self.slice(target, plan, ROWS))
        assert self.rows(target) == {("a", 1): (10, "x"), ("b", 2): (None, "y")}
        assert row_of(session).epoch == -1

    def test_rows_written_again_change_nothing(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Row i has timestamp first + i, also in a slice that is cut in another way, and comes late."""
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
        """Under `nulls=unset` a null leaves the cell alone."""
        write(session, plan, self.slice(target, plan, [("a", 1, 5, "x")]))
        write(session, plan, self.slice(target, plan, [("a", 1, None, "y")], us=BASE_US + 1))
        assert self.rows(target) == {("a", 1): (5, "y")}

    def test_null_key_is_refused_by_check(self, target: Target, plan: Plan) -> None:
        """Before anything is published; the error names the column."""
        with pytest.raises(InvalidRow, match="n"):
            self.slice(target, plan, [("a", 1, 1, "x"), ("a", None, 1, "x")])


class TargetContract(SequentialContract):
    """Subclass as `Test…`: rows are cells, many sessions write them."""

    parallel = True

    def test_rows_of_another_process_count(
        self, target: Target, plan: Plan, session: Session, query_id: str
    ) -> None:
        """Its session is closed when the flusher calls `finish`."""
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
    """Write rows, and drain."""
    assert isinstance(session, IdempotentSession)
    session.write(plan, rows)
    session.drain()
