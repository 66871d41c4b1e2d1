"""The sizes of values on the wire, nested ones included."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.cassandra.types.unnest import ZERO, unnest
from wal_sink.targets.values.literals import long

_NOTHING = long(0)
_LENGTH = 4
"""Bytes before a collection, and before each element and each field of a struct."""


def sizes(stored: pa.Array) -> pa.Array:
    """Return the bytes of each value on the wire, int64; 0 for null, an upper bound for decimals."""
    kind = stored.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pc.binary_length(stored).cast(pa.int64()).fill_null(_NOTHING)
    if pa.types.is_struct(kind):
        of_each = _of_struct(stored)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        of_each = _of_list(stored)
    elif pa.types.is_decimal(kind):
        of_each = long(4 + kind.bit_width // 8 + 1)  # scale, then the unscaled number
    else:
        of_each = long(max(kind.bit_width // 8, 1) if kind != pa.null() else 0)
    return pc.if_else(stored.is_valid(), of_each, _NOTHING)


def _of_struct(stored: pa.Array) -> pa.Array:
    total = long(_LENGTH * stored.type.num_fields)
    for field in stored.flatten():
        total = pc.add(total, sizes(field))
    return total


def _of_list(stored: pa.Array) -> pa.Array:
    offsets, values = unnest(stored)
    of_each = sizes(values)
    if not pa.types.is_map(stored.type):  # a map's entry is a struct, which has them counted
        of_each = pc.add(of_each, long(_LENGTH))
    before = pa.concat_arrays([ZERO, pc.cumulative_sum(of_each)])
    ends, begins = before.take(offsets[1:]), before.take(offsets[:-1])
    return pc.add(pc.subtract(ends, begins), long(_LENGTH))
