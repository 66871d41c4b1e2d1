"""Lists, maps and structs of Arrow: taken apart into columns, and put together again.

Kernels only; whatever offset and layout the array has, and whatever lies beneath its nulls.
"""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.cassandra.types.constants import long

ZERO = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
_NONE = long(0).cast(pa.int32())


class Apart(NamedTuple):
    """The elements of many lists in one column."""

    offsets: pa.Array
    """Int32, one more than there are lists: where each begins and ends; nulls are empty."""
    values: pa.Array
    """The elements; structs of key and value for a map."""


def apart(column: pa.Array) -> Apart:
    """Take a column of lists, or of maps, apart."""
    if pa.types.is_map(column.type):
        column = _entries(column)
    elif not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    lengths = pc.list_value_length(column).fill_null(_NONE)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    return Apart(pa.concat_arrays([ZERO, ends]).cast(pa.int32()), column.flatten())


def _entries(column: pa.Array) -> pa.Array:
    """Return the same lists of entries, without copying them: few kernels take maps."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(entries.type),
        len(column),
        column.buffers()[:2],
        offset=column.offset,
        children=[entries],
    )


def lists(offsets: pa.Array, values: pa.Array, like: pa.Array) -> pa.Array:
    """Put lists together, null where `like` is."""
    return pa.ListArray.from_arrays(offsets, values, mask=like.is_null())


def maps(offsets: pa.Array, keys: pa.Array, values: pa.Array, like: pa.Array) -> pa.Array:
    """Put maps together, null where `like` is."""
    return pa.MapArray.from_arrays(offsets, keys, values, mask=like.is_null())


def structs(columns: list[pa.Array], names: list[str], like: pa.Array) -> pa.Array:
    """Put structs together, null where `like` is."""
    return pa.StructArray.from_arrays(columns, names=names, mask=like.is_null())
