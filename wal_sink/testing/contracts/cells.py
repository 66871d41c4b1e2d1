"""Checks a target against what `wal_sink.targets.base` promises: the contract suite of targets.

A plug-in author runs the suite of the target's delivery, by giving a fixture and two methods::

    class TestMyTarget(TargetContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # writes to an empty table with the columns of SCHEMA and the key (k, n); nulls unset

        def rows(self, target: Target) -> dict[tuple[str, int], tuple[int | None, str | None]]:
            ...  # read the table by other means: {(k, n): (v, t)}

        def doubles(self, target: Target) -> list[float | None]:
            ...  # read column d

========================================  ==============================================  ==============
suite                                     for                                             guarantees
========================================  ==============================================  ==============
`TargetContract`                          `Delivery.IDEMPOTENT` with `parallel_writes`    1 to 6
`SequentialContract`                      `Delivery.IDEMPOTENT` without it                1 to 5
`transactional.TransactionalContract`     `Delivery.TRANSACTIONAL`                        1, 2, 7 and 8
`transactional.SqlContract`               the same, on `targets.sql.SqlTarget`            1, 2, 7 and 8
`staged.StagedContract`                   `Delivery.STAGED` with `parallel_writes`        1, 2, 9 to 11
========================================  ==============================================  ==============

Each of them kills flushers at each step (`wal_sink.testing.contracts.kills`).
`wal_sink.testing.contracts.restart` is for any whose server a test can kill, derived together with it.

No test of a suite passes without having checked something: what a target does not promise is in another one,
and each refuses a target that promises more or less.
"""

from __future__ import annotations

import multiprocessing

import pytest

from wal_sink.errors import InvalidRow
from wal_sink.model.ledger import Outcome, Owner
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Delivery, Session, Slice, Target
from wal_sink.testing.contracts.kills import KillsContract
from wal_sink.testing.contracts.ledger import begin, begun_window, finish
from wal_sink.testing.contracts.rows import (
    BASE_US,
    SCHEMA,
    Record,
    Table,
    deliver,
)

__all__ = ["SCHEMA", "Record", "SequentialContract", "Table", "TargetContract"]


class SequentialContract(KillsContract):
    """Subclass as `Test…` with a fixture `target` and `rows`: rows are cells, one session writes them."""

    parallel = False
    """Whether this suite checks guarantee 6."""

    def test_the_target_is_what_this_suite_is_for(self, target: Target) -> None:
        """Another suite checks what else it promises."""
        assert target.delivery is Delivery.IDEMPOTENT, (
            "use wal_sink.testing.contracts.transactional"
        )
        assert target.parallel_writes == self.parallel, "use TargetContract for parallel_writes"

    def test_what_is_offered_and_not_written_is_not_there(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The rows of another attempt at the epoch have the same timestamps, and may be as many."""
        deliver(session, plan, self.slice(target, plan, [("a", 1, 1, "x")]))
        lost = self.slice(target, plan, [("a", 1, 9, "lost"), ("b", 1, 9, "lost")], BASE_US + 5)
        kept = self.slice(target, plan, [("a", 1, 2, "kept"), ("c", 1, 2, "kept")], BASE_US + 5)
        session.offer(iter([(plan, lost)]))
        deliver(session, plan, kept)
        assert self.rows(target) == {("a", 1): (2, "kept"), ("c", 1): (2, "kept")}

    def test_what_is_offered_goes_with_a_begin_that_is_refused(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Another flusher has won: its rows may be others."""
        deliver(session, plan, self.slice(target, plan, [("a", 1, 1, "x")]))
        lost = self.slice(target, plan, [("a", 1, 9, "lost")], BASE_US + 5)
        session.offer(iter([(plan, lost)]))
        assert begin(session, begun_window(7)) is Outcome.CONFLICT
        deliver(session, plan)
        assert self.rows(target) == {("a", 1): (1, "x")}

    def test_what_is_offered_and_written_is_there(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """More slices than a session takes, of one plan that is new."""
        slices = []
        for i in range(30):
            records: list[Record] = [(f"k{n}", 500 * i + n, i, str(i)) for n in range(500)]
            slices.append(self.slice(target, plan, records, BASE_US + 500 * i))
        for part in (slices[:2], slices[2:]):
            session.offer((plan, each) for each in part)
            deliver(session, plan, *part)
        assert self.rows(target) == {
            (f"k{n}", 500 * i + n): (i, str(i)) for i in range(30) for n in range(500)
        }

    def test_writing_again_changes_nothing(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The same slice, again and after a newer one, leaves the table as it is."""
        old = self.slice(target, plan, [("a", 1, 1, "old"), ("b", 1, 1, None)])
        new = self.slice(target, plan, [("a", 1, 2, "new")], us=BASE_US + 100)
        for rows in (old, old, new, old):
            _written(session, plan, rows)
        assert self.rows(target) == {("a", 1): (2, "new"), ("b", 1): (1, None)}

    def test_inside_a_slice_the_last_row_of_a_key_wins(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Row i has timestamp first + i."""
        records = [("a", 1, value, str(value)) for value in (3, 1, 2)]
        _written(session, plan, self.slice(target, plan, records))
        assert self.rows(target) == {("a", 1): (2, "2")}

    def test_slices_may_be_cut_in_another_way(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """A flusher that lags writes a part of the rows again: each has its own timestamp in every slice."""
        records = [("a", 1, value, str(value)) for value in (3, 1, 2)]
        whole = self.slice(target, plan, records)
        _written(session, plan, whole)
        for first in (1, 0):
            part = whole._replace(
                batch=whole.batch.slice(first, 1), first_us=whole.first_us + first
            )
            _written(session, plan, part)
        assert self.rows(target) == {("a", 1): (2, "2")}

    def test_unset_nulls_keep_the_older_value(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """Under `nulls=unset` a null leaves the cell alone."""
        _written(session, plan, self.slice(target, plan, [("a", 1, 5, "x")]))
        _written(session, plan, self.slice(target, plan, [("a", 1, None, "y")], us=BASE_US + 1))
        assert self.rows(target) == {("a", 1): (5, "y")}

    def test_a_null_key_is_refused_before_anything_is_published(
        self, target: Target, plan: Plan
    ) -> None:
        """`check` names the column."""
        with pytest.raises(InvalidRow, match="n"):
            self.slice(target, plan, [("a", 1, 1, "x"), ("a", None, 1, "x")])


class TargetContract(SequentialContract):
    """Subclass as `Test…` with a fixture `target` and `rows`: rows are cells, many sessions write them."""

    parallel = True

    def test_rows_of_another_process_count(
        self, target: Target, plan: Plan, session: Session, owner: Owner
    ) -> None:
        """Written elsewhere between `start` and the last update, they are there."""
        assert target.parallel_writes, (
            "this target promises nothing of the kind: use SequentialContract"
        )
        window = begun_window(0, rows=2)
        assert begin(session, window) is Outcome.APPLIED
        session.start(window)
        session.write(plan, self.slice(target, plan, [("a", 1, 1, "here")]))
        elsewhere = self.slice(target, plan, [("a", 1, 2, "elsewhere")], us=BASE_US + 1)
        process = multiprocessing.get_context("forkserver").Process(
            target=_write_elsewhere, args=(target, owner, plan, elsewhere)
        )
        process.start()
        process.join()
        assert process.exitcode == 0
        assert finish(session, window) is Outcome.APPLIED
        assert self.rows(target) == {("a", 1): (2, "elsewhere")}


def _write_elsewhere(target: Target, owner: Owner, plan: Plan, rows: Slice) -> None:
    with target.connect(owner) as session:
        _written(session, plan, rows)


def _written(session: Session, plan: Plan, rows: Slice) -> None:
    session.write(plan, rows)
    session.drain()
