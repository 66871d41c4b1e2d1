"""Encodes the rows of a batch, and their routing keys. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.nested import NULL, UNSET, prefixed, values
from wal_sink.targets.cassandra.encode.segments import (
    Segment,
    binaries,
    constant,
    fixed,
    joined,
    lengths,
    varying,
)
from wal_sink.targets.cassandra.encode.views import Array
from wal_sink.targets.cassandra.types.collection_mode import planned_changes
from wal_sink.targets.cassandra.types.cql_type import column_types

_PART_BYTES = 65_535
"""Most bytes of a part of a routing key: its length has two bytes."""
_TTL_BYTES = 4


class Encoded(NamedTuple):
    """The rows of a batch as bytes."""

    data: pa.Buffer
    """The rows, one after the other."""
    offsets: Array
    """int64, one more than there are rows: row i is `data[offsets[i]:offsets[i + 1]]`."""


def encode(
    batch: pa.RecordBatch,
    plan: Plan,
    stamps: Array | int,
    head: bytes = b"",
    *,
    stamp_first: bool = False,
    ttls: Array | None = None,
    cleared: bool = False,
) -> Encoded:
    """Encode a batch that `check` returned, or some of its columns.

    Each row is `head`, the plan's columns and its write timestamp, each of these with its length in
    four bytes before it, as in a request's `<n><value_1>...<value_n>`, without the number.

    :param stamps: write timestamps, microseconds since 1970, int64; or only that of row 0, if that
        of row i is greater by i.
    :param head: bytes that stand before each row.
    :param stamp_first: whether the timestamp stands before the columns.
    :param ttls: seconds to live, which stand behind the timestamp; None: nothing does.
    :param cleared: whether every value beside the key is written as null; the elements of a changed
        collection are not: the plan has them taken out.
    """
    rows = batch.num_rows
    changes = planned_changes(plan)
    other = UNSET if plan.details["nulls"] == "unset" else NULL
    segments: list[Segment] = [constant(head)] if head else []
    columns: list[Segment] = []
    for of, tree, column in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        absent = UNSET if of.name in changes else other
        if cleared and of.role not in ("partition", "clustering") and of.name not in changes:
            columns.append(_as_null(column, absent))
        else:
            columns += prefixed(column, tree, absent)
    if isinstance(stamps, int):
        stamps = np.arange(stamps, stamps + rows, dtype=np.int64)
    stamped: list[Segment] = [fixed(stamps.itemsize, ">i4"), fixed(stamps, ">i8")]
    if ttls is not None:
        stamped += [fixed(_TTL_BYTES, ">i4"), fixed(ttls, ">i4")]
    segments += [*stamped, *columns] if stamp_first else [*columns, *stamped]
    data, offsets = varying(joined(segments, rows), rows)
    return Encoded(data, offsets.astype(np.int64, copy=False))


def _as_null(column: pa.Array, absent: int) -> Segment:
    if not column.null_count:
        return fixed(NULL, ">i4")
    return fixed(np.where(views.booleans(column.is_valid()), NULL, absent), ">i4")


def one_after_the_other(parts: Sequence[Encoded]) -> Encoded:
    """Put the rows of several batches into one buffer.

    :param parts: at least one; for a single one nothing is copied.
    """
    if len(parts) == 1:
        return parts[0]
    data, offsets = views.texts(pa.concat_arrays([views.binaries(*part) for part in parts]))
    return Encoded(data, offsets)


def taken(encoded: Encoded, order: Array) -> Encoded:
    """Put rows in another order; each keeps its timestamp.

    :param order: the positions of the rows.
    """
    data, offsets = views.texts(views.binaries(*encoded).take(views.indices(order)))
    return Encoded(data, offsets)


def routing_keys(batch: pa.RecordBatch, plan: Plan, indexes: Sequence[int]) -> pa.Array:
    """Return the routing key of each row, which the driver hashes to find its replicas.

    They are binaries, large ones above 2 GiB, none of them null.

    The key is the value of one column; or, for each of several columns, the length in two bytes, the value
    and a zero, as in `org.apache.cassandra.db.marshal.CompositeType` and the driver's
    `BoundStatement.routing_key`.

    :param indexes: which of the plan's columns are the partition key, in the table's order, which the
        plan does not know: `PreparedStatement.routing_key_indexes`.
    :raises ValueError: a part is null, or too long; `check` refuses such rows.
    """
    trees = column_types(plan)
    parts: list[Segment] = []
    for index in indexes:
        segments, valid = values(batch.column(index), trees[index])
        if valid is not None:
            raise ValueError(f"Column {plan.columns[index].name} of the partition key is null")
        if len(indexes) > 1:
            segments = (_part_length(segments), *segments, constant(b"\0"))
        parts += segments
    return binaries(varying(joined(parts, batch.num_rows), batch.num_rows))


def _part_length(segments: tuple[Segment, ...]) -> Segment:
    widths = lengths(segments)
    if widths.max(initial=0) > _PART_BYTES:
        raise ValueError(f"A part of the partition key has more than {_PART_BYTES} bytes")
    return fixed(widths, ">u2")
