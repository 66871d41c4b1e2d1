"""Played queries with `onInvalidRow=quarantine`, whose tasks or whose target refuse rows."""

from __future__ import annotations

import pyarrow as pa

from tests.kills.every_fault import EPOCHS, partitions
from tests.protocol import raw
from tests.protocol.adding import AddingTarget
from tests.protocol.engine import Rows, World, in_memory
from wal_sink.targets.base import Target
from wal_sink.wal.segment import ROW, read_refused, refused_files

REFUSED = "refused"
"""A key that is null in the DataFrame."""
SEVENS = -777
"""A value that the target's server refuses."""


def rows_of(refused: pa.RecordBatch) -> pa.RecordBatch:
    """Return refused rows without the columns of `with_reasons`."""
    structs = refused.column(ROW)
    return pa.RecordBatch.from_arrays(structs.flatten(), schema=pa.schema(list(structs.type)))


def kept(world: World) -> list[tuple[int, str, str | None, int]]:
    """Return the rows in `refused/`: epoch, target whose server refused the row, key and value."""
    return sorted(
        (
            (file.epoch, file.target, row["k"], row["v"])
            for file in refused_files(world.log_backend)
            for batch in read_refused(world.log_backend, file.path)
            for row in rows_of(batch).to_pylist()
        ),
        key=str,
    )


class QuarantiningWorld(World):
    """A query in memory whose tasks refuse rows with a null key."""

    def __init__(self) -> None:
        super().__init__(*in_memory())
        self.on_invalid_row = "quarantine"

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        return super().frame([(None if k == REFUSED else k, v) for k, v in rows])

    def forget(self) -> None:
        """Check that `refused/` has one segment for each epoch with rows, of the attempt that Spark kept."""
        whose = raw.kept(self)
        names = sorted(path.split("/")[1:] for path in self.log_backend.list("refused/"))
        epochs = [int(epoch) for epoch, _ in names]
        assert epochs == [epoch for epoch in range(EPOCHS) if epoch != 2]
        for epoch, (_, segment) in zip(epochs, names, strict=True):
            assert whose[epoch] in segment, "a refused row of an attempt that Spark did not keep"
        super().forget()


class RefusingWorld(World):
    """A query in memory whose target refuses the value -777 in the flush. The tasks accept it."""

    def __init__(self, target: Target | None = None) -> None:
        super().__init__(*in_memory(), target)
        self.on_invalid_row = "quarantine"
        self.store_target.refuses = lambda row: "three sevens" if row["v"] == SEVENS else ""

    def visible(self) -> list[tuple[str, int]]:
        added = self.store_target
        return list(added.added) if isinstance(added, AddingTarget) else super().visible()

    def forget(self) -> None:
        """Check that `refused/` has the refused rows of the attempts that Spark kept."""
        refused = [
            (epoch, self.target.name, key, SEVENS)
            for epoch, run in raw.kept(self).items()
            for key, value in self.computed[epoch, run]
            if value is None
        ]
        assert kept(self) == sorted(refused, key=str)
        super().forget()

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows of the DataFrame. A row without a value gets the refused value."""
        return super().frame([(k, SEVENS if v is None else v) for k, v in rows])


def refused_later(epoch: int, run: str) -> list[Rows]:
    """Return the rows of `every_fault`, with two rows that the target refuses."""
    rows = partitions(epoch, run)
    return (
        [[(f"777-{epoch}", None), *rows[0]], [*rows[1], (f"777-{epoch}-b", None)]] if rows else []
    )
