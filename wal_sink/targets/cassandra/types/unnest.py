"""Takes columns of lists and maps apart into one column of their elements. Kernels of Arrow only."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.values.literals import FALSE, long

ZERO = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
_NONE = long(0).cast(pa.int32())


class Unnested(NamedTuple):
    """The elements of many lists in one column."""

    offsets: pa.Array
    """Int32, one more than there are lists: where each begins and ends; a null is an empty list."""
    values: pa.Array
    """The elements; structs of key and value for a map."""


def unnest(column: pa.Array) -> Unnested:
    """Take a column of lists, or of maps, apart.

    It may have any offset and any layout of lists, and anything beneath its nulls.
    """
    if pa.types.is_map(column.type):
        column = _entries(column)
    elif not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    lengths = pc.list_value_length(column).fill_null(_NONE)
    ends = pc.cumulative_sum(lengths.cast(pa.int64()))
    return Unnested(pa.concat_arrays([ZERO, ends]).cast(pa.int32()), column.flatten())


def count_in(offsets: pa.Array, flags: pa.Array) -> pa.Array:
    """Return how many elements of each list are flagged, int64; 0 for a null.

    :param offsets: as `unnest` returns them.
    """
    before = pa.concat_arrays([ZERO, pc.cumulative_sum(flags.fill_null(FALSE).cast(pa.int64()))])
    return pc.subtract(before.take(offsets[1:]), before.take(offsets[:-1]))


def lists_with(offsets: pa.Array, flags: pa.Array) -> pa.Array:
    """Return which lists have an element that is flagged."""
    return pc.greater(count_in(offsets, flags), long(0))


def _entries(column: pa.Array) -> pa.Array:
    """Return a map's entries as lists of structs, without copying them: few kernels take maps."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(entries.type),
        len(column),
        column.buffers()[:2],
        offset=column.offset,
        children=[entries],
    )
