"""Kills a flusher at each of its steps: a part of the suite of every delivery.

A query is played without Spark (`wal_sink.testing.micro_batches`), again and again. Each time its flusher
dies, or gets no answer, at another operation upon target, log or checkpoint, and a flusher goes on. Then each
row is there once, and the ledger says that all is flushed.

A flusher dies by an exception in this process: its sessions are closed, as a server does that has lost them.
So `close` must do nothing but that. What a driver loses with its process shows only by a kill of the process,
as in `StagedContract`; what a server loses, by `RestartContract`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
import pytest

from wal_sink.model.ledger import Owner
from wal_sink.targets.base import Delivery, Target
from wal_sink.testing.contracts.ledger import new_owner
from wal_sink.testing.contracts.rows import Record, RowsContract, Table
from wal_sink.testing.faults import AnswerLost, CallFaults, Crash, Faults, changes, different_faults
from wal_sink.testing.micro_batches import PlayedQuery, Rows, flush

__all__ = ["KillsContract"]

EPOCHS = 2
"""They share a window."""


class KillsContract(RowsContract):
    """Part of the suite of each delivery; needs the fixture `target` and `rows`."""

    most_kills: int | None = None
    """At how many operations each test injects its fault, at most; None: at all.

    One is the end of a window, where rows and ledger become one; the others lie at equal distances.
    """

    @pytest.mark.usefixtures("plan")
    def test_a_flusher_may_die_anywhere(self, target: Target) -> None:
        """Before each operation, that is behind the one before; and between the steps of `commit`."""
        with target.connect(new_owner()) as session:
            kinds = type(target), type(session)
        self._play_all(
            target,
            lambda at: CallFaults(kinds, "finish", at),
            lambda operations: different_faults(operations, "before"),
        )

    def test_any_answer_may_be_lost(self, target: Target) -> None:
        """The operation took effect, and the flusher lives on."""
        self._play_all(
            target,
            lambda at: Faults(at, "after", AnswerLost),
            lambda operations: [
                k for k, each in enumerate(operations) if changes(each) or each == "read ledger"
            ],
        )

    def _play_all(
        self,
        target: Target,
        faults_at: Callable[[int | None], Faults],
        choose: Callable[[Sequence[str]], list[int]],
    ) -> None:
        expected: Table = {}
        whole = faults_at(None)
        self._play(target, whole, expected)
        assert whole.operations, "nothing is injected into a flusher of this target"
        ends = [k for k, each in enumerate(whole.operations) if each.startswith("finish ")]
        played = [faults_at(at) for at in self.spread(choose(whole.operations), ends[-1:])]
        for faults in played:
            self._play(target, faults, expected)
        self.assert_injected(played)

    def spread(self, operations: Sequence[int], always: Collection[int] = ()) -> Sequence[int]:
        """Return the operations at which a test injects its fault.

        :param always: it does so in any case.
        """
        others = [k for k in operations if k not in always]
        most = max(1, self.most_kills - len(always)) if self.most_kills else max(1, len(others))
        step = max(1, -(-len(others) // most))
        return sorted([*always, *others[step - 1 :: step]][: self.most_kills])

    def assert_injected(self, played: Sequence[Faults]) -> None:
        """Check that most plays met their fault; a driver may make other calls each time."""
        injected = [faults for faults in played if faults.injected]
        assert len(injected) > len(played) / 2, "its operations are others each time"

    def _play(self, target: Target, faults: Faults, expected: Table) -> None:
        """Play a query with one fault.

        :param expected: what the table holds; gets the rows of this query.
        """
        query = _Query(target, self.frame)
        try:
            self._judge(query, faults, expected)
        finally:  # an open transaction would hold up what drops the table
            query.end_sessions()
            query.forget()

    def _judge(self, query: _Query, faults: Faults, expected: Table) -> None:
        target, run = query.target, query.run()
        for epoch in range(EPOCHS):
            run.batch(*query.partitions(epoch))
        with contextlib.suppress(Crash):
            flush(query.flusher(faults))
        query.end_sessions()
        if target.delivery is not Delivery.IDEMPOTENT:
            there = expected | query.rows(query.mark()[0])
            assert self.rows(target) == there, f"a fault at {faults.injected}"
        flush(query.flusher())
        expected |= query.rows(EPOCHS - 1)
        assert self.rows(target) == expected, f"a fault at {faults.injected}, and another flusher"
        assert query.mark() == (EPOCHS - 1, False)


class _Query(PlayedQuery):
    """A query with rows of a suite, under a name of its own."""

    def __init__(self, target: Target, frame: Callable[[Rows], pa.RecordBatch]) -> None:
        super().__init__(target, frame([]).schema)
        self._frame = frame

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the suite does."""
        return self._frame(rows)

    def partitions(self, epoch: int) -> tuple[list[Record], list[Record]]:
        """Return rows of an epoch; where the target has a key, one that each epoch has."""
        k, n = self.query_id, 0 if self.target.delivery is Delivery.IDEMPOTENT else epoch
        return [(k, n, epoch, "x"), (k, 10 + epoch, epoch, None)], [(k, 20 + epoch, epoch, "y")]

    def rows(self, last: int) -> Table:
        """Return what the table holds of the epochs up to one."""
        parts = [part for epoch in range(last + 1) for part in self.partitions(epoch)]
        return {(str(k), int(n or 0)): (v, t) for part in parts for k, n, v, t in part}

    def mark(self) -> tuple[int, bool]:
        """Read which epoch the ledger says is flushed, and whether a window is begun."""
        with self.target.connect(Owner(self.query_id, "", "")) as session:
            row = session.read_ledger()
        return (row.flushed, row.begun is not None) if row else (-1, False)
