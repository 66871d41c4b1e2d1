"""Kills a flusher at each of its steps: a part of every contract suite.

A query is played without Spark (`wal_sink.testing.micro_batches`), again and again. Each time its flusher
dies, or gets no answer, at another operation on target, log or checkpoint, and another flusher goes on. Then
each row is in the table once, and the ledger says that all is flushed.

A flusher dies by an exception in this process: its sessions are closed, as a server does that has lost them.
So `close` must do nothing but that. What a driver loses with its process shows only by a kill of the process,
as in `StagedContract`; what a server loses, by `RestartContract`.
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
"""They share a window."""


class KillsContract(RowsContract):
    """Part of the suite of every session."""

    most_kills = 1_000
    """At how many operations each test injects its fault, at most: fewer where a target takes long.

    One is the end of a window, where rows and ledger become one; the others lie at equal distances.
    """

    @pytest.mark.usefixtures("plan")
    def test_flusher_that_dies_anywhere_loses_nothing(self, target: Target) -> None:
        """Before each operation, that is after the one before; and between the steps of `finish`."""
        with target.connect(new_query()) as session:
            kinds = type(target), type(session)
        self.play_all(
            target,
            lambda at: CallFaults(kinds, "finish", at),
            lambda operations: different_faults(operations, "before"),
        )

    def test_answer_that_is_lost_anywhere_loses_nothing(self, target: Target) -> None:
        """The operation took effect, and the flusher runs on."""
        self.play_all(
            target,
            lambda at: Faults(at, "after", AnswerLost),
            lambda operations: [
                number
                for number, name in enumerate(operations)
                if changes(name) or name == "read ledger"
            ],
        )

    def query(self, target: Target) -> PlayedKills:
        """Return the query that is played; `refusals` has another one."""
        return PlayedKills(target, self.frame)

    def play_all(
        self,
        target: Target,
        faults_at: Callable[[int | None], Faults],
        choose: Callable[[Sequence[str]], list[int]],
    ) -> None:
        """Play a query with a fault at each chosen operation of a play without any."""
        expected: Table = {}
        whole = faults_at(None)
        self._play(target, whole, expected)
        assert whole.operations, "nothing is injected into a flusher of this target"
        ends = [k for k, name in enumerate(whole.operations) if name.startswith("finish ")][-1:]
        others = [k for k in choose(whole.operations) if k not in ends]
        step = -(-len(others) // max(1, self.most_kills - len(ends))) or 1
        spread = [*ends, *others[step - 1 :: step]][: self.most_kills]
        played = [faults_at(at) for at in sorted(spread)]
        for faults in played:
            self._play(target, faults, expected)
        injected = [faults for faults in played if faults.injected]
        # A driver may make other calls each time.
        assert len(injected) > len(played) / 2, "its operations are others each time"

    def _play(self, target: Target, faults: Faults, expected: Table) -> None:
        """Play a query with one fault.

        :param expected: what the table holds; gets the rows of this query.
        """
        query = self.query(target)
        try:
            self._check(query, faults, expected)
        finally:  # an open transaction would hold up what drops the table
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
    """A query with rows of a suite, under keys of its own."""

    def __init__(self, target: Target, frame: Callable[[Rows], pa.RecordBatch]) -> None:
        super().__init__(target, frame([]).schema)
        self._frame = frame
        with target.connect(self.query_id) as session:
            self.idempotent = isinstance(session, IdempotentSession)

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the suite does."""
        return self._frame(rows)

    def before_flush(self) -> None:
        """Act when all epochs are published."""

    def partitions(self, epoch: int) -> tuple[list[Record], list[Record]]:
        """Return rows of an epoch; where the target has a key, one that each epoch has."""
        k, n = self.query_id, 0 if self.idempotent else epoch
        return [(k, n, epoch, "x"), (k, 10 + epoch, epoch, None)], [(k, 20 + epoch, epoch, "y")]

    def rows(self, last: int) -> Table:
        """Return what the table holds of the epochs up to one."""
        parts = [part for epoch in range(last + 1) for part in self.partitions(epoch)]
        return {(str(k), int(n or 0)): (v, t) for part in parts for k, n, v, t in part}

    def flushed(self) -> int:
        """Read up to which epoch the ledger says that rows are in the table."""
        with self.target.connect(self.query_id) as session:
            row = session.read()
        return row.epoch if row else -1
