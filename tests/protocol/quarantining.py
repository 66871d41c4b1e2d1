"""Queries of the engine with `onInvalidRow=quarantine`: rows that their tasks refuse, or their target."""

from __future__ import annotations

import pyarrow as pa

from tests.protocol import raw
from tests.protocol.engine import Rows, World, in_memory
from tests.protocol.every_fault import EPOCHS, partitions
from wal_sink.admin.quarantine import json_value, read_quarantine
from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.wal.log import Log

REFUSED = "refused"
"""A key that the DataFrame has as a null."""


class QuarantiningWorld(World):
    """A query in memory that passes over the rows with a null for a key."""

    def __init__(self) -> None:
        super().__init__(*in_memory())
        self.on_invalid_row = "quarantine"

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        return super().frame([(None if k == REFUSED else k, v) for k, v in rows])

    def forget(self) -> None:
        """Judge the quarantine, too, before it goes: one row of each kept attempt but epoch 2."""
        whose = raw.kept(self)
        names = sorted(path.rpartition("/")[2] for path in self.log_backend.list("quarantine/"))
        found = [(int(name[:20]), name[21:]) for name in names]
        assert [epoch for epoch, _ in found] == [epoch for epoch in range(EPOCHS) if epoch != 2]
        for epoch, segment in found:
            assert whose[epoch] in segment, "a refused row of an attempt that Spark did not keep"
        super().forget()


def query_of(world: World, target: str = "") -> Query:
    """Return the query as an operator sees it."""
    log = Log(world.log_backend, target, targets=world.names)
    return Query(world.query_id, Checkpoint(world.checkpoint), log)


def listed(world: World, target: str = "") -> list[tuple[int, dict[str, object]]]:
    """Return epoch and row of what is in quarantine."""
    return [
        (row.entry.epoch, json_value(row.row)) for row in read_quarantine(query_of(world, target))
    ]


class RefusingWorld(QuarantiningWorld):
    """The target itself refuses each row whose value is -777; the tasks do not know."""

    def __init__(self) -> None:
        super().__init__()
        self.store.refuses = lambda row: "three sevens" if row["v"] == -777 else ""

    def forget(self) -> None:
        """Judge the quarantine: the rows of kept attempts that the target refuses."""
        whose = raw.kept(self)
        refused = [
            (epoch, key)
            for epoch in sorted(whose)
            for key, value in self.computed[epoch, whose[epoch]]
            if value is None and key.startswith("777")
        ]
        found = [(epoch, row["k"]) for epoch, row in listed(self)]
        assert sorted(found) == sorted(refused)
        World.forget(self)

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them: the judge takes a row without a value for none."""
        return World.frame(self, [(k, -777 if v is None else v) for k, v in rows])


def refused_later(epoch: int, run: str) -> list[Rows]:
    """Return the rows of the other tests of faults, with two that the target refuses."""
    rows = partitions(epoch, run)
    return (
        [[(f"777-{epoch}", None), *rows[0]], [*rows[1], (f"777-{epoch}-b", None)]] if rows else []
    )
