"""Converts Arrow's buffers from and to numpy arrays, flattens lists, and computes sizes of encoded values.

The conversions copy no values. Sizes are bytes of the native protocol, including nested values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_values import FALSE, int64

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
_NO_BYTES = pa.py_buffer(b"")


def elements(column: pa.Array, dtype: str) -> Array:
    """Return a column of fixed width as a numpy array. The array has an arbitrary value for each null."""
    kind = np.dtype(dtype)
    if not len(column):  # an empty array may have no buffer
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def booleans(column: pa.Array) -> Array:
    """Return a column of booleans as a numpy array. The array has an arbitrary value for each null."""
    return elements(column.cast(pa.uint8()), "?")


def flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Return a numpy array of booleans as an Arrow array without nulls."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def texts(column: pa.Array) -> tuple[pa.Buffer, Array]:
    """Return the bytes of all strings or binaries, and their offsets: each begin, then the last end."""
    _, offsets, data = column.buffers()
    if not len(column):
        return _NO_BYTES, np.zeros(1, np.int32)
    bounds = np.frombuffer(offsets, np.int32, len(column) + 1, column.offset * 4)
    return data or _NO_BYTES, bounds


def binaries(data: pa.Buffer, bounds: Array) -> pa.Array:
    """Return an Arrow array of binaries.

    :param bounds: the begin of each binary in `data`, then the end of the last binary.
    :raises OverflowError: the binaries have 2 GiB or more.
    """
    if bounds[-1] >= 2**31:
        raise OverflowError("Rows are too long to be encoded together")
    offsets = pa.py_buffer(bounds.astype(np.int32, copy=False))
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, offsets, data])


def indices(positions: Array) -> pa.Array:
    """Return positions as an Arrow array of int64, without `pyarrow.array`, which would import pandas."""
    whole = np.ascontiguousarray(positions, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


_FIRST = pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(bytes(8))])
"""An array with one zero: the sum of no values."""
_ZERO = int64(0)


def unnest(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets and the elements of a column of lists or maps.

    Offsets are int32: the begin of each list among the elements, then the end of the last list. A null
    becomes an empty list. If Arrow's buffers have elements for the null, they are left out. The elements of a
    map are structs of key and value.
    """
    if pa.types.is_map(column.type):
        column = _entries(column)
    lengths = pc.list_value_length(column).cast(pa.int64()).fill_null(_ZERO)
    return _sums(lengths).cast(pa.int32()), column.flatten()


def _sums(values: pa.Array) -> pa.Array:
    """Return running sums: 0, then the sum up to each value. The last sum is that of all values."""
    return pa.concat_arrays([_FIRST, pc.cumulative_sum(values)])


def _sums_of_lists(offsets: pa.Array, values: pa.Array) -> pa.Array:
    sums = _sums(values)
    return pc.subtract(sums.take(offsets[1:]), sums.take(offsets[:-1]))


def lists_with(offsets: pa.Array, flags: pa.Array) -> pa.Array:
    """Return flags of the lists that have a flagged element.

    :param offsets: the offsets that `unnest` returns.
    :param flags: one for each element; a null counts as False.
    """
    counts = _sums_of_lists(offsets, flags.fill_null(FALSE).cast(pa.int64()))
    return pc.greater(counts, _ZERO)


def _entries(column: pa.Array) -> pa.Array:
    """Return maps as lists of structs, without a copy. Few kernels of Arrow accept maps."""
    entries = pa.StructArray.from_arrays([column.keys, column.items], names=["key", "value"])
    return pa.Array.from_buffers(
        pa.list_(entries.type),
        len(column),
        column.buffers()[:2],
        offset=column.offset,
        children=[entries],
    )


_LENGTH = 4
"""The bytes of the length before each element of a collection and each field of a struct. The number of
elements before a collection has the same size."""


def sizes(stored: pa.Array) -> pa.Array:
    """Return the encoded size of each value in bytes, int64; 0 for a null.

    The size of a decimal is an upper bound.
    """
    kind = stored.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return pc.binary_length(stored).cast(pa.int64()).fill_null(_ZERO)
    if pa.types.is_struct(kind):
        widths = _of_struct(stored)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        widths = _of_list(stored)
    elif pa.types.is_decimal(kind):
        widths = int64(4 + kind.bit_width // 8 + 1)  # scale, then the unscaled number
    else:
        widths = int64(max(kind.bit_width // 8, 1) if kind != pa.null() else 0)
    return pc.if_else(stored.is_valid(), widths, _ZERO)


def _of_struct(stored: pa.Array) -> pa.Array:
    total = int64(_LENGTH * stored.type.num_fields)
    for field in stored.flatten():
        total = pc.add(total, sizes(field))
    return total


def _of_list(stored: pa.Array) -> pa.Array:
    offsets, values = unnest(stored)
    widths = sizes(values)
    if not pa.types.is_map(stored.type):  # the sizes of a map's entries include lengths
        widths = pc.add(widths, int64(_LENGTH))
    return pc.add(_sums_of_lists(offsets, widths), int64(_LENGTH))
