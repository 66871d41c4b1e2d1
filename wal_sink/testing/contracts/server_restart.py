"""Contract suite for a target whose server a test can kill.

An author derives it together with the suite of the session::

    class TestMyTarget(SqlContract, RestartContract):
        def restart(self, target: Target) -> None:
            ...  # kill the server, as a crash does; start it again; return when it answers

It finds two faults that the other suites cannot find. A server may acknowledge data before they are durable.
A driver may reconnect in the middle of a window without an error, so its new transaction lacks rows.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import TypeVar

from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Session, StagedSession, Target
from wal_sink.testing.contracts.ledger import (
    create,
    finish,
    following,
    new_query,
    outcome_of,
    refused,
    row_of,
)
from wal_sink.testing.contracts.rows import BASE_US, Record, RowsContract, deliver

__all__ = ["RestartContract"]

T = TypeVar("T")
_PATIENCE_S = 60.0
"""How long a session may fail with transient errors after the restart."""

_DONE: list[Record] = [("done", 1, 1, "x"), ("done", 2, 2, "y")]
_HALVES: tuple[list[Record], list[Record]] = ([("first", 1, 1, "x")], [("second", 1, 1, "x")])


class RestartContract(RowsContract):
    """The suite; derive it together with the suite of the session."""

    @abstractmethod
    def restart(self, target: Target) -> None:
        """Kill the target's server, as a crash does, and start it again; return when it answers.

        A target without a server deletes all data that is not durable.
        """

    def test_restart_of_the_server_keeps_whole_windows(self, target: Target, plan: Plan) -> None:
        """One window is finished and another one half written: each is in the table whole, or not at all."""
        finished, halfway = new_query(), new_query()
        done = self.slice(target, plan, _DONE)
        parts = [self.slice(target, plan, half, BASE_US + 10 + n) for n, half in enumerate(_HALVES)]
        receipts: tuple[bytes, ...] = ()
        with contextlib.ExitStack() as stack:
            session = stack.enter_context(target.connect(finished))
            create(session, finished)
            deliver(session, plan, done)
            other = stack.enter_context(target.connect(halfway))
            current = create(other, halfway)
            assert other.read() == current
            other.write(plan, parts[0])
            if isinstance(other, StagedSession):
                receipts = other.drain()
            self.restart(target)
            lost = "finish returned before the ledger row was durable"
            assert _patiently(target, finished, row_of).epoch == 0, lost
            assert _patiently(target, halfway, row_of) == current, lost
            outcome = Outcome.CONFLICT
            with refused(target):
                other.write(plan, parts[1])
                outcome = outcome_of(
                    target, lambda: finish(other, current, following(current), receipts)
                )
        moved = _patiently(target, halfway, row_of) != current
        if outcome is not Outcome.UNKNOWN:
            assert moved == (outcome is Outcome.APPLIED)

        def deliver_whole(again: Session) -> None:
            if row_of(again) == current:
                for rows in parts:
                    again.write(plan, rows)
                assert finish(again, current, following(current)) is not Outcome.CONFLICT

        _patiently(target, halfway, deliver_whole)
        assert self.rows(target) == {
            (str(k), int(n or 0)): (v, t) for k, n, v, t in (*_DONE, *_HALVES[0], *_HALVES[1])
        }


def _patiently(target: Target, query_id: str, act: Callable[[Session], T]) -> T:
    """Act over a new session; after a transient error, act again, as a flusher does."""
    give_up_s = time.monotonic() + _PATIENCE_S
    results = list[T]()
    while not results:
        assert time.monotonic() < give_up_s, "the server does not answer"
        with refused(target), target.connect(query_id) as session:
            results.append(act(session))
    return results[0]
