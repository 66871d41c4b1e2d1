"""A query with two targets in memory: one keeps the last row of a key, one appends rows."""

from __future__ import annotations

from collections.abc import Iterator

from tests.protocol.adding import AddingTarget
from tests.protocol.engine import World, in_memory
from wal_sink.flush.flusher import Flusher, Pass
from wal_sink.model.ledger import LedgerRow, ledger_key
from wal_sink.targets.base import Target
from wal_sink.testing.faults import Faults
from wal_sink.testing.memory_target import MemoryOptions

CELLS, ADDED = "cells", "added"


class SeveralWorld(World):
    """Checkpoint and log in memory.

    :param names: names of the query's targets; both by default.
    """

    def __init__(self, *names: str) -> None:
        super().__init__(*in_memory())
        self.adding = AddingTarget(MemoryOptions(keys="k"))
        self.known: dict[str, Target] = {CELLS: self.store_target, ADDED: self.adding}
        self.named = {name: self.known[name] for name in names or (CELLS, ADDED)}
        self.shown = next(iter(self.named))
        """The target whose rows are visible."""

    @property
    def targets(self) -> dict[str, Target]:
        """Return the targets that the query names."""
        return self.named

    @property
    def several(self) -> bool:
        """Return True, since even a single target is named."""
        return True

    @property
    def adds(self) -> bool:  # type: ignore[override]
        return self.shown == ADDED

    @property
    def dates(self) -> bool:  # type: ignore[override]
        return self.shown == CELLS

    def views(self) -> Iterator[World]:
        for name in self.named:
            self.shown = name
            yield self

    def visible(self) -> list[tuple[str, int]]:
        return list(self.adding.added) if self.shown == ADDED else super().visible()

    def rows(self, name: str) -> list[tuple[str, int]]:
        """Return the rows that a reader of a target sees."""
        self.shown = name
        return sorted(self.visible())

    def ledger(self) -> LedgerRow | None:
        target = self.adding if self.shown == ADDED else self.store_target
        return target.ledger.get(ledger_key(self.query_id, self.shown))

    def flusher(self, faults: Faults | None = None, name: str = "") -> Flusher:
        """Start a flusher of a target, or of all targets one after the other if none is named."""
        if name:
            return super().flusher(faults, name)
        return _Flushers([super(SeveralWorld, self).flusher(faults, name) for name in self.named])  # type: ignore[return-value]


class _Flushers:
    """Runs the flushers of all targets one after the other."""

    def __init__(self, flushers: list[Flusher]) -> None:
        self._flushers = flushers

    def run_once(self) -> Pass:
        passes = [flusher.run_once() for flusher in self._flushers]
        return Pass(idle=all(done.idle for done in passes))

    def close(self) -> None:
        for flusher in self._flushers:
            flusher.close()
