"""Tests that kill a flusher at each of its steps (`KillsContract`), or the server (`RestartContract`).

A play is a query without Spark (`wal_sink.testing.micro_batches`). In each play the flusher dies, or loses an
answer, at a different operation on target, log or checkpoint. Then another flusher continues. In the end each
row must be in the table once, and the ledger row must name the last epoch.

The death of a flusher is an exception in this process. The suite then closes the flusher's sessions, as a
server ends the sessions of a dead client, so `close` must not write rows. `StagedContract` also kills the
process of a flusher.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

import pyarrow as pa
import pytest

from wal_sink.model.ledger import Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import IdempotentSession, Session, StagedSession, Target
from wal_sink.testing.contracts.ledger import (
    Table,
    create,
    finish,
    following,
    new_query,
    outcome_of,
    row_of,
    tolerate_retried_errors,
)
from wal_sink.testing.contracts.rows import BASE_US, Record, RowsContract, deliver
from wal_sink.testing.faults import AnswerLost, CallFaults, Crash, Faults, changes, different_faults
from wal_sink.testing.micro_batches import PlayedQuery, Rows, flush_with_retries

EPOCHS = 2
"""The number of epochs of a play. The flusher writes them as one window."""

T = TypeVar("T")
_PATIENCE_S = 60.0
"""Seconds in which a session may fail with transient errors after the restart."""

_DONE: list[Record] = [("done", 1, 1, "x"), ("done", 2, 2, "y")]
_HALVES: tuple[list[Record], list[Record]] = ([("first", 1, 1, "x")], [("second", 1, 1, "x")])


class KillsContract(RowsContract):
    """Tests of a flusher that dies or loses an answer. Every session's suite contains them."""

    most_kills = 1_000
    """The maximum number of faults of a test, each in a play of its own; lower it for a slow target.

    One fault is in the `finish` of the window. The others are evenly spread over the other operations.
    """

    @pytest.mark.usefixtures("plan")
    def test_flusher_that_dies_anywhere_loses_nothing(self, target: Target) -> None:
        """A flusher dies before an operation, or between two calls to the driver in `finish`."""
        with target.connect(new_query()) as session:
            kinds = type(target), type(session)
        self.play_all(
            lambda: PlayedKills(target, self.frame),
            lambda at: CallFaults(kinds, "finish", at),
            lambda operations: different_faults(operations, "before"),
        )

    def test_answer_that_is_lost_anywhere_loses_nothing(self, target: Target) -> None:
        """An operation takes effect, and the flusher gets an error in place of the answer."""
        self.play_all(
            lambda: PlayedKills(target, self.frame),
            lambda at: Faults(at, "after", AnswerLost),
            lambda operations: [
                number
                for number, name in enumerate(operations)
                if changes(name) or name == "read ledger"
            ],
        )

    def play_all(
        self,
        make_query: Callable[[], PlayedKills],
        faults_at: Callable[[int | None], Faults],
        choose: Callable[[Sequence[str]], list[int]],
    ) -> None:
        """Play a query without a fault, and then a query for each fault.

        :param make_query: makes the query of a play.
        :param faults_at: makes a fault at the operation with this number; for None it makes no fault.
        :param choose: gets the names of all operations, and returns the numbers of those that get a fault.
        """
        expected: Table = {}
        faultless = faults_at(None)
        self._play(make_query(), faultless, expected)
        assert faultless.operations, "a flusher of this target has no operation to fail"
        ends = [k for k, name in enumerate(faultless.operations) if name.startswith("finish ")][-1:]
        others = [k for k in choose(faultless.operations) if k not in ends]
        step = -(-len(others) // max(1, self.most_kills - len(ends))) or 1
        numbers = [*ends, *others[step - 1 :: step]][: self.most_kills]
        injected = 0
        for number in sorted(numbers):
            faults = faults_at(number)
            self._play(make_query(), faults, expected)
            injected += faults.injected is not None
        # A driver may make other calls in a later play, so some faults may not occur.
        assert injected > len(numbers) / 2, "the operations differ from play to play"

    def _play(self, query: PlayedKills, faults: Faults, expected: Table) -> None:
        """Play a query with one fault, and add its rows to `expected`.

        :param expected: the rows of the table before this query.
        """
        try:
            self._check(query, faults, expected)
        finally:  # an open transaction would block the DROP TABLE after the test
            query.end_sessions()
            query.forget()

    def _check(self, query: PlayedKills, faults: Faults, expected: Table) -> None:
        run = query.run()
        for epoch in range(EPOCHS):
            run.batch(*query.partitions(epoch))
        query.before_flush()
        with contextlib.suppress(Crash):
            flush_with_retries(query.flusher(faults))
        query.end_sessions()
        if not query.idempotent:
            visible = expected | query.rows(query.flushed())
            assert self.rows(query.target) == visible, f"after a fault at {faults.injected}"
        flush_with_retries(query.flusher())
        expected |= query.rows(EPOCHS - 1)
        assert self.rows(query.target) == expected, (
            f"a fault at {faults.injected}, and another flusher"
        )
        assert query.flushed() == EPOCHS - 1


class PlayedKills(PlayedQuery):
    """A played query with rows of the suite. No other query writes the keys of these rows."""

    def __init__(self, target: Target, frame: Callable[[Rows], pa.RecordBatch]) -> None:
        super().__init__(target, frame([]).schema)
        self._frame = frame
        with target.connect(self.query_id) as session:
            self.idempotent = isinstance(session, IdempotentSession)

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the suite's `frame` does."""
        return self._frame(rows)

    def before_flush(self) -> None:
        """Change the table after all epochs are published. By default do nothing."""

    def partitions(self, epoch: int) -> tuple[list[Record], list[Record]]:
        """Return the rows of an epoch. If the session is idempotent, all epochs share the key of one row."""
        k, n = self.query_id, 0 if self.idempotent else epoch
        return [(k, n, epoch, "x"), (k, 10 + epoch, epoch, None)], [(k, 20 + epoch, epoch, "y")]

    def rows(self, last: int) -> Table:
        """Return the rows that the table must have after the epochs up to `last`."""
        parts = [part for epoch in range(last + 1) for part in self.partitions(epoch)]
        return {(str(k), int(n or 0)): (v, t) for part in parts for k, n, v, t in part}

    def flushed(self) -> int:
        """Return the epoch of the ledger row; -1 if there is no ledger row."""
        with self.target.connect(self.query_id) as session:
            row = session.read()
        return row.epoch if row else -1


class RestartContract(RowsContract):
    """The suite for a target whose server a test can kill.

    The author of a target derives a test class from this suite and from the suite of the session::

        class TestMyTarget(SqlContract, RestartContract):
            def restart(self, target: Target) -> None:
                ...  # kill the server, as a crash does; start it again; return when it answers

    The suite detects a server that acknowledges data before they are durable. It also detects a driver that
    reconnects in the middle of a window without an error, so that its new transaction lacks rows.
    """

    @abstractmethod
    def restart(self, target: Target) -> None:
        """Kill the target's server, as a crash does, and start it again; return when it answers.

        For a target without a server, delete all data that is not durable.
        """

    def test_restart_of_the_server_keeps_whole_windows(self, target: Target, plan: Plan) -> None:
        """One window is finished, and another is half written. Each is in the table whole or not at all."""
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
            with tolerate_retried_errors(target):
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
    """Call `act` with a new session. After a transient error call it again, as a flusher does."""
    give_up_s = time.monotonic() + _PATIENCE_S
    results = list[T]()
    while not results:
        assert time.monotonic() < give_up_s, "the server does not answer"
        with tolerate_retried_errors(target), target.connect(query_id) as session:
            results.append(act(session))
    return results[0]
