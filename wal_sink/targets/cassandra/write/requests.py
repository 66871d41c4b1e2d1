"""Makes requests of a slice: of encoded rows, or of statements of the driver's own classes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from cassandra.query import BatchStatement, BatchType

from wal_sink.targets.cassandra.driver.frames import EncodedBatch, EncodedRows
from wal_sink.targets.cassandra.encode import Encoded, taken
from wal_sink.targets.cassandra.write.batches import Batches, Ints, Limits, divide
from wal_sink.targets.cassandra.write.replicas import Replicas


def in_batches(keys: pa.Array, sizes: Ints, limit: Limits, replicas: Replicas) -> Batches:
    """Divide rows into requests.

    :param keys: the routing key of each row, binary.
    :param sizes: bytes of each row on the wire.
    """
    by_partition = keys.dictionary_encode()
    coordinators = replicas.coordinators(by_partition.dictionary)
    partitions = by_partition.indices.to_numpy()
    batches = divide(partitions, sizes, limit, coordinators)
    if coordinators is None:
        return batches
    return batches._replace(coordinators=coordinators[partitions[batches.first_rows()]])


def encoded_requests(
    rows: Encoded,
    keys: pa.Array,
    batches: Batches,
    keyspace: str,
    places: Ints | None = None,
    nodes: Sequence[Any] = (),
) -> Iterator[EncodedBatch]:
    """Yield the requests, whose bytes are parts of one buffer: what outlives the slice is `detached`.

    :param places: where the bytes of each row of the slice are; None: in the order of the slice.
    :param nodes: the driver's host of each coordinator.
    """
    order = batches.order
    if places is not None:
        order = places if order is None else places[order]
    rows = rows if order is None else taken(rows, order)
    data = memoryview(rows.data)
    bounds = itertools.pairwise(rows.offsets[batches.starts].tolist())
    counts = np.diff(batches.starts).tolist()
    firsts = keys.take(pa.array(batches.first_rows())).to_pylist()
    near = (
        [None] * len(counts)
        if batches.coordinators is None
        else [nodes[number] for number in batches.coordinators.tolist()]
    )
    for count, (begin, end), key, node in zip(counts, bounds, firsts, near, strict=True):
        yield EncodedBatch(EncodedRows(count, data[begin:end]), keyspace, key, node)


class BoundBatch(BatchStatement):  # type: ignore[misc]  # the driver has no types
    """A batch of the driver's own class, which keeps the statements that it was made of.

    :param statements: bound, idempotent.
    """

    def __init__(self, statements: list[Any]) -> None:
        super().__init__(BatchType.UNLOGGED)
        self.is_idempotent = True
        self.bound = statements
        for statement in statements:
            self.add(statement)


def bound_requests(statements: list[Any], batches: Batches) -> Iterator[Any]:
    """Yield the requests, by the driver's public classes: a lone row is a plain statement.

    A batch gets routing key and keyspace from its first row. It has no timestamp of its own, which would
    be the same for all its rows.
    """
    order = range(len(statements)) if batches.order is None else batches.order.tolist()
    starts = batches.starts.tolist()
    for begin, end in itertools.pairwise(starts):
        if end - begin == 1:
            yield statements[order[begin]]
            continue
        yield BoundBatch([statements[position] for position in order[begin:end]])
