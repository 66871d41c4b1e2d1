"""Converts single values between Python and Arrow. No I/O.

`pyarrow.scalar` and `pyarrow.array` import pandas if it is installed, which takes half a second in each
Python worker. So this module makes scalars from buffers.
"""

from __future__ import annotations

import datetime
import struct
from typing import Any

import pyarrow as pa

TRUE = pa.nulls(1).is_null()[0]


FALSE = pa.nulls(1).is_valid()[0]


def int64(value: int) -> pa.Scalar:
    """Return an int64."""
    return pa.Array.from_buffers(pa.int64(), 1, [None, pa.py_buffer(struct.pack("=q", value))])[0]


def float32(value: float) -> pa.Scalar:
    """Return the nearest float of 32 bits."""
    return pa.Array.from_buffers(pa.float32(), 1, [None, pa.py_buffer(struct.pack("=f", value))])[0]


def text(value: str) -> pa.Scalar:
    """Return a string."""
    return _of_bytes(pa.string(), value.encode())


def blob(value: bytes) -> pa.Scalar:
    """Return a binary."""
    return _of_bytes(pa.binary(), value)


def _of_bytes(type_: pa.DataType, value: bytes) -> pa.Scalar:
    offsets = pa.py_buffer(struct.pack("=ii", 0, len(value)))
    return pa.Array.from_buffers(type_, 1, [None, offsets, pa.py_buffer(value)])[0]


def null(type_: pa.DataType) -> pa.Scalar:
    """Return a null of a type."""
    return pa.nulls(1, type_)[0]


def as_python(value: pa.Scalar) -> Any:
    """Return a value as a Python object.

    A value without one is returned as bytes, or as a number of units.
    """
    try:
        return value.as_py()
    except (ValueError, OverflowError) as error:
        if value.type.num_fields:
            return str(value.type)
        number = pa.int32() if pa.types.is_date32(value.type) else pa.int64()
        kind = pa.binary() if isinstance(error, UnicodeDecodeError) else number
        return value.cast(kind).as_py()


def shorten(value: Any, limit: int = 60) -> str:
    """Return the text of a value, cut to about `limit` characters; NULL for None."""
    if value is None:
        return "NULL"
    if isinstance(value, datetime.date | datetime.time):  # includes datetime
        return value.isoformat()
    cut = value[:limit] if isinstance(value, str | bytes) else value
    text = repr(cut)
    if isinstance(value, str | bytes) and len(value) > limit:
        return f"{text}… of {len(value):,}"
    return text if len(text) <= limit else text[:limit] + "…"
