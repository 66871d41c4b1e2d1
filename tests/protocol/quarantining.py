"""Queries of the engine with `onInvalidRow=quarantine`: rows that their tasks refuse, or their target."""

from __future__ import annotations

import pyarrow as pa

from tests.kills.every_fault import EPOCHS, partitions
from tests.protocol import raw
from tests.protocol.adding import AddingTarget
from tests.protocol.engine import Rows, World, in_memory
from wal_sink.targets.base import Target
from wal_sink.wal.refused import listed as listed_files
from wal_sink.wal.refused import read_refused
from wal_sink.wal.segment import ROW

REFUSED = "refused"
"""A key that the DataFrame has as a null."""
SEVENS = -777
"""A value that the server refuses."""


def rows_of(refused: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows as they were before `with_reasons`."""
    structs = refused.column(ROW)
    return pa.RecordBatch.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type)))


def kept(world: World) -> list[tuple[int, str, str | None, int]]:
    """Return what is in `refused/`: epoch, target whose server refused it, and the row."""
    return sorted(
        (
            (file.epoch, file.target, row["k"], row["v"])
            for file in listed_files(world.store)
            for batch in read_refused(world.log_backend, file.path)
            for row in rows_of(batch).to_pylist()
        ),
        key=str,
    )


class QuarantiningWorld(World):
    """A query in memory whose tasks refuse the rows with a null for a key."""

    def __init__(self) -> None:
        super().__init__(*in_memory())
        self.on_invalid_row = "quarantine"

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        return super().frame([(None if k == REFUSED else k, v) for k, v in rows])

    def forget(self) -> None:
        """Compare what was refused, too, before it goes: one row of each kept attempt but epoch 2."""
        whose = raw.kept(self)
        names = sorted(path.split("/")[1:] for path in self.log_backend.list("refused/"))
        epochs = [int(epoch) for epoch, _ in names]
        assert epochs == [epoch for epoch in range(EPOCHS) if epoch != 2]
        for epoch, (_, segment) in zip(epochs, names, strict=True):
            assert whose[epoch] in segment, "a refused row of an attempt that Spark did not keep"
        super().forget()


class RefusingWorld(World):
    """The target itself refuses each row whose value is -777; the tasks do not know."""

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(*in_memory(), target)
        self.on_invalid_row = "quarantine"
        self.store_target.refuses = lambda row: "three sevens" if row["v"] == SEVENS else ""

    def visible(self) -> list[tuple[str, int]]:
        added = self.store_target
        return list(added.added) if isinstance(added, AddingTarget) else super().visible()

    def forget(self) -> None:
        """Compare what was refused, too: the rows of kept attempts that the target refuses."""
        refused = [
            (epoch, self.target.name, key, SEVENS)
            for epoch, run in raw.kept(self).items()
            for key, value in self.computed[epoch, run]
            if value is None
        ]
        assert kept(self) == sorted(refused, key=str)
        super().forget()

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them: the checker takes a row without a value for none."""
        return super().frame([(k, SEVENS if v is None else v) for k, v in rows])


def refused_later(epoch: int, run: str) -> list[Rows]:
    """Return the rows of the other tests of faults, with two that the target refuses."""
    rows = partitions(epoch, run)
    return (
        [[(f"777-{epoch}", None), *rows[0]], [*rows[1], (f"777-{epoch}-b", None)]] if rows else []
    )
