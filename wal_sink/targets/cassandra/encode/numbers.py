"""Encodes `varint`, `decimal` and `duration`, whose length depends on the value.

Kernels of numpy, but for numbers that the log has as texts, since they can have any number of digits.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.distinct import distinct
from wal_sink.targets.cassandra.encode.segments import Segment, Varying, fixed, tails
from wal_sink.targets.cassandra.encode.views import Array
from wal_sink.targets.values.digits import scaled

_BYTES = np.array([2 ** (8 * n - 1) for n in range(1, 9)], np.uint64)
"""A number that is not below the n-th takes more than n bytes, with its sign."""
_GROUPS = np.array([2 ** (7 * n) for n in range(1, 9)], np.uint64)
"""A number that is not below the n-th takes n or more bytes after the first of its vint."""
_HEADS = np.array([0xFF << (8 - extra) & 0xFF for extra in range(9)], np.uint8)
"""A vint's first byte has as many leading ones as bytes come after it."""


def varint(column: pa.Array) -> tuple[Segment, ...]:
    """Encode whole numbers as `varint`: two's complement, the highest byte first, in the fewest bytes."""
    if pa.types.is_string(column.type):
        return distinct(column, lambda text: _twos_complement(int(text)))
    width = column.type.bit_width // 8
    if width < 8:
        return varint(column.cast(pa.decimal128(column.type.precision, column.type.scale)))
    words = views.elements(column, f"V{width}").view("<u8").reshape(-1, width // 8)
    highest_first = words[:, ::-1].astype(">u8").view(np.uint8)
    return (tails(highest_first, _widths(words)),)


def _twos_complement(number: int) -> bytes:
    """Encode one number; `~` makes of a negative one what its bits but the sign are."""
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)


def _widths(words: Array) -> Array:
    """Return the fewest bytes of each two's complement, given as 64-bit words, the lowest first."""
    sign = (words[:, -1].view(np.int64) >> 63).view(np.uint64)
    widths = np.ones(len(words), np.int64)
    for i in range(words.shape[1]):
        word = words[:, i] ^ sign
        found = 8 * i + 1 + np.searchsorted(_BYTES, word, side="right")
        widths = np.where(word > 0, found, widths)
    return widths


def decimal(column: pa.Array) -> tuple[Segment, ...]:
    """Encode numbers as `decimal`: the scale in four bytes, then the unscaled number as `varint`."""
    if pa.types.is_string(column.type):
        return distinct(column, _scaled)
    return fixed(column.type.scale, ">i4"), *varint(column)


def _scaled(text: str) -> bytes:
    unscaled, scale = scaled(text)
    return scale.to_bytes(4, "big", signed=True) + _twos_complement(unscaled)


def duration(column: pa.Array) -> tuple[Segment, ...]:
    """Encode nanoseconds as `duration`: no months, no days, each number a zigzag vint."""
    nanoseconds = views.elements(column, "i8")
    return fixed(0, ">u2"), _vint((nanoseconds << 1) ^ (nanoseconds >> 63))


def _vint(zigzag: Array) -> Varying:
    numbers = zigzag.view(np.uint64)
    extra = np.searchsorted(_GROUPS, numbers, side="right")
    block = np.zeros((len(numbers), 9), np.uint8)
    block[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    block[np.arange(len(numbers)), 8 - extra] |= _HEADS[extra]
    return tails(block, extra + 1)
