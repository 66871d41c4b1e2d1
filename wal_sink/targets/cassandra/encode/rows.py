"""Encodes the rows of a batch, and their keys, by which rows are routed and told apart. Pure."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from wal_sink.targets.cassandra.casts import unnest
from wal_sink.targets.cassandra.encode import buffers
from wal_sink.targets.cassandra.encode.buffers import (
    Array,
    Segment,
    Varying,
    constant,
    distinct,
    emptied,
    fixed,
    joined,
    lengths,
    piece_binaries,
    varying,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.targets.cassandra.types import CqlType, column_types

Kernel = Callable[[pa.Array], tuple[Segment, ...]]
"""Encodes a column; what lies beneath nulls may become bytes, too, which the caller drops."""

_MAPPED = bytes(10) + b"\xff\xff"
"""The first bytes of an IPv6 address that stands for an IPv4 one."""


def _raw(column: pa.Array) -> tuple[Segment, ...]:
    return (Varying(*buffers.texts(column)),)


def _number(width: int) -> Kernel:
    """Make a kernel for integers and floats: a float's bits are copied as an integer's, NaNs too."""

    def kernel(column: pa.Array) -> tuple[Segment, ...]:
        return (fixed(buffers.elements(column, f"u{width}"), f">u{width}"),)

    return kernel


def _boolean(column: pa.Array) -> tuple[Segment, ...]:
    return (fixed(buffers.booleans(column), "?"),)


def _date(column: pa.Array) -> tuple[Segment, ...]:
    """Encode days, where day 2^31 is 1970-01-01: the sign bit is flipped."""
    return (fixed(buffers.elements(column, "u4") ^ np.uint32(2**31), ">u4"),)


def _uuid(column: pa.Array) -> tuple[Segment, ...]:
    return (fixed(buffers.elements(column, "V16"), "V16"),)


def _inet(column: pa.Array) -> tuple[Segment, ...]:
    return distinct(column, _packed)


def _packed(text: str) -> bytes:
    """Return 4 or 16 bytes; ::ffff:192.0.2.1 becomes 192.0.2.1."""
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
    "varint": buffers.varint,
    "decimal": buffers.decimal,
    "duration": buffers.duration,
}


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
    valid = buffers.booleans(column.is_valid())
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
    bounds = buffers.elements(offsets, "i4")
    return fixed(np.diff(bounds), ">i4"), _grouped(pieces, len(elements), bounds)


def _vector(column: pa.Array, tree: CqlType) -> tuple[Segment, ...]:
    """Encode the elements without lengths, as they are of one width; `check` has counted them."""
    offsets, elements = unnest(column)
    pieces = values(elements, tree.parts[0]).segments
    return (_grouped(pieces, len(elements), buffers.elements(offsets, "i4")),)


def _grouped(pieces: Iterable[Segment], elements: int, bounds: Array) -> Varying:
    data, offsets = varying(joined(pieces, elements), elements)
    return Varying(data, offsets[bounds])


def _flat(columns: Iterable[tuple[Segment, ...]]) -> tuple[Segment, ...]:
    return tuple(segment for segments in columns for segment in segments)


_PART_BYTES = 65_535
"""Most bytes of a part of a routing key: its length has two bytes."""
_TTL_BYTES = 4


class Encoded(NamedTuple):
    """The rows of a batch as bytes."""

    data: pa.Buffer
    """The rows, one after the other."""
    offsets: Array
    """int64, one more than there are rows: row i is `data[offsets[i]:offsets[i + 1]]`."""


def encode(
    batch: pa.RecordBatch,
    plan: CassandraPlan,
    stamps: Array | int | None,
    head: bytes = b"",
    *,
    stamp_first: bool = False,
    ttls: Array | None = None,
    cleared: bool = False,
) -> Encoded:
    """Encode a batch that `check` returned, or some of its columns.

    Each row is `head`, the plan's columns and its write timestamp, each of these with its length in
    four bytes before it, as in a request's `<n><value_1>...<value_n>`, without the number.

    :param stamps: write timestamps, microseconds since 1970, int64; or only that of row 0, if that
        of row i is greater by i. None: the statement does not take them.
    :param head: bytes that stand before each row.
    :param stamp_first: whether the timestamp stands before the columns.
    :param ttls: seconds to live, which stand behind the timestamp; None: nothing does.
    :param cleared: whether every value beside the key is written as null; the elements of a changed
        collection are not: the plan has them taken out.
    """
    rows = batch.num_rows
    changes = plan.details.changes
    other = UNSET if plan.details.nulls == "unset" else NULL
    segments: list[Segment] = [constant(head)] if head else []
    columns: list[Segment] = []
    for of, tree, column in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        absent = UNSET if of.name in changes else other
        if cleared and of.role not in ("partition", "clustering") and of.name not in changes:
            columns.append(_as_null(column, absent))
        else:
            columns += prefixed(column, tree, absent)
    if isinstance(stamps, int):
        stamps = np.arange(stamps, stamps + rows, dtype=np.int64)
    stamped: list[Segment] = []
    if stamps is not None:
        stamped += [fixed(stamps.itemsize, ">i4"), fixed(stamps, ">i8")]
    if ttls is not None:
        stamped += [fixed(_TTL_BYTES, ">i4"), fixed(ttls, ">i4")]
    segments += [*stamped, *columns] if stamp_first else [*columns, *stamped]
    data, offsets = varying(joined(segments, rows), rows)
    return Encoded(data, offsets.astype(np.int64, copy=False))


def _as_null(column: pa.Array, absent: int) -> Segment:
    if not column.null_count:
        return fixed(NULL, ">i4")
    return fixed(np.where(buffers.booleans(column.is_valid()), NULL, absent), ">i4")


def one_after_the_other(parts: Sequence[Encoded]) -> Encoded:
    """Put the rows of several batches into one buffer.

    :param parts: at least one; for a single one nothing is copied.
    """
    if len(parts) == 1:
        return parts[0]
    data, offsets = buffers.texts(pa.concat_arrays([buffers.binaries(*part) for part in parts]))
    return Encoded(data, offsets)


def taken(encoded: Encoded, order: Array) -> Encoded:
    """Put rows in another order; each keeps its timestamp.

    :param order: the positions of the rows.
    """
    data, offsets = buffers.texts(buffers.binaries(*encoded).take(buffers.indices(order)))
    return Encoded(data, offsets)


def routing_keys(batch: pa.RecordBatch, plan: CassandraPlan, indexes: Sequence[int]) -> pa.Array:
    """Return the routing key of each row, which the driver hashes to find its replicas.

    They are binaries, large ones above 2 GiB, none of them null.

    The key is the value of one column; or, for each of several columns, the length in two bytes, the value
    and a zero, as in `org.apache.cassandra.db.marshal.CompositeType` and the driver's
    `BoundStatement.routing_key`.

    :param indexes: which of the plan's columns are the partition key, in the table's order, which the
        plan does not know: `PreparedStatement.routing_key_indexes`.
    :raises ValueError: a part is null, or too long; `check` refuses such rows.
    """
    trees = column_types(plan)
    parts: list[Segment] = []
    for index in indexes:
        segments, valid = values(batch.column(index), trees[index])
        if valid is not None:
            raise ValueError(f"Column {plan.columns[index].name} of the partition key is null")
        if len(indexes) > 1:
            segments = (_part_length(segments), *segments, constant(b"\0"))
        parts += segments
    return piece_binaries(varying(joined(parts, batch.num_rows), batch.num_rows))


def _part_length(segments: tuple[Segment, ...]) -> Segment:
    widths = lengths(segments)
    if widths.max(initial=0) > _PART_BYTES:
        raise ValueError(f"A part of the partition key has more than {_PART_BYTES} bytes")
    return fixed(widths, ">u2")


_LENGTH = struct.Struct(">i")


class Keys(NamedTuple):
    """The keys of a batch's rows, each once."""

    numbers: Array
    """Of each row the number of its key, int64; counted from 0 in the order in which keys come."""
    distinct: pa.Array
    """The bytes of each key: its values, each with its length in four bytes before it."""

    def values(self) -> Iterator[list[bytes]]:
        """Yield the values of each key, in the order of the plan's columns."""
        for key in self.distinct.to_pylist():
            at, values = 0, []
            while at < len(key):
                (length,) = _LENGTH.unpack_from(key, at)
                at += _LENGTH.size + length
                values.append(key[at - length : at])
            yield values


def distinct_keys(
    batch: pa.RecordBatch,
    table: CassandraPlan,
    *before: Segment,
    roles: Collection[str] = ("partition", "clustering"),
) -> Keys:
    """Return the keys of rows that `check` returned.

    :param table: the plan's columns that the table has.
    :param before: further parts of each key, without a length; `values` cannot be asked then.
    :param roles: of the columns of the key.
    """
    pieces = [*before]
    for column, tree in zip(table.columns, column_types(table), strict=True):
        if column.role in roles:
            pieces += prefixed(batch.column(column.name), tree)
    rows = batch.num_rows
    found = piece_binaries(varying(joined(pieces, rows), rows)).dictionary_encode()
    numbers = buffers.elements(found.indices.cast(pa.int64()), "i8")
    return Keys(numbers, found.dictionary)
