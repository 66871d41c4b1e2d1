"""Buffers small slices, so that a call that encodes and divides rows has many of them.

A backlog of small epochs comes as slices of some hundred rows each. Rows of several epochs may be encoded
together, and share a request, because each row carries its own write timestamp.

Divides the rows of a slice by their tables: each goes to every one, or to the one that it names. Pure.

Says how long rows still live as they are written: their lives began when they were published.

A row is written late after an outage, and again after a crash. A life that began anew each time would grow by
that; so what is fixed is the second at which it ends, and what is sent is the rest of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.arrow_batches import joined
from wal_sink.clock import now_us
from wal_sink.model.plan import Plan
from wal_sink.targets import arrow_values
from wal_sink.targets.base import Slice
from wal_sink.targets.cassandra.encode import buffers
from wal_sink.targets.cassandra.row_plan import MOST_TTL_S, RowTimes
from wal_sink.targets.cassandra.rules import EXPIRES_US, LIFE_S
from wal_sink.targets.cassandra.table_plans import columns_of

MOST_ROWS = 8_192
"""A call itself costs as much as encoding 600 rows: with so many rows, less than a tenth."""
MOST_BYTES = 4 * 1024 * 1024
_SMALL = 256 * 1024
"""Most bytes of buffers that count whole, whatever part of them a slice is: adding up columns takes 9 us."""
MOST_S = 0.05
"""Seconds that a row waits for the next slice at most, so that the pace of a limited rate stays even."""


class Stamped(NamedTuple):
    """Rows with their write timestamps."""

    batch: pa.RecordBatch
    stamps: npt.NDArray[np.int64]
    """Microseconds since 1970, one for each row."""


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


def by_table(rows: Stamped, plan: Plan, tables: Sequence[Plan]) -> Iterator[Stamped]:
    """Yield the rows of each table, in the order of `tables`, each with its own timestamp.

    :param rows: with the columns of `plan`.
    :param plan: the one that the log has.
    :param tables: its `table_plans`.
    """
    for table in tables:
        batch, stamps = rows
        if plan.table_column is not None:
            name = arrow_values.text(table.details["table"])
            mine = pc.equal(batch.column(plan.table_column), name)
            batch, stamps = batch.filter(mine), stamps[mine.to_numpy(zero_copy_only=False)]
        yield Stamped(columns_of(batch, plan, table), stamps)


Ints = npt.NDArray[np.int64]

ASK_EVERY_S = 30.0
"""Seconds after which a node is asked for its time again."""
_SECOND_US = 1_000_000


def live_for_a_time(times: RowTimes, default_ttl_s: int) -> bool:
    """Whether rows expire.

    :param default_ttl_s: of the table; 0: none.
    """
    return bool(times.ttl_s or times.ttl_column or times.expires_column or default_ttl_s)


def seconds_left(
    batch: pa.RecordBatch, stamps: Ints, times: RowTimes, now_s: int, default_ttl_s: int = 0
) -> Ints:
    """Return the seconds that are left to each row, 0 or less for none.

    As Cassandra does, the end of a life is its second of writing plus its seconds, here those of the row's
    timestamp in the ledger. So each time the row is written, its life ends in the same second.

    :param batch: as the log has it.
    :param stamps: the timestamps of the rows in the ledger, microseconds since 1970, whatever event times
        they have.
    :param now_s: see `WriteClock`.
    :param default_ttl_s: of the table, for rows of which no option says anything.
    """
    if times.expires_column:
        ends = -(-buffers.elements(batch.column(EXPIRES_US), "i8") // _SECOND_US)
        most: Ints | int = MOST_TTL_S
    else:
        most = (
            buffers.elements(batch.column(LIFE_S), "i8")
            if times.ttl_column
            else times.ttl_s or default_ttl_s
        )
        ends = stamps // _SECOND_US + most
    if times.latest_s:
        ends = np.minimum(ends, times.latest_s)
    # Where timestamps lie ahead of the clock, a life is not longer for that.
    left: Ints = np.minimum(ends - now_s, most)
    return left


class WriteClock:
    """Tells the second from which lives are counted: the earlier of this host's and of a node's.

    A life that ends too early is a loss, and stays one: so one clock that is ahead does not end any.

    :param ask: returns a node's time, microseconds since 1970; None: the server has no such function.
    :param clock_us: this host's, microseconds since 1970.
    """

    def __init__(
        self,
        ask: Callable[[], int | None],
        clock_us: Callable[[], int] = now_us,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._asked_s = float("-inf")
        self._told_us: int | None = None

    def now_s(self) -> int:
        """Return the second, since 1970.

        :raises Exception: of the driver, when no node answers.
        """
        since_s = self._monotonic() - self._asked_s
        if since_s > ASK_EVERY_S:
            self._told_us, self._asked_s, since_s = self._ask(), self._monotonic(), 0.0
        times_us = [self._clock_us()]
        if self._told_us is not None:
            times_us.append(self._told_us + int(since_s * _SECOND_US))
        return min(times_us) // _SECOND_US
