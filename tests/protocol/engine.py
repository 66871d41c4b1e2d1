"""The played query of the project's own tests: over `MemoryTarget`, with clocks that a test sets.

`wal_sink.testing.micro_batches` plays Spark. This module adds what reads and forges the files of the query.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from state_backends import StateBackend
from wal_sink.model.ledger import LedgerRow
from wal_sink.targets.base import Target
from wal_sink.testing import micro_batches
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget
from wal_sink.testing.micro_batches import PlayedQuery, Rows, in_memory, until_idle
from wal_sink.testing.micro_batches import flush_with_retries as flush

__all__ = [
    "NOW_US",
    "SCHEMA",
    "Clock",
    "Rows",
    "Run",
    "World",
    "flush",
    "in_memory",
    "until_idle",
]

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
"""Rows have a key and a value. A value of None is a delete, if the target has deletes."""

NOW_US = 1_700_000_000_000_000


class Clock:
    """A clock that moves by a microsecond with each call, and when a test sets it."""

    def __init__(self, us: int = NOW_US) -> None:
        self.us = us

    def __call__(self) -> int:
        self.us += 1
        return self.us


class World(PlayedQuery):
    """A played query with rows of `SCHEMA`, whose state a test reads and forges.

    :param target: accepts rows of `SCHEMA` with the key k; None for a `MemoryTarget`.
    """

    adds = False
    """True if the target appends rows. Otherwise the last row of a key stays."""
    dates = True
    """True if `store` has each visible row with the write timestamp of its manifest."""

    def __init__(
        self, checkpoint: StateBackend, logs: StateBackend, target: Target | None = None
    ) -> None:
        own = MemoryTarget(MemoryOptions(keys="k"))
        self.store_target = target if isinstance(target, MemoryTarget) else own
        super().__init__(target or self.store_target, SCHEMA, (checkpoint, logs))
        self.storage_options: dict[str, object] = {}
        """Options for other places in the same store."""
        self.clock: Clock = Clock()

    def views(self) -> Iterator[World]:
        """Yield the query once for each target. `visible` then returns the rows of this target."""
        yield self

    def flushed(self) -> dict[str, int]:
        """Flush until there is nothing to do; return the rows that a reader of the target sees."""
        self.flush()
        return self.table()

    def table(self) -> dict[str, int]:
        """Return the rows that a reader of the target sees, by key."""
        return dict(self.visible())

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows that a reader of the target sees, with duplicates."""
        return [(key[0], row["v"]) for key, row in self.store_target.rows().items()]

    def ledger(self) -> LedgerRow | None:
        """Return the ledger row of the target; None if there is none."""
        return self.store_target.ledger.get(self.query_id)

    @property
    def row(self) -> LedgerRow:
        """Return the ledger row, which must exist."""
        row = self.ledger()
        assert row is not None
        return row

    def mark(self, name: str = "") -> int:
        """Return the mark of a target."""
        target = self.state.target(name or next(iter(self.targets)))
        assert target is not None
        return target.mark.epoch

    def expected(self) -> dict[str, int]:
        """Return the rows that a reader should see when all epochs are flushed."""
        table: dict[str, int | None] = {}
        for epoch in sorted(self.committed):
            table.update(self.committed[epoch])
        return {key: value for key, value in table.items() if value is not None}


Run = micro_batches.Run[World]
"""One run of the query."""
