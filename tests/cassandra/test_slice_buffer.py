"""Small slices are written together, each row with its own timestamp, and none waits for long."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra.write import batches
from wal_sink.targets.cassandra.write.batches import SliceBuffer

ROWS = 100


class Clock:
    """Seconds, set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def part(epoch: int, rows: int = ROWS) -> RowSlice:
    """Make a slice whose values name epoch and row, and whose timestamps follow from them."""
    values = pa.array([epoch * 1_000_000 + row for row in range(rows)], pa.int64())
    return RowSlice(epoch, pa.record_batch({"v": values}), epoch * 1_000_000)


def test_buffered_row_keeps_its_timestamp() -> None:
    """Epochs, and parts of one, have timestamps that do not follow each other."""
    waiting = SliceBuffer()
    parts = [part(7), part(3, 1), part(5)]
    for rows in parts:
        waiting.add(rows)
    (joined,) = waiting.take()
    assert joined.batch.column("v").to_pylist() == [
        value for rows in parts for value in rows.batch.column("v").to_pylist()
    ]
    assert joined.timestamps_us.tolist() == joined.batch.column("v").to_pylist()
    assert waiting.take() == [], "a row is taken once"


@pytest.mark.parametrize("column", [pa.array([[1], []]), pa.array(["a", None]).dictionary_encode()])
def test_columns_of_any_kind_are_joined(column: pa.Array) -> None:
    """Where Arrow cannot make one array of them, they stay several, with their timestamps."""
    waiting = SliceBuffer()
    for epoch in (1, 2):
        waiting.add(RowSlice(epoch, pa.record_batch({"c": column}), epoch * 10))
    taken = waiting.take()
    values = [value for rows in taken for value in rows.batch.column("c").to_pylist()]
    assert values == column.to_pylist() * 2
    assert [us for rows in taken for us in rows.timestamps_us.tolist()] == [10, 11, 20, 21]


def test_buffer_with_enough_rows_is_due() -> None:
    """By rows, by bytes, or by time, counted from the first that waits."""
    clock = Clock()
    waiting = SliceBuffer(clock)
    assert not waiting.add(part(1))
    assert waiting.add(part(2, batches.BUFFER_ROWS - ROWS)), "rows"
    waiting.take()
    large = pa.record_batch({"v": ["x" * batches.BUFFER_BYTES]})
    assert waiting.add(RowSlice(1, large, 1)), "bytes"
    waiting.take()
    waiting.add(part(1))
    clock.now += batches.BUFFER_S / 2
    assert not waiting.add(part(2))
    clock.now += batches.BUFFER_S / 2
    assert waiting.add(part(3)), "time"
