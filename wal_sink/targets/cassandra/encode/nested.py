"""A column of any type to the bytes of its values: parts are columns too, whatever holds them."""

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
from wal_sink.targets.cassandra.types import arrays
from wal_sink.targets.cassandra.types.cql_type import Cql

NULL = -1
"""The length of a null."""
UNSET = -2
"""The length of a value that leaves what is there; only in a row, never in another value."""


class Values(NamedTuple):
    """The values of a column, joined row by row, without their lengths."""

    segments: tuple[Segment, ...]
    """Without bytes where the value is null."""
    valid: Array | None
    """Booleans, False for null; None when there are no nulls."""


def values(column: pa.Array, tree: Cql) -> Values:
    """Encode a column that `store` returned."""
    if column.type == pa.null():
        return Values((), np.zeros(len(column), np.bool_))
    segments = _segments(column, tree)
    if not column.null_count:
        return Values(segments, None)
    valid = views.booleans(column.is_valid())
    return Values((emptied(joined(segments, len(column)), valid),), valid)


def prefixed(column: pa.Array, tree: Cql, absent: int = NULL) -> tuple[Segment, ...]:
    """Encode a column with the length before each value.

    :param absent: the length of a null.
    """
    segments, valid = values(column, tree)
    widths = lengths(segments)
    return fixed(widths if valid is None else np.where(valid, widths, absent), ">i4"), *segments


def _segments(column: pa.Array, tree: Cql) -> tuple[Segment, ...]:
    if tree.kind in SCALARS:
        return SCALARS[tree.kind](column)
    if tree.kind in ("tuple", "udt"):
        return _fields(column.flatten(), tree)
    if tree.kind == "vector":
        return _vector(column, tree)
    return _collection(column, tree)


def _fields(columns: list[pa.Array], tree: Cql) -> tuple[Segment, ...]:
    """Put one field after the other; those that a user-defined type got since are null."""
    known, later = tree.parts[: len(columns)], tree.parts[len(columns) :]
    given = [prefixed(each, part) for each, part in zip(columns, known, strict=True)]
    return *_flat(given), *(fixed(NULL, ">i4") for _ in later)


def _collection(column: pa.Array, tree: Cql) -> tuple[Segment, ...]:
    """Say how many, then all of them; a row's elements lie together, so it only takes offsets."""
    offsets, elements = arrays.apart(column)
    parts = elements.flatten() if tree.kind == "map" else [elements]
    columns = zip(parts, tree.parts, strict=True)
    pieces = _flat(prefixed(each, part) for each, part in columns)
    bounds = views.elements(offsets, "i4")
    return fixed(np.diff(bounds), ">i4"), _grouped(pieces, len(elements), bounds)


def _vector(column: pa.Array, tree: Cql) -> tuple[Segment, ...]:
    """Encode the elements alone, which are of one width; `check` has counted them."""
    offsets, elements = arrays.apart(column)
    pieces = values(elements, tree.parts[0]).segments
    return (_grouped(pieces, len(elements), views.elements(offsets, "i4")),)


def _grouped(pieces: Iterable[Segment], elements: int, bounds: Array) -> Varying:
    data, offsets = varying(joined(pieces, elements), elements)
    return Varying(data, offsets[bounds])


def _flat(columns: Iterable[tuple[Segment, ...]]) -> tuple[Segment, ...]:
    return tuple(segment for segments in columns for segment in segments)
