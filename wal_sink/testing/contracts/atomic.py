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

import pytest

from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Delivery, Session, Target
from wal_sink.testing.contracts.counted import (
    ROWS,
    CountedContract,
    refused,
    write_and_drain,
    write_window,
)
from wal_sink.testing.contracts.ledger import mark_of

__all__ = ["AtomicContract"]


class AtomicContract(CountedContract):
    """Subclass as `Test…` with a fixture `target` and `records`."""

    def test_the_target_is_what_this_suite_is_for(self, target: Target) -> None:
        """A transaction belongs to one session."""
        assert target.delivery is Delivery.ATOMIC, "see the suites of wal_sink.testing.contracts"
        assert not target.parallel_writes

    def test_start_forgets_what_was_drained(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """The server has taken the rows, and its transaction is given up."""
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert session.finish(window) is Outcome.APPLIED
        assert len(self.records(target)) == len(ROWS)

    def test_finish_without_the_rows_is_not_applied(
        self, target: Target, plan: Plan, session: Session, window: Window, owner: Owner
    ) -> None:
        """The rows were written in a session that is lost: the mark must not move without them."""
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        session.close()
        with target.connect(owner) as other:
            with refused(target):
                assert other.finish(window) is Outcome.REFUSED
            assert mark_of(other).flushed == -1
        assert self.records(target) == []

    def test_rows_without_start_never_count(
        self, target: Target, plan: Plan, session: Session, window: Window
    ) -> None:
        """They belong to no transaction that `finish` would end."""
        with refused(target):
            write_and_drain(session, plan, self.slice(target, plan, ROWS))
        with refused(target):
            assert session.finish(window) is Outcome.REFUSED
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
            assert session.finish(window) is Outcome.REFUSED
        assert self.records(target) == []
