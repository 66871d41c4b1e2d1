"""Encodes a column of any type; the parts of its values are columns, too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.scalars import SCALARS
from wal_sink.targets.cassandra.encode.segments import (
    Segment,
    Varying,
    emptied,
    fixed,
    joined,
    lengths,
    varying,
)
from wal_sink.targets.cassandra.encode.views import Array
from wal_sink.targets.cassandra.types.cql_type import CqlType
from wal_sink.targets.cassandra.types.unnest import unnest

NULL = -1
"""The length of a null."""
UNSET = -2
"""The length of a value that leaves its cell as it is; only in a row, never within another value."""


class Values(NamedTuple):
    """The encoded values of a column, without their lengths."""

    segments: tuple[Segment, ...]
    """Pieces of each value; without bytes for a null."""
    valid: Array | None
    """Booleans, False for null; None when there are no nulls."""


def values(column: pa.Array, tree: CqlType) -> Values:
    """Encode a column that `cast_column` returned."""
    if column.type == pa.null():
        return Values((), np.zeros(len(column), np.bool_))
    segments = _segments(column, tree)
    if not column.null_count:
        return Values(segments, None)
    valid = views.booleans(column.is_valid())
    return Values((emptied(joined(segments, len(column)), valid),), valid)


def prefixed(column: pa.Array, tree: CqlType, absent: int = NULL) -> tuple[Segment, ...]:
    """Encode a column with the length before each value.

    :param absent: the length of a null.
    """
    segments, valid = values(column, tree)
    widths = lengths(segments)
    return fixed(widths if valid is None else np.where(valid, widths, absent), ">i4"), *segments


def _segments(column: pa.Array, tree: CqlType) -> tuple[Segment, ...]:
    if tree.kind in SCALARS:
        return SCALARS[tree.kind](column)
    if tree.kind in ("tuple", "udt"):
        return _fields(column.flatten(), tree)
    if tree.kind == "vector":
        return _vector(column, tree)
    return _collection(column, tree)


def _fields(columns: list[pa.Array], tree: CqlType) -> tuple[Segment, ...]:
    """Encode the fields one after the other; those that the type got since are null."""
    known, later = tree.parts[: len(columns)], tree.parts[len(columns) :]
    given = [prefixed(each, part) for each, part in zip(columns, known, strict=True)]
    return *_flat(given), *(fixed(NULL, ">i4") for _ in later)


def _collection(column: pa.Array, tree: CqlType) -> tuple[Segment, ...]:
    """Encode the number of elements, then the elements: those of a row lie together, so offsets suffice."""
    offsets, elements = unnest(column)
    parts = elements.flatten() if tree.kind == "map" else [elements]
    columns = zip(parts, tree.parts, strict=True)
    pieces = _flat(prefixed(each, part) for each, part in columns)
    bounds = views.elements(offsets, "i4")
    return fixed(np.diff(bounds), ">i4"), _grouped(pieces, len(elements), bounds)


def _vector(column: pa.Array, tree: CqlType) -> tuple[Segment, ...]:
    """Encode the elements without lengths, as they are of one width; `check` has counted them."""
    offsets, elements = unnest(column)
    pieces = values(elements, tree.parts[0]).segments
    return (_grouped(pieces, len(elements), views.elements(offsets, "i4")),)


def _grouped(pieces: Iterable[Segment], elements: int, bounds: Array) -> Varying:
    data, offsets = varying(joined(pieces, elements), elements)
    return Varying(data, offsets[bounds])


def _flat(columns: Iterable[tuple[Segment, ...]]) -> tuple[Segment, ...]:
    return tuple(segment for segments in columns for segment in segments)
