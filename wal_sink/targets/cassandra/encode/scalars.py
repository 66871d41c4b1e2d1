"""Encodes columns of types without parts."""

from __future__ import annotations

import socket
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from wal_sink.targets.cassandra.encode import numbers, views
from wal_sink.targets.cassandra.encode.distinct import distinct
from wal_sink.targets.cassandra.encode.segments import Segment, Varying, fixed

Kernel = Callable[[pa.Array], tuple[Segment, ...]]
"""Encodes a column; what lies beneath nulls may become bytes, too, which the caller drops."""

_MAPPED = bytes(10) + b"\xff\xff"
"""The first bytes of an IPv6 address that stands for an IPv4 one."""


def _raw(column: pa.Array) -> tuple[Segment, ...]:
    return (Varying(*views.texts(column)),)


def _number(width: int) -> Kernel:
    """Make a kernel for integers and floats: a float's bits are copied as an integer's, NaNs too."""

    def kernel(column: pa.Array) -> tuple[Segment, ...]:
        return (fixed(views.elements(column, f"u{width}"), f">u{width}"),)

    return kernel


def _boolean(column: pa.Array) -> tuple[Segment, ...]:
    return (fixed(views.booleans(column), "?"),)


def _date(column: pa.Array) -> tuple[Segment, ...]:
    """Encode days, where day 2^31 is 1970-01-01: the sign bit is flipped."""
    return (fixed(views.elements(column, "u4") ^ np.uint32(2**31), ">u4"),)


def _uuid(column: pa.Array) -> tuple[Segment, ...]:
    return (fixed(views.elements(column, "V16"), "V16"),)


def _inet(column: pa.Array) -> tuple[Segment, ...]:
    return distinct(column, _packed)


def _packed(text: str) -> bytes:
    """Return 4 or 16 bytes; ::ffff:192.0.2.1 becomes 192.0.2.1, as in `bind`."""
    if ":" not in text:
        return socket.inet_aton(text)
    packed = socket.inet_pton(socket.AF_INET6, text)
    return packed.removeprefix(_MAPPED)


SCALARS: dict[str, Kernel] = {
    "ascii": _raw,
    "text": _raw,
    "blob": _raw,
    "boolean": _boolean,
    "tinyint": _number(1),
    "smallint": _number(2),
    "int": _number(4),
    "bigint": _number(8),
    "float": _number(4),
    "double": _number(8),
    "timestamp": _number(8),
    "time": _number(8),
    "date": _date,
    "uuid": _uuid,
    "timeuuid": _uuid,
    "inet": _inet,
    "varint": numbers.varint,
    "decimal": numbers.decimal,
    "duration": numbers.duration,
}
