"""The played query of the project's own tests: over `MemoryTarget`, with clocks that tests set.

`wal_sink.testing.micro_batches` plays Spark. Here is what reads and forges the state behind the query.
"""

from __future__ import annotations

import pyarrow as pa

from state_backends import StateBackend
from wal_sink.model.ledger import LedgerState, Window
from wal_sink.model.records import Decision
from wal_sink.targets.base import Target
from wal_sink.testing import micro_batches
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget
from wal_sink.testing.micro_batches import PlayedQuery, Rows, flush, in_memory, until_rest

__all__ = [
    "NOW_US",
    "SCHEMA",
    "Clock",
    "Rows",
    "Run",
    "World",
    "a_decision",
    "flush",
    "in_memory",
    "until_rest",
]

SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64())])
"""Rows are keys with their values; None for a delete, in a world whose target has deletes."""

NOW_US = 1_700_000_000_000_000


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self, us: int = NOW_US) -> None:
        self.us = us

    def __call__(self) -> int:
        self.us += 1
        return self.us


def a_decision(epoch: int, highest: int = 1) -> Decision:
    """Return a decision to go on without an epoch, published `highest` times at the most."""
    return Decision(
        verb="skip",
        epoch=epoch,
        by="user@host",
        at_us=1,
        why="",
        where="",
        files=(),
        generation=1,
        offsets_digest="",
        rows=-1,
        last_us=0,
        highest=highest,
    )


class World(PlayedQuery):
    """One query with rows of `SCHEMA`, whose state a test reads and forges.

    :param target: takes rows of `SCHEMA` with the key k; None for `store`, which is the target where
        that is a `MemoryTarget`.
    """

    adds = False
    """Whether the target adds each row to those that are there; otherwise the last one of a key stays."""
    dates = True
    """Whether `store` has each visible row with the write timestamp that the log says."""

    def __init__(
        self, checkpoint: StateBackend, logs: StateBackend, target: Target | None = None
    ) -> None:
        own = MemoryTarget(MemoryOptions(keys="k"))
        self.store = target if isinstance(target, MemoryTarget) else own
        super().__init__(target or self.store, SCHEMA, (checkpoint, logs))
        self.storage_options: dict[str, object] = {}
        """For other places in the same store."""
        self.clock: Clock = Clock()
        self.target_ahead_us = 0
        """How far the target's clock is ahead of all others."""
        self.store.clock_us = lambda: self.clock.us + self.target_ahead_us

    def begin_and_die(self) -> None:
        """Take one step of a flusher that dies when it has begun a window, before the first row."""
        flusher = self.flusher()
        flusher._flush = lambda *args, **kwargs: None  # type: ignore[method-assign]
        flusher.run_once()

    def flushed(self) -> dict[str, int]:
        """Flush until there is nothing to do; return what a reader of the target sees then."""
        self.flush()
        return self.table()

    def table(self) -> dict[str, int]:
        """What a reader of the target sees."""
        return dict(self.visible())

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows that a reader of the target sees; one that is there twice comes twice."""
        return [(key[0], row["v"]) for key, row in self.store.rows().items()]

    def ledger(self) -> LedgerState | None:
        """Return the ledger row, as it lies in the target."""
        return self.store.ledger.get(self.query_id)

    @property
    def state(self) -> LedgerState:
        """The ledger row, which is there."""
        row = self.ledger()
        assert row is not None
        return row

    @property
    def begun(self) -> Window:
        """The window that is begun."""
        begun = self.state.begun
        assert begun is not None
        return begun

    @property
    def last(self) -> Window:
        """The window that was finished last."""
        last = self.state.last
        assert last is not None
        return last

    def expected(self) -> dict[str, int]:
        """What a reader should see when all is flushed: later epochs win."""
        table: dict[str, int | None] = {}
        for epoch in sorted(self.committed):
            table.update(self.committed[epoch])
        return {key: value for key, value in table.items() if value is not None}


Run = micro_batches.Run[World]
"""One run of the query, from `start()` on."""
