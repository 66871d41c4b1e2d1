"""Views Arrow's buffers as numpy arrays without a copy, at any offset of the Arrow array."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array = npt.NDArray[Any]

NOTHING = pa.py_buffer(b"")


def elements(column: pa.Array, of: str) -> Array:
    """Return the values of a type of fixed width as a numpy type; anything beneath nulls."""
    kind = np.dtype(of)
    if not len(column):  # there need not be a buffer
        return np.zeros(0, kind)
    return np.frombuffer(column.buffers()[1], kind, len(column), column.offset * kind.itemsize)


def booleans(column: pa.Array) -> Array:
    """Return booleans, a byte each; anything beneath nulls."""
    return elements(column.cast(pa.uint8()), "?")


def flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Inverse of `booleans`, without nulls."""
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def texts(column: pa.Array) -> tuple[pa.Buffer, Array]:
    """Return the bytes of strings or binaries, and their offsets, one more than there are rows."""
    _, offsets, data = column.buffers()
    if not len(column):
        return NOTHING, np.zeros(1, np.int32)
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    kind = np.dtype(np.int64 if large else np.int32)
    bounds = np.frombuffer(offsets, kind, len(column) + 1, column.offset * kind.itemsize)
    return data or NOTHING, bounds


def binaries(data: pa.Buffer, bounds: Array) -> pa.Array:
    """Inverse of `texts`: binaries, large ones when the offsets have 64 bits."""
    kind = pa.binary() if bounds.dtype == np.int32 else pa.large_binary()
    return pa.Array.from_buffers(kind, len(bounds) - 1, [None, pa.py_buffer(bounds), data])


def indices(positions: Array) -> pa.Array:
    """Return positions as Arrow's int64; `pyarrow.array` would import pandas, see `values.literals`."""
    whole = np.ascontiguousarray(positions, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])
