"""Checks a target that derives `SqlTarget`: that ledger row and rows are in one transaction of the database.

A plug-in author gives what `AtomicContract` takes::

    class TestMyTarget(SqlContract):
        @pytest.fixture
        def target(self) -> SqlTarget: ...

        def records(self, target: Target) -> list[tuple[str | None, int | None, int | None, str | None]]: ...
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from wal_sink.model.ledger import Outcome, Owner, Window
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, Target
from wal_sink.targets.sql import SqlTarget
from wal_sink.targets.sql.ledger import Ledger
from wal_sink.testing.contracts.atomic import AtomicContract
from wal_sink.testing.contracts.counted import ROWS, write_window
from wal_sink.testing.contracts.ledger import mark_of

__all__ = ["SqlContract"]


class SqlContract(AtomicContract):
    """Subclass as `Test…` with a fixture `target` and `records`."""

    @pytest.fixture
    def connection(self, target: Target, plan: Plan) -> Iterator[Any]:
        """Open a connection as a session does."""
        assert isinstance(target, SqlTarget), "use wal_sink.testing.contracts.atomic"
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

    def test_what_is_not_committed_leaves_neither_rows_nor_mark(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        window: Window,
        connection: Any,
        ledger: Ledger,
    ) -> None:
        """The connection is lost between the last statement and COMMIT: ledger and table are as before."""
        assert isinstance(target, SqlTarget)
        assert ledger.lock(window)
        target.insert(connection, plan, self.slice(target, plan, ROWS).batch)
        assert ledger.finish(window)
        connection.close()
        mark = mark_of(session)
        assert (mark.flushed, mark.begun) == (-1, window), "the ledger's table has no transactions"
        assert self.records(target) == [], "the table has no transactions"
        write_window(session, window, plan, self.slice(target, plan, ROWS))
        assert session.finish(window) is Outcome.APPLIED

    def test_a_rollback_takes_back_rows_and_mark(
        self,
        target: Target,
        plan: Plan,
        session: Session,
        window: Window,
        connection: Any,
        ledger: Ledger,
    ) -> None:
        """The same on a connection that goes on."""
        assert isinstance(target, SqlTarget)
        target.insert(connection, plan, self.slice(target, plan, ROWS).batch)
        assert ledger.finish(window)
        connection.rollback()
        assert mark_of(session).begun == window
        assert self.records(target) == []

    def test_an_update_counts_the_rows_that_it_finds(self, window: Window, ledger: Ledger) -> None:
        """The lock of `start` changes nothing, and has to say whether its window is begun."""
        assert ledger.lock(window)
        assert ledger.lock(window)
