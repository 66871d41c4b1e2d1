"""Encodes rows as values of the native protocol, by numpy and without a Python object for each row.

The functions encode column by column. A column becomes arrays of **pieces**: byte strings, one for each row
in each array. `joined` then concatenates the pieces of each row, and all rows are one after the other in one
buffer. Tuples, user-defined types and entries of maps are joined in the same way.

Python encodes only values that numpy cannot encode, such as addresses, each distinct value once.

The formats are in section 6 of https://github.com/apache/cassandra/blob/trunk/doc/native_protocol_v5.spec,
and are the same in version 4.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cassandra.cqltypes import DecimalType
from cassandra.marshal import varint_pack, vints_pack

from wal_sink.targets.arrow_values import blob, null
from wal_sink.targets.cassandra.arrow_buffers import (
    Array,
    binaries,
    booleans,
    elements,
    flags,
    indices,
    texts,
    unnest,
)
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan
from wal_sink.targets.cassandra.types import CqlType, column_types
from wal_sink.targets.cdc import flag_name

ENCODED_BYTES = 64 * 1024 * 1024
"""The most bytes that are encoded together. The flusher needs several times as much memory. The longest row,
`check.MAX_ROW_BYTES`, is shorter, even if its user-defined types have several times as many fields now."""


class Fixed(NamedTuple):
    """Encoded parts of the rows, one for each row, all of the same width."""

    values: Array
    """One value for each row. An array without dimensions is one value for all rows."""
    wire: np.dtype[np.generic]
    """The numpy type of the encoded value: a big-endian number, or bytes such as `V16`."""


class Varying(NamedTuple):
    """Encoded parts of the rows, one for each row, whose widths may differ."""

    data: pa.Buffer
    offsets: Array
    """The position in `data` at which each row's part begins, then the end of the last part."""


Pieces = Fixed | Varying


def fixed(values: Array | int, wire: str) -> Fixed:
    """Return numbers as pieces, encoded as the numpy type `wire`, such as ">i4"."""
    return Fixed(np.asarray(values), np.dtype(wire))


def constant(value: bytes) -> Fixed:
    """Return pieces with the same bytes in every row.

    :param value: one byte or more.
    """
    whole = np.frombuffer(value, f"V{len(value)}")
    return Fixed(whole.reshape(()), whole.dtype)


def lengths(columns: Iterable[Pieces]) -> Array:
    """Return the number of bytes of each row; an array without dimensions if all rows have the same."""
    total = np.asarray(0)
    for part in columns:
        total = total + (part.wire.itemsize if isinstance(part, Fixed) else np.diff(part.offsets))
    return total


def joined(columns: Iterable[Pieces], rows: int) -> Pieces:
    """Concatenate the pieces of each row.

    :param columns: one array of pieces or more.
    :raises OverflowError: the pieces have more than `ENCODED_BYTES`. Nothing was copied.
    """
    columns = list(columns)
    if sum(_size(pieces, rows) for pieces in columns) > ENCODED_BYTES:
        raise OverflowError(f"{rows} rows or elements are too long to be encoded together")
    # The cost of Arrow's join grows with the number of arrays. So numpy first merges adjacent pieces of fixed
    # width into one array.
    merged: list[Pieces] = []
    for run in [[*run] for _, run in itertools.groupby(columns, type)]:
        neighbours = [pieces for pieces in run if isinstance(pieces, Fixed)]
        merged += [_merged(neighbours, rows)] if neighbours else run
    if len(merged) == 1:
        return merged[0]
    arrays = [binaries(*varying(pieces, rows)) for pieces in merged]
    return Varying(*texts(pc.binary_join_element_wise(*arrays, blob(b""))))


def _size(pieces: Pieces, rows: int) -> int:
    if isinstance(pieces, Fixed):
        return rows * pieces.wire.itemsize
    return int(pieces.offsets[-1] - pieces.offsets[0])


def _merged(run: list[Fixed], rows: int) -> Fixed:
    together = np.dtype([(str(i), pieces.wire) for i, pieces in enumerate(run)])
    merged = np.empty(rows, together)
    for i, pieces in enumerate(run):
        merged[str(i)] = pieces.values
    whole = np.dtype(f"V{together.itemsize}")
    return Fixed(merged.view(whole), whole)


def varying(pieces: Pieces, rows: int) -> Varying:
    """Convert the encoded values of a column to bytes with offsets.

    :param rows: the number of rows. If `pieces` has one value for all rows, the value is repeated for each
        row.
    """
    if isinstance(pieces, Varying):
        return pieces
    whole = np.ascontiguousarray(np.broadcast_to(pieces.values, rows), pieces.wire)
    offsets = np.arange(rows + 1, dtype=np.int64) * pieces.wire.itemsize
    return Varying(pa.py_buffer(whole), offsets)


def emptied(pieces: Pieces, valid: Array) -> Varying:
    """Replace the pieces of invalid rows by empty pieces.

    :param valid: one boolean for each row.
    """
    if isinstance(pieces, Fixed):
        pieces = Fixed(np.broadcast_to(pieces.values, len(valid))[valid], pieces.wire)
        kept = varying(pieces, len(pieces.values)).data
        return Varying(kept, ends(valid * np.int64(pieces.wire.itemsize)))
    widths = np.diff(pieces.offsets)
    if not widths[~valid].any():
        return pieces
    kept, _ = texts(binaries(*pieces).take(indices(np.flatnonzero(valid))))
    return Varying(kept, ends(np.where(valid, widths, 0)))


def tails(block: Array, widths: Array) -> Varying:
    """Return the last bytes of each row of a matrix as pieces.

    :param block: a matrix of uint8.
    :param widths: the number of bytes to keep of each row, one or more.
    """
    most = int(widths.max(initial=1))
    block = block[:, block.shape[1] - most :]
    kept = block[np.arange(most) >= most - widths[:, None]]
    return Varying(pa.py_buffer(kept), ends(widths))


def ends(widths: Array) -> Array:
    """Return the offsets of adjacent pieces from the widths of the pieces."""
    offsets = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(widths, out=offsets[1:])
    return offsets


def distinct(column: pa.Array, encode: Callable[[Any], bytes]) -> tuple[Pieces, ...]:
    """Encode a column by a function, each distinct value once. The pieces of nulls are arbitrary."""
    encoded = column.dictionary_encode()
    values = [encode(value) for value in encoded.dictionary.to_pylist()]
    widths = np.fromiter(map(len, values), np.int32, len(values))
    encoded_values = binaries(pa.py_buffer(b"".join(values)), ends(widths))
    return (Varying(*texts(encoded_values.take(encoded.indices))),)


_BYTES = np.array([2 ** (8 * n - 1) for n in range(1, 9)], np.uint64)
"""At index i is the smallest number that needs more than i + 1 bytes in two's complement."""


def varint(column: pa.Array) -> tuple[Pieces, ...]:
    """Encode whole numbers as `varint`: two's complement in the fewest bytes, the highest byte first."""
    if pa.types.is_string(column.type):
        return distinct(column, lambda text: varint_pack(int(text)))
    width = column.type.bit_width // 8
    words = elements(column, f"V{width}").view("<u8").reshape(-1, width // 8)
    highest_first = words[:, ::-1].astype(">u8").view(np.uint8)
    return (tails(highest_first, _widths(words)),)


def _widths(words: Array) -> Array:
    """Return the number of bytes that each number needs in two's complement.

    :param words: a row for each number, with its words of 64 bits, the lowest first.
    """
    sign = (words[:, -1].view(np.int64) >> 63).view(np.uint64)
    widths = np.ones(len(words), np.int64)
    for i in range(words.shape[1]):
        word = words[:, i] ^ sign
        width = 8 * i + 1 + np.searchsorted(_BYTES, word, side="right")
        widths = np.where(word > 0, width, widths)
    return widths


def decimal(column: pa.Array) -> tuple[Pieces, ...]:
    """Encode numbers as `decimal`: the scale in four bytes, then the unscaled number as `varint`."""
    if pa.types.is_string(column.type):
        return distinct(column, lambda text: DecimalType.serialize(Decimal(text), None))
    return fixed(column.type.scale, ">i4"), *varint(column)


def duration(column: pa.Array) -> tuple[Pieces, ...]:
    """Encode nanoseconds as `duration`, which has months and days, too."""
    return distinct(column, lambda nanoseconds: vints_pack([0, 0, nanoseconds]))


Kernel = Callable[[pa.Array], tuple[Pieces, ...]]
"""Encodes a column. The pieces of nulls are arbitrary, and the caller removes them."""

_MAPPED = bytes(10) + b"\xff\xff"
"""The first 12 bytes of an IPv6 address that is mapped from an IPv4 address. The IPv4 address follows."""


def _raw(column: pa.Array) -> tuple[Pieces, ...]:
    return (Varying(*texts(column)),)


def _number(width: int) -> Kernel:
    """Return a kernel for integers and floats. A NaN keeps its bits.

    :param width: the bytes of a number.
    """

    def kernel(column: pa.Array) -> tuple[Pieces, ...]:
        return (fixed(elements(column, f"u{width}"), f">u{width}"),)

    return kernel


def _boolean(column: pa.Array) -> tuple[Pieces, ...]:
    return (fixed(booleans(column), "?"),)


def _date(column: pa.Array) -> tuple[Pieces, ...]:
    # Day 2^31 is 1970-01-01, so the sign bit is flipped.
    return (fixed(elements(column, "u4") ^ np.uint32(2**31), ">u4"),)


def _uuid(column: pa.Array) -> tuple[Pieces, ...]:
    return (fixed(elements(column, "V16"), "V16"),)


def _inet(column: pa.Array) -> tuple[Pieces, ...]:
    return distinct(column, _packed)


def _packed(text: str) -> bytes:
    """Return the 4 or 16 bytes of an address. The mapped address ::ffff:192.0.2.1 becomes 192.0.2.1."""
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
    "varint": varint,
    "decimal": decimal,
    "duration": duration,
}


NULL = -1
"""The length of a null."""
UNSET = -2
"""The length of an unset value, which does not change a cell. Values inside other values cannot be unset."""


def values(column: pa.Array, tree: CqlType) -> tuple[tuple[Pieces, ...], Array | None]:
    """Encode a column that `cast_column` has returned, without lengths before the values.

    Return the pieces, and one boolean for each row: False for a null, whose pieces are empty. If there are no
    nulls, return None instead of the booleans.
    """
    if column.type == pa.null():
        return (), np.zeros(len(column), np.bool_)
    pieces = _pieces(column, tree)
    if not column.null_count:
        return pieces, None
    valid = booleans(column.is_valid())
    return (emptied(joined(pieces, len(column)), valid),), valid


def prefixed(column: pa.Array, tree: CqlType, absent: int | Array = NULL) -> tuple[Pieces, ...]:
    """Encode a column, with the length before each value.

    :param absent: the length of nulls, `NULL` or `UNSET`: one number for all rows, or one for each row.
    """
    if column.type == pa.null():
        return (fixed(absent, ">i4"),)
    pieces, valid = values(column, tree)
    widths = lengths(pieces)
    return fixed(widths if valid is None else np.where(valid, widths, absent), ">i4"), *pieces


def _pieces(column: pa.Array, tree: CqlType) -> tuple[Pieces, ...]:
    if tree.kind in SCALARS:
        return SCALARS[tree.kind](column)
    if tree.kind in ("tuple", "udt"):
        return _fields(column.flatten(), tree)
    if tree.kind == "vector":
        return _vector(column, tree)
    return _collection(column, tree)


def _fields(columns: list[pa.Array], tree: CqlType) -> tuple[Pieces, ...]:
    """Encode the fields of structs. Fields that were added to the type after the plan was made are null."""
    known, later = tree.parts[: len(columns)], tree.parts[len(columns) :]
    fields = [prefixed(column, part) for column, part in zip(columns, known, strict=True)]
    return *_flat(fields), *(fixed(NULL, ">i4") for _ in later)


def _collection(column: pa.Array, tree: CqlType) -> tuple[Pieces, ...]:
    offsets, inner = unnest(column)
    parts = inner.flatten() if tree.kind == "map" else [inner]
    columns = zip(parts, tree.parts, strict=True)
    pieces = _flat(prefixed(column, part) for column, part in columns)
    bounds = elements(offsets, "i4")
    return fixed(np.diff(bounds), ">i4"), _grouped(pieces, len(inner), bounds)


def _vector(column: pa.Array, tree: CqlType) -> tuple[Pieces, ...]:
    """Encode the elements of vectors, which have no lengths. `check` has counted the elements."""
    offsets, inner = unnest(column)
    pieces, _ = values(inner, tree.parts[0])
    return (_grouped(pieces, len(inner), elements(offsets, "i4")),)


def _grouped(pieces: Iterable[Pieces], elements: int, bounds: Array) -> Varying:
    data, offsets = varying(joined(pieces, elements), elements)
    return Varying(data, offsets[bounds])


def _flat(columns: Iterable[tuple[Pieces, ...]]) -> tuple[Pieces, ...]:
    return tuple(itertools.chain.from_iterable(columns))


_PART_BYTES = 65_535
"""The most bytes of a part of a routing key. The length of a part has two bytes."""
_TIMESTAMP_BYTES = 8
_TTL_BYTES = 4


def encode(
    batch: pa.RecordBatch,
    plan: CassandraPlan,
    timestamps_us: Array,
    head: bytes = b"",
    *,
    timestamp_first: bool = False,
    ttls: Array | None = None,
) -> Varying:
    """Encode rows for a statement: `head`, then the plan's columns, the write timestamp, and the TTL.

    Each value has its length before it, in four bytes.

    :param batch: the plan's columns as `check` has returned them, then flags of unavailable cells.
    :param plan: the plan with the columns of the statement.
    :param timestamps_us: write timestamps, microseconds since 1970, int64.
    :param timestamp_first: True to put timestamp and TTL before the columns.
    :param ttls: the seconds until each row expires; None if the statement has no TTL. A row with 0 or less
        has expired, and its values become nulls with a TTL of one second.
    """
    rows = batch.num_rows
    absent = UNSET if plan.details.nulls == "unset" else NULL
    expired = None if ttls is None or ttls.min(initial=1) > 0 else ttls < 1
    pieces: list[Pieces] = [constant(head)] if head else []
    columns: list[Pieces] = []
    for planned, tree, column in zip(plan.columns, column_types(plan), batch.columns, strict=False):
        flag = batch.schema.get_field_index(flag_name(planned.name))
        length = absent if flag < 0 else np.where(booleans(batch.column(flag)), UNSET, absent)
        if expired is not None and planned.role not in KEY:
            column, length = _without_expired(column, length, expired)  # noqa: PLW2901
        columns += prefixed(column, tree, length)
    using: list[Pieces] = [fixed(_TIMESTAMP_BYTES, ">i4"), fixed(timestamps_us, ">i8")]
    if ttls is not None:
        using += [fixed(_TTL_BYTES, ">i4"), fixed(np.maximum(ttls, 1), ">i4")]
    pieces += [*using, *columns] if timestamp_first else [*columns, *using]
    return varying(joined(pieces, rows), rows)


def _without_expired(
    column: pa.Array, absent: int | Array, expired: Array
) -> tuple[pa.Array, Array]:
    """Replace the values of expired rows by nulls, which delete the cells.

    :param absent: the length that encodes a null of the column, `NULL` or `UNSET`, as in `prefixed`.
    :returns: the column; and for each row the length that encodes its null, `NULL` if the row expired.
    """
    lengths_of_nulls = np.where(expired & booleans(column.is_valid()), NULL, absent)
    return pc.if_else(flags(~expired), column, null(column.type)), lengths_of_nulls


def concatenated_rows(parts: Sequence[Varying]) -> Varying:
    """Concatenate the rows of batches.

    :param parts: one batch or more.
    """
    return Varying(*texts(pa.concat_arrays([binaries(*part) for part in parts])))


def reordered(encoded: Varying, order: Array) -> Varying:
    """Return rows in another order.

    :param order: for each row of the result, its present position.
    """
    return Varying(*texts(binaries(*encoded).take(indices(order))))


def routing_keys(batch: pa.RecordBatch, plan: CassandraPlan, indexes: Sequence[int]) -> pa.Array:
    """Return the routing key of each row: the encoded partition key, which decides the row's replicas.

    If the partition key has one column, the routing key is its value. If it has several, the routing key has
    for each column the length in two bytes, the value and a zero byte (`BoundStatement.routing_key` of the
    driver).

    :param indexes: the positions in the plan of the partition key's columns, in the order of the table.
    :raises ValueError: a part is null or too long. `check` refuses such rows.
    """
    trees = column_types(plan)
    parts: list[Pieces] = []
    for index in indexes:
        pieces, valid = values(batch.column(index), trees[index])
        if valid is not None:
            raise ValueError(f"Column {plan.columns[index].name} of the partition key is null")
        if len(indexes) > 1:
            pieces = (_part_length(pieces), *pieces, constant(b"\0"))
        parts += pieces
    return binaries(*varying(joined(parts, batch.num_rows), batch.num_rows))


def _part_length(pieces: tuple[Pieces, ...]) -> Pieces:
    widths = lengths(pieces)
    if widths.max(initial=0) > _PART_BYTES:
        raise ValueError(f"A part of the partition key has more than {_PART_BYTES} bytes")
    return fixed(widths, ">u2")
