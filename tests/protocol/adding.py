"""Targets in memory that append rows: in a transaction, or by staging."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from tests.protocol.engine import World, in_memory
from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.model.plan import Plan
from wal_sink.targets.base import (
    RefusedRow,
    RowSlice,
    RowsRefused,
    Session,
    StagedSession,
    TransactionalSession,
)
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget

Pair = tuple[str, int]


class AddingTarget(MemoryTarget):
    """Appends rows in the transaction that moves the ledger row."""

    def __init__(self, options: MemoryOptions) -> None:
        super().__init__(options)
        self.added: list[Pair] = []

    def connect(self, query_id: str) -> Session:
        return _Transaction(self, query_id)

    def pairs(self, rows: RowSlice) -> list[Pair]:
        """Return the rows of a slice.

        :raises RowsRefused: the target refuses some of them.
        """
        values = rows.batch.to_pylist()
        refused = [
            RefusedRow(rows.first_us + number, TargetRefused(reason, "Change the target."))
            for number, row in enumerate(values)
            if (reason := self.refuses(row))
        ]
        if refused:
            raise RowsRefused(refused)
        return [(row["k"], row["v"]) for row in values]

    def move(
        self, key: str, current: LedgerRow | None, new: LedgerRow, rows: Sequence[Pair]
    ) -> Outcome:
        """Append rows and move the ledger row in one step."""
        with self.lock:
            if self.ledger.get(key) != current:
                return Outcome.CONFLICT
            self.ledger[key] = new
            self.added += rows
            return Outcome.APPLIED


class _Transaction(TransactionalSession):
    def __init__(self, target: AddingTarget, key: str) -> None:
        self._target, self._key = target, key
        self._rows: list[Pair] = []

    def read(self) -> LedgerRow | None:
        self._rows.clear()
        return self._target.ledger.get(self._key)

    def write(self, plan: Plan, rows: RowSlice) -> None:
        self._rows += self._target.pairs(rows)

    def finish(self, current: LedgerRow | None, new: LedgerRow) -> Outcome:
        rows, self._rows = self._rows, []
        return self._target.move(self._key, current, new, rows)

    def close(self) -> None:
        self._rows.clear()


class StagingTarget(AddingTarget):
    """Keeps staged rows by receipt. Readers do not see them."""

    parallel_writes = True

    def __init__(self, options: MemoryOptions) -> None:
        super().__init__(options)
        self.staged: dict[bytes, list[Pair]] = {}

    def connect(self, query_id: str) -> Session:
        return StagingSession(self, query_id)


class StagingSession(StagedSession):
    """Stages the rows of each `drain` under a receipt of their own."""

    def __init__(self, target: StagingTarget, key: str) -> None:
        self.target, self._key = target, key
        self._rows: list[Pair] = []

    def read(self) -> LedgerRow | None:
        return self.target.ledger.get(self._key)

    def write(self, plan: Plan, rows: RowSlice) -> None:
        self._rows += self.target.pairs(rows)

    def drain(self) -> tuple[bytes, ...]:
        if not self._rows:
            return ()
        receipt = uuid.uuid4().hex.encode()
        self.target.staged[receipt] = self._rows
        self._rows = []
        return (receipt,)

    def finish(
        self, current: LedgerRow | None, new: LedgerRow, receipts: Sequence[bytes] = ()
    ) -> Outcome:
        rows = [
            row for receipt in (*receipts, *self.drain()) for row in self.target.staged[receipt]
        ]
        return self.target.move(self._key, current, new, rows)

    def discard(self, receipts: Sequence[bytes]) -> None:
        for receipt in receipts:
            self.target.staged.pop(receipt, None)

    def close(self) -> None:
        self._rows.clear()


class AddingWorld(World):
    """Checkpoint, log and table in memory. Every row that is written stays.

    :param kind: class of the target.
    """

    adds = True
    dates = False

    def __init__(self, kind: type[AddingTarget] = AddingTarget) -> None:
        self.adding = kind(MemoryOptions(keys="k"))
        super().__init__(*in_memory(), self.adding)

    def visible(self) -> list[Pair]:
        return list(self.adding.added)
