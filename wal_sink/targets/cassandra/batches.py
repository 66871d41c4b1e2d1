"""Joins slices of the log, and divides their rows into requests by partition, first replica and size.

A backlog of small epochs arrives as slices of some hundred rows. Each row has its own write timestamp, so
rows of several epochs may share a request.

A request with rows of **one partition** is one mutation in the server. The more rows a request has, the less
a row costs. The server's warnings about large batches do not apply (`BatchStatement.verifyBatchSize`).

A request with rows of **several partitions** is more work for its coordinator. But client and server need
more time for one more request than for ten small rows. So small partitions with the same first replica share
requests, up to the sizes at which the server warns.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal_sink.coalesced_batches import concatenated
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra.arrow_buffers import Ints
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.encode import Varying, reordered
from wal_sink.targets.cassandra.replicas import Replicas
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.statements import Statements, TimestampedRows
from wal_sink.targets.cassandra.types import column_types, has_lists

BUFFER_ROWS = 8_192
"""The number of rows at which the buffer is full. Its rows are encoded together, because the fixed cost of an
encoding is as high as the cost of 600 rows."""
BUFFER_BYTES = 4 * 1024 * 1024
"""The number of bytes at which the buffer is full."""
BUFFER_S = 0.05
"""A buffer counts as full this many seconds after its first slice. So a flush with a limited rate sends rows
evenly."""


class SliceBuffer:
    """Buffers slices of one plan in their order.

    :param clock: returns seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._slices: list[RowSlice] = []
        self._rows = self._bytes = 0
        self._since = 0.0

    def add(self, rows: RowSlice) -> bool:
        """Add a slice with at least one row. Return True if the buffer has to be emptied now."""
        if not self._slices:
            self._since = self._clock()
        self._slices.append(rows)
        self._rows += rows.batch.num_rows
        self._bytes += rows.batch.nbytes
        return (
            self._rows >= BUFFER_ROWS
            or self._bytes >= BUFFER_BYTES
            or self._clock() - self._since >= BUFFER_S
        )

    def take(self) -> list[TimestampedRows]:
        """Empty the buffer, and return its rows: in one batch, or in several if Arrow cannot join them."""
        slices, self._slices = self._slices, []
        self._rows = self._bytes = 0
        if not slices:
            return []
        batches = concatenated([rows.batch for rows in slices])
        timestamps_us = np.concatenate([_timestamps_us(rows) for rows in slices])
        bounds = np.cumsum([batch.num_rows for batch in batches])[:-1]
        pairs = zip(batches, np.split(timestamps_us, bounds), strict=True)
        return list(itertools.starmap(TimestampedRows, pairs))


def _timestamps_us(rows: RowSlice) -> npt.NDArray[np.int64]:
    return np.arange(rows.first_us, rows.first_us + rows.batch.num_rows, dtype=np.int64)


ROWS = 600
"""The most rows of a request by default. With half as many rows, a row costs more CPU. With twice as many, a
row costs the same."""
BYTES = 96 * 1024
"""The most bytes of a request of one partition by default."""

_ALONE = -1
"""The number of the group of partitions that share no request with other partitions."""
_MOVED_FOR_A_REQUEST = 500
"""The number of rows whose reordering costs as much as one request."""


class Limits(NamedTuple):
    """The limits of a request. If a single row exceeds a limit, it has a request of its own."""

    rows: int = ROWS
    bytes: int = BYTES
    """The most encoded bytes of a request of one partition."""
    shared_partitions: int = 10
    """The most partitions of a request: the server's `unlogged_batch_across_partitions_warn_threshold`."""
    shared_bytes: int = 5 * 1024
    """The most bytes of a request of several partitions: the server's `batch_size_warn_threshold`. A row in
    the server has at most `byte_weight` times its encoded bytes, plus `row_weight`."""
    row_weight: int = 0
    byte_weight: int = 1


class Batches(NamedTuple):
    """Rows divided into requests. Request i has the rows `order[starts[i]:starts[i + 1]]`."""

    order: Ints | None
    """The positions of the rows before the division; None if the rows keep their order."""
    starts: Ints
    """The begin of each request in `order`, then the number of all rows."""

    def first_rows(self) -> Ints:
        """Return the position that each request's first row had before the division."""
        firsts = self.starts[:-1]
        return firsts if self.order is None else self.order[firsts]


def limits(plan: CassandraPlan, batch_bytes: int = BYTES, batch_rows: int = ROWS) -> Limits:
    """Return the limits of requests with rows of a plan.

    The weights are upper bounds, by this table:

    ==============================  ====================  =======================================
    bytes in addition to values     in a request          in the server (`Row.dataSize`)
    ==============================  ====================  =======================================
    row                             33 or more            50
    cell                            4                     20: timestamp, TTL and deletion time
    element, collection not frozen  5                     20: the element is a cell
    element, list not frozen        5                     36: 16 bytes order the elements
    empty field of a struct         4                     22
    ==============================  ====================  =======================================
    """
    of_many_cells = any(tree.parts and not tree.frozen for tree in column_types(plan))
    return Limits(
        rows=batch_rows,
        bytes=batch_bytes,
        row_weight=16 * len(plan.columns) + 32,
        byte_weight=8 if has_lists(plan) else 6 if of_many_cells else 1,
    )


def divide(
    partitions: npt.NDArray[Any],
    sizes: npt.NDArray[Any],
    limit: Limits,
    coordinators: npt.NDArray[Any] | None = None,
) -> Batches:
    """Divide rows into requests.

    :param partitions: the number of each row's partition, from 0 in the order of first appearance.
    :param sizes: the encoded bytes of each row.
    :param coordinators: the number of each partition's first replica, from 0. Partitions with different first
        replicas share no request. None if all partitions may share requests.
    """
    if not len(partitions):
        return Batches(None, np.zeros(1, np.int64))
    weights = sizes * limit.byte_weight + limit.row_weight
    may_share = np.bincount(partitions, weights) <= limit.shared_bytes // 2
    may_share &= np.bincount(partitions) <= limit.rows
    # Partitions of one group may share requests.
    groups = np.where(may_share, 0 if coordinators is None else coordinators, _ALONE)
    order = _order(partitions, groups)
    if order is not None:
        partitions, sizes, weights = partitions[order], sizes[order], weights[order]
    ends = np.append(np.flatnonzero(np.diff(partitions)) + 1, len(partitions))
    cuts = _Cuts(limit, ends, _summed(sizes), _summed(weights))
    starts = [0]
    groups = groups[partitions[ends - 1]]
    runs = np.append(np.flatnonzero(np.diff(groups)) + 1, len(groups)).tolist()
    for first, last in zip([0, *runs], runs, strict=False):
        cut = cuts.alone if groups[first] == _ALONE else cuts.shared
        starts.extend(cut(first, last))
    return Batches(order, np.array(starts, np.int64))


def _order(partitions: npt.NDArray[Any], groups: npt.NDArray[Any]) -> Ints | None:
    """Return the rows' order by group and partition.

    Return None if the rows of each partition are adjacent, and the order would save too few requests.

    :param groups: the group of each partition.
    """
    adjacent = _ascends(partitions)
    # An upper bound of the number of requests that another order saves.
    saved = 0 if _ascends(groups) else np.count_nonzero(groups != _ALONE)
    if adjacent and saved * _MOVED_FOR_A_REQUEST <= len(partitions):
        return None
    ranks = np.empty(len(groups), np.int64)
    ranks[np.argsort(groups, kind="stable")] = np.arange(len(groups))
    ranked = ranks[partitions]
    if len(groups) <= np.iinfo(np.uint16).max:
        ranked = ranked.astype(np.uint16)  # numpy uses its faster radix sort for 16 bits
    return np.argsort(ranked, kind="stable")


def _ascends(values: npt.NDArray[Any]) -> bool:
    return bool(np.all(values[1:] >= values[:-1]))


def _summed(values: npt.NDArray[Any]) -> memoryview:
    """Return the sum of the values before each position, in a form that `bisect` reads quickly."""
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums.data


class _Cuts:
    """Finds the end of each request by binary search, without a loop over rows."""

    def __init__(self, limit: Limits, ends: Ints, sizes: memoryview, weights: memoryview) -> None:
        self._limit = limit
        begins = np.concatenate([[0], ends])
        self._ends = begins.data
        self._sizes = sizes
        self._weights = np.asarray(weights)[begins].data

    def alone(self, first: int, last: int) -> Iterator[int]:
        """Yield the row at which each request ends, for partitions that share no request."""
        for partition in range(first, last):
            row, end = self._ends[partition], self._ends[partition + 1]
            while row < end:
                most = self._sizes[row] + self._limit.bytes
                fits = bisect_right(self._sizes, most, row, end + 1) - 1
                row = max(row + 1, min(fits, row + self._limit.rows))
                yield row

    def shared(self, first: int, last: int) -> Iterator[int]:
        """Yield the row at which each request ends. Several whole partitions share each request."""
        limit, ends, weights = self._limit, self._ends, self._weights
        while first < last:
            fits = min(first + limit.shared_partitions, last)
            # Usually `shared_partitions` fit. Otherwise a search finds how many fit.
            if weights[fits] > (most := weights[first] + limit.shared_bytes):
                fits = bisect_right(weights, most, first, fits) - 1
            if ends[fits] > (rows := ends[first] + limit.rows):
                fits = bisect_right(ends, rows, first, fits) - 1
            first = max(first + 1, fits)
            yield ends[first]


class PlanRequests:
    """Makes requests of the rows of one plan.

    :param plan: the plan with its control columns.
    :param session: the driver's session.
    :param datacenter: the local datacenter.
    """

    def __init__(
        self,
        plan: CassandraPlan,
        session: Any,
        datacenter: str,
        *,
        batch_bytes: int = BYTES,
        batch_rows: int = ROWS,
    ) -> None:
        self._statements = Statements(plan, session.prepare)
        self._limits = limits(plan.of_table(), batch_bytes, batch_rows)
        self._replicas = Replicas(session.cluster.metadata, plan.details.keyspace, datacenter)
        self.buffer = SliceBuffer()

    def take(self, default_ttl_s: int = 0) -> Iterator[EncodedBatch]:
        """Empty the buffer, and yield requests with its rows.

        :param default_ttl_s: the table's default TTL in seconds; 0 for none.
        """
        for rows in self.buffer.take():
            yield from self.requests(rows, default_ttl_s)

    def requests(self, rows: TimestampedRows, default_ttl_s: int = 0) -> Iterator[EncodedBatch]:
        """Encode rows, and divide them into requests. Rows that are too long together are halved.

        Arrow's sizes do not bound the encoded sizes: a field that is null in all rows has no bytes in Arrow.

        :raises OverflowError: one row alone is too long.
        """
        try:
            encoded, keys = self._statements.encode(rows, default_ttl_s)
        except OverflowError:
            half = rows.batch.num_rows // 2
            if not half:
                raise
        else:
            yield from self._divided(encoded, keys)
            return
        for part in (slice(half), slice(half, None)):
            part_rows = TimestampedRows(*(column[part] for column in rows))
            yield from self.requests(part_rows, default_ttl_s)

    def _divided(self, encoded: Varying, keys: pa.Array) -> Iterator[EncodedBatch]:
        """Yield requests with encoded rows.

        :param keys: the routing key of each row.
        """
        sizes = np.diff(encoded.offsets)
        by_partition = keys.dictionary_encode()
        partitions = by_partition.indices.to_numpy()
        coordinators = self._replicas.coordinators(by_partition.dictionary)
        batches = divide(partitions, sizes, self._limits, coordinators and coordinators.numbers)
        if batches.order is not None:
            encoded = reordered(encoded, batches.order)
        data = memoryview(encoded.data)
        bounds = itertools.pairwise(encoded.offsets[batches.starts].tolist())
        counts = np.diff(batches.starts).tolist()
        nodes = [None] * len(counts)
        if coordinators is not None:
            numbers = coordinators.numbers[partitions[batches.first_rows()]]
            nodes = [coordinators.nodes[number] for number in numbers.tolist()]
        for count, (begin, end), node in zip(counts, bounds, nodes, strict=True):
            yield EncodedBatch(count, bytes(data[begin:end]), self._statements, node)
