"""Kills a flusher at each of its steps: a part of every session's suite.

Each play runs a query without Spark (`wal_sink.testing.micro_batches`). In each play the flusher dies, or
loses an answer, at a different operation on target, log or checkpoint. Then another flusher continues, each
row must be in the table once, and the ledger row must name the last epoch.

A flusher dies by an exception in this process. The suite then closes the flusher's sessions, as a server ends
the sessions of a dead client, so `close` must not write anything. Some losses need more: `StagedContract`
kills the flusher's process, and `RestartContract` kills the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from wal_sink.targets.base import IdempotentSession, Target
from wal_sink.testing.contracts.ledger import Table, new_query
from wal_sink.testing.contracts.rows import Record, RowsContract
from wal_sink.testing.faults import AnswerLost, CallFaults, Crash, Faults, changes, different_faults
from wal_sink.testing.micro_batches import PlayedQuery, Rows, flush

__all__ = ["KillsContract"]

EPOCHS = 2
"""The epochs of a play, which are one window."""


class KillsContract(RowsContract):
    """A part of every session's suite."""

    most_kills = 1_000
    """The maximum number of plays of a test; lower it for a slow target.

    One play has its fault in the `finish` of the window. The others have their faults at equal distances.
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
        """Play a query without a fault, then one query for each fault.

        :param make_query: makes a query for each play.
        :param faults_at: makes a fault at an operation, by its number; None makes no fault.
        :param choose: returns the numbers of the operations that get a fault.
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
        # A driver may make different calls in each play, so some numbers may not occur again.
        assert injected > len(numbers) / 2, "the operations differ from play to play"

    def _play(self, query: PlayedKills, faults: Faults, expected: Table) -> None:
        """Play a query with one fault.

        :param expected: the rows of the table before this query; the rows of the query are added.
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
            flush(query.flusher(faults))
        query.end_sessions()
        if not query.idempotent:
            visible = expected | query.rows(query.flushed())
            assert self.rows(query.target) == visible, f"after a fault at {faults.injected}"
        flush(query.flusher())
        expected |= query.rows(EPOCHS - 1)
        assert self.rows(query.target) == expected, (
            f"a fault at {faults.injected}, and another flusher"
        )
        assert query.flushed() == EPOCHS - 1


class PlayedKills(PlayedQuery):
    """A query with rows of the suite, whose keys no other query has."""

    def __init__(self, target: Target, frame: Callable[[Rows], pa.RecordBatch]) -> None:
        super().__init__(target, frame([]).schema)
        self._frame = frame
        with target.connect(self.query_id) as session:
            self.idempotent = isinstance(session, IdempotentSession)

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the suite's `frame` does."""
        return self._frame(rows)

    def before_flush(self) -> None:
        """Do nothing; a suite may change the table when all epochs are published."""

    def partitions(self, epoch: int) -> tuple[list[Record], list[Record]]:
        """Return the rows of an epoch; if the table has a key, both epochs write one row with it."""
        k, n = self.query_id, 0 if self.idempotent else epoch
        return [(k, n, epoch, "x"), (k, 10 + epoch, epoch, None)], [(k, 20 + epoch, epoch, "y")]

    def rows(self, last: int) -> Table:
        """Return the table's rows of the epochs up to `last`."""
        parts = [part for epoch in range(last + 1) for part in self.partitions(epoch)]
        return {(str(k), int(n or 0)): (v, t) for part in parts for k, n, v, t in part}

    def flushed(self) -> int:
        """Read the epoch of the ledger row; -1 if the query has no row."""
        with self.target.connect(self.query_id) as session:
            row = session.read()
        return row.epoch if row else -1
