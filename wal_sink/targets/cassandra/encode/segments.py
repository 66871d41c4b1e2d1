"""Joins segments, columns with a piece of each row's bytes, row by row. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.views import Array
from wal_sink.targets.values.literals import blob

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
    arrays = [binaries(each, narrow=narrow) for each in pieces]
    between = blob(b"").cast(arrays[0].type)
    return Varying(*views.texts(pc.binary_join_element_wise(*arrays, between)))


def binaries(piece: Varying, *, narrow: bool | None = None) -> pa.Array:
    """Return pieces as Arrow's binaries.

    :param narrow: whether with offsets of 32 bits, or as large binaries; None: if they fit.
    """
    if narrow is None:
        narrow = bool(piece.offsets[-1] <= MOST_BYTES)
    offsets = piece.offsets.astype(np.int32 if narrow else np.int64, copy=False)
    return views.binaries(piece.data, offsets)


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
    kept, _ = views.texts(views.binaries(*segment).take(views.indices(np.flatnonzero(valid))))
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
