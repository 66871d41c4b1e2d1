"""Literals for `pyarrow.compute`, made of buffers.

`pyarrow.scalar` imports pandas, where it is installed, to find out what a Python value is: half a
second in each new Python worker of Spark.
"""

from __future__ import annotations

import struct

import pyarrow as pa

TRUE = pa.nulls(1).is_null()[0]
FALSE = pa.nulls(1).is_valid()[0]


def long(value: int) -> pa.Scalar:
    """Return an int64."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("=q", value))])[0]


def real(value: float) -> pa.Scalar:
    """Return a float of 32 bits, the nearest."""
    return pa.Array.from_buffers(pa.float32(), 1, [None, pa.py_buffer(struct.pack("=f", value))])[0]


def text(value: str) -> pa.Scalar:
    """Return a string."""
    data = value.encode()
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(data)))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])[0]


def null(of: pa.DataType) -> pa.Scalar:
    """Return a null of a type."""
    return pa.nulls(1, of)[0]


def blob(value: bytes) -> pa.Scalar:
    """Return a binary."""
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(value)))
    return pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(value)])[0]
