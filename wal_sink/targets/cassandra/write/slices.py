"""Buffers small slices, so that a call that encodes and divides rows has many of them; divides rows by table.

A backlog of small epochs comes as slices of some hundred rows each. Rows of several epochs may be encoded
together, and share a request, because each row carries its own write timestamp. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from wal_sink.arrow_batches import joined
from wal_sink.targets import arrow_values
from wal_sink.targets.base import Slice
from wal_sink.targets.cassandra.feature import Stamped
from wal_sink.targets.cassandra.row_plan import CassandraPlan, columns_of

MOST_ROWS = 8_192
"""A call itself costs as much as encoding 600 rows: with so many rows, less than a tenth."""
MOST_BYTES = 4 * 1024 * 1024
_SMALL = 256 * 1024
"""Most bytes of buffers that count whole, whatever part of them a slice is: adding up columns takes 9 us."""
MOST_S = 0.05
"""Seconds that a row waits for the next slice at most, so that the pace of a limited rate stays even."""


class SliceBuffer:
    """Slices of one plan that wait to be written, in the order in which they came.

    :param clock: monotonic, in seconds.
    :param most_rows: with which it is due; so with `most_bytes`, and with `most_s`.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        most_rows: int = MOST_ROWS,
        most_bytes: int = MOST_BYTES,
        most_s: float = MOST_S,
    ) -> None:
        self._clock = clock
        self._most_rows, self._most_bytes, self._most_s = most_rows, most_bytes, most_s
        self._slices: list[Slice] = []
        self._rows = self._bytes = 0
        self._since = 0.0

    def add(self, rows: Slice) -> None:
        """Add a slice, which has at least one row."""
        if not self._slices:
            self._since = self._clock()
        self._slices.append(rows)
        self._rows += rows.batch.num_rows
        size = rows.batch.get_total_buffer_size()
        self._bytes += size if size <= _SMALL else rows.batch.nbytes

    def is_due(self) -> bool:
        """Whether the slices should be written now: they are enough, or have waited long enough."""
        return (
            self._rows >= self._most_rows
            or self._bytes >= self._most_bytes
            or self._clock() - self._since >= self._most_s
        )

    def take_if(self, slices: Sequence[Slice]) -> bool:
        """Empty the buffer if it holds exactly these slices, the same objects; whether it did."""
        if len(slices) != len(self._slices):
            return False
        if any(one is not other for one, other in zip(slices, self._slices, strict=True)):
            return False
        self._empty()
        return True

    def take(self) -> list[Stamped]:
        """Empty the buffer; return its rows, in one batch if Arrow can join them."""
        slices = self._empty()
        if not slices:
            return []
        batches = joined([each.batch for each in slices])
        stamps = np.concatenate([_stamps(each) for each in slices])
        bounds = np.cumsum([batch.num_rows for batch in batches])[:-1]
        return [Stamped(*each) for each in zip(batches, np.split(stamps, bounds), strict=True)]

    def _empty(self) -> list[Slice]:
        slices, self._slices = self._slices, []
        self._rows = self._bytes = 0
        return slices


def _stamps(rows: Slice) -> npt.NDArray[np.int64]:
    return np.arange(rows.first_us, rows.first_us + rows.batch.num_rows, dtype=np.int64)


def by_table(rows: Stamped, plan: CassandraPlan) -> Iterator[Stamped]:
    """Yield the rows of each table of a plan, each with its own timestamp.

    :param rows: with the columns of the plan.
    """
    naming = plan.details.table_column
    for table in plan.tables:
        batch, stamps = rows
        if naming:
            mine = pc.equal(batch.column(naming), arrow_values.text(table.details.table))
            batch, stamps = batch.filter(mine), stamps[mine.to_numpy(zero_copy_only=False)]
        yield Stamped(columns_of(batch, plan, table), stamps)
