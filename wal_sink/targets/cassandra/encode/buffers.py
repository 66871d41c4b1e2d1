"""Views Arrow's buffers as numpy arrays without a copy, and joins segments row by row. Pure.

A segment is a column with a piece of each row's bytes. Values whose length depends on them are encoded here:
`varint`, `decimal`, `duration`, and texts that no kernel parses, each distinct one once, as a Python object.
Kernels of numpy, but for numbers that the log has as texts, since they can have any number of digits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.arrow_values import blob, scaled

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
    """Return positions as Arrow's int64; `pyarrow.array` would import pandas, see `arrow_values.literals`."""
    whole = np.ascontiguousarray(positions, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(whole), [None, pa.py_buffer(whole)])


MOST_BYTES = 2**31 - 1
"""The most that offsets of 32 bits can count; for more, joining takes offsets of 64 bits."""


class Fixed(NamedTuple):
    """Pieces of one width."""

    values: Array
    """One for each row; an array without dimensions stands for the same in each."""
    wire: np.dtype[np.generic]
    """The type on the wire: big-endian numbers, or bytes as they are."""


class Varying(NamedTuple):
    """Pieces of any width."""

    data: pa.Buffer
    offsets: Array
    """One more than there are rows: where each piece begins and ends."""


Segment = Fixed | Varying


def fixed(values: Array | int, wire: str) -> Fixed:
    """Make pieces of numbers that are written as the numpy type `wire`."""
    return Fixed(np.asarray(values), np.dtype(wire))


def constant(value: bytes) -> Fixed:
    """Make a piece of at least one byte that is the same in each row."""
    whole = np.frombuffer(value, f"V{len(value)}")
    return Fixed(whole.reshape(()), whole.dtype)


def lengths(segments: Iterable[Segment]) -> Array:
    """Return the bytes of each row's pieces together; without dimensions when all rows have the same."""
    total = np.asarray(0)
    for segment in segments:
        width = segment.wire.itemsize if isinstance(segment, Fixed) else np.diff(segment.offsets)
        total = total + width
    return total


def joined(segments: Iterable[Segment], rows: int) -> Segment:
    """Concatenate the pieces of each row, at least one; fixed when all of them are.

    Neighbours of fixed width are first merged into one array by numpy, so that few pieces are left for
    Arrow's join, whose cost grows with their number.
    """
    pieces: list[Segment] = []
    for run in [[*run] for _, run in itertools.groupby(segments, type)]:
        neighbours = [each for each in run if isinstance(each, Fixed)]
        pieces += [_merged(neighbours, rows)] if neighbours else run
    if len(pieces) == 1:
        return pieces[0]
    return _joined([varying(each, rows) for each in pieces])


def _merged(run: list[Fixed], rows: int) -> Fixed:
    together = np.dtype([(str(i), each.wire) for i, each in enumerate(run)])
    merged = np.empty(rows, together)
    for i, each in enumerate(run):
        merged[str(i)] = each.values
    whole = np.dtype(f"V{together.itemsize}")
    return Fixed(merged.view(whole), whole)


def _joined(pieces: Sequence[Varying]) -> Varying:
    narrow = (
        sum(int(each.offsets[-1]) for each in pieces) <= MOST_BYTES
    )  # no joined array has more bytes
    arrays = [piece_binaries(each, narrow=narrow) for each in pieces]
    between = blob(b"").cast(arrays[0].type)
    return Varying(*texts(pc.binary_join_element_wise(*arrays, between)))


def piece_binaries(piece: Varying, *, narrow: bool | None = None) -> pa.Array:
    """Return pieces as Arrow's binaries.

    :param narrow: whether with offsets of 32 bits, or as large binaries; None: if they fit.
    """
    if narrow is None:
        narrow = bool(piece.offsets[-1] <= MOST_BYTES)
    offsets = piece.offsets.astype(np.int32 if narrow else np.int64, copy=False)
    return binaries(piece.data, offsets)


def varying(segment: Segment, rows: int) -> Varying:
    """Return the same pieces with offsets."""
    if isinstance(segment, Varying):
        return segment
    whole = np.ascontiguousarray(np.broadcast_to(segment.values, rows), segment.wire)
    offsets = np.arange(rows + 1, dtype=np.int64) * segment.wire.itemsize
    return Varying(pa.py_buffer(whole), offsets)


def emptied(segment: Segment, valid: Array) -> Varying:
    """Drop the bytes of rows that are not valid.

    :param valid: booleans, one for each row.
    """
    if isinstance(segment, Fixed):
        segment = Fixed(np.broadcast_to(segment.values, len(valid))[valid], segment.wire)
        kept = varying(segment, len(segment.values)).data
        return Varying(kept, ends(valid * np.int64(segment.wire.itemsize)))
    widths = np.diff(segment.offsets)
    if not widths[~valid].any():
        return segment
    kept, _ = texts(binaries(*segment).take(indices(np.flatnonzero(valid))))
    return Varying(kept, ends(np.where(valid, widths, 0)))


def tails(block: Array, widths: Array) -> Varying:
    """Make pieces of the last bytes of each row of an array.

    :param block: uint8, rows by width.
    :param widths: how many bytes of each row, at least one.
    """
    most = int(widths.max(initial=1))
    block = block[:, block.shape[1] - most :]
    kept = block[np.arange(most) >= most - widths[:, None]]
    return Varying(pa.py_buffer(kept), ends(widths))


def ends(widths: Array) -> Array:
    """Return the offsets of pieces that have these widths."""
    offsets = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(widths, out=offsets[1:])
    return offsets


def distinct(column: pa.Array, encode: Callable[[str], bytes]) -> tuple[Segment, ...]:
    """Encode a column of strings by a function of one; anything beneath nulls."""
    encoded = column.dictionary_encode()
    values = [encode(text) for text in encoded.dictionary.to_pylist()]
    widths = np.fromiter(map(len, values), np.int32, len(values))
    of_each = binaries(pa.py_buffer(b"".join(values)), ends(widths))
    return (Varying(*texts(of_each.take(encoded.indices))),)


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
    words = elements(column, f"V{width}").view("<u8").reshape(-1, width // 8)
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
    nanoseconds = elements(column, "i8")
    return fixed(0, ">u2"), _vint((nanoseconds << 1) ^ (nanoseconds >> 63))


def _vint(zigzag: Array) -> Varying:
    numbers = zigzag.view(np.uint64)
    extra = np.searchsorted(_GROUPS, numbers, side="right")
    block = np.zeros((len(numbers), 9), np.uint8)
    block[:, 1:] = numbers.astype(">u8").view(np.uint8).reshape(-1, 8)
    block[np.arange(len(numbers)), 8 - extra] |= _HEADS[extra]
    return tails(block, extra + 1)
