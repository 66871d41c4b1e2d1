"""Makes requests of the parts of a slice, each of which another statement writes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from wal_sink.targets.cassandra.encode import encode, one_after_the_other, routing_keys
from wal_sink.targets.cassandra.write.bind import bind
from wal_sink.targets.cassandra.write.prepared import Prepared
from wal_sink.targets.cassandra.write.requests import bound_requests, encoded_requests, in_batches
from wal_sink.targets.cassandra.write.slice_buffer import Stamped
from wal_sink.targets.cassandra.write.statements import Part, places, table_rows

_LENGTH, _STAMP = 4, 8
"""Bytes on the wire: before each value, and of a write timestamp."""


def encoded(prepared: Prepared, rows: Stamped, parts: list[Part]) -> Iterator[Any]:
    """Make requests of encoded rows.

    :param rows: of which `parts` are the parts.
    """
    found = one_after_the_other(
        [
            encode(
                part.rows.batch,
                part.statement.plan,
                part.rows.stamps,
                part.statement.head,
                stamp_first=part.statement.stamp_first,
                ttls=part.ttls,
                cleared=part.cleared,
            )
            for part in parts
        ]
    )
    sizes, where = np.diff(found.offsets), places(parts)
    sizes = sizes if where is None else sizes[where]
    of = prepared.statements.upsert
    before = of.columns.start or 0
    indexes = [index - before for index in of.prepared.routing_key_indexes]
    keys = routing_keys(table_rows(rows.batch, of.plan), of.plan, indexes)
    batches = in_batches(keys, sizes, prepared.limits, prepared.replicas)
    keyspace, nodes = prepared.plan.details["keyspace"], prepared.replicas.nodes
    return encoded_requests(found, keys, batches, keyspace, where, nodes)


def bound(prepared: Prepared, rows: Stamped, parts: list[Part]) -> Iterator[Any]:  # noqa: ARG001 -- as `encoded`
    """Make requests by the classes of a driver that `frames` does not know."""
    statements: list[Any] = []
    lengths: list[int] = []
    for part in parts:
        of = part.statement
        values = bind(
            part.rows.batch,
            of.plan,
            part.rows.stamps.tolist(),
            stamp_first=of.stamp_first,
            ttls=None if part.ttls is None else part.ttls.tolist(),
            cleared=part.cleared,
        )
        statements += [of.prepared.bind(each) for each in values.values]
        around = len(of.head) + _LENGTH * (len(of.plan.columns) + 1) + _STAMP
        lengths += [size + around for size in values.sizes]
    if (where := places(parts)) is not None:
        statements = [statements[place] for place in where]
        lengths = [lengths[place] for place in where]
    keys = pa.array([statement.routing_key for statement in statements], pa.binary())
    sizes = np.array(lengths, np.int64)
    batches = in_batches(keys, sizes, prepared.limits, prepared.replicas)
    return bound_requests(statements, batches)
