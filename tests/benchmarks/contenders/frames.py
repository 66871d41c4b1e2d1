"""Writes as frames of Cassandra's native protocol, version 4, made ahead of time: for `raw` alone.

The layout is that of native_protocol_v4.spec in Cassandra's source: section 2 the header, 4.1.6 EXECUTE,
4.1.7 BATCH.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

STREAMS = 32_768
"""Stream ids of a connection: the most requests in flight."""

_HEADER = struct.Struct(">BBhBi")
_VERSION, _EXECUTE, _BATCH = 4, 0x0A, 0x0D
_UNLOGGED, _PREPARED = 1, 1
_LOCAL_QUORUM = 6
_WITH_VALUES = 1


def frame(opcode: int, body: bytes, stream: int = 0) -> bytes:
    """Return a whole frame."""
    return _HEADER.pack(_VERSION, 0, stream, opcode, len(body)) + body


def writes(
    rows: pa.Table, prepared: bytes, first_us: int, per_batch: int, *, by_partition: bool
) -> list[bytes]:
    """Return requests that write all rows.

    :param rows: with the partition key in column `device`.
    :param prepared: id of the statement whose marks are the columns and then the timestamp.
    :param first_us: write timestamp of row 0; row i has `first_us + i`.
    :param per_batch: rows of a batch at most; 1 for plain statements.
    :param by_partition: whether rows are sorted by partition, and batches hold rows of one only.
    """
    if by_partition:
        rows = rows.sort_by("device")
    short_id = struct.pack(">H", len(prepared)) + prepared
    plain = per_batch == 1
    head = b"" if plain else struct.pack(">B", _PREPARED) + short_id
    blobs = _blobs(rows, first_us, head)
    offsets = np.frombuffer(blobs.buffers()[1], np.int64).tolist()
    data = memoryview(blobs.buffers()[2])
    frames = []
    for number, (first, last) in enumerate(_bounds(rows, per_batch, by_partition=by_partition)):
        body = data[offsets[first] : offsets[last]]
        if plain:
            opcode, begin = _EXECUTE, short_id + struct.pack(">HB", _LOCAL_QUORUM, _WITH_VALUES)
            end = b""
        else:
            opcode, begin = _BATCH, struct.pack(">BH", _UNLOGGED, last - first)
            end = struct.pack(">HB", _LOCAL_QUORUM, 0)
        frames.append(frame(opcode, b"".join((begin, body, end)), number % STREAMS))
    return frames


def _bounds(rows: pa.Table, per_batch: int, *, by_partition: bool) -> Iterator[tuple[int, int]]:
    """Yield the first row of each batch, and the one after its last."""
    ends = [rows.num_rows]
    if by_partition:
        codes = rows["device"].combine_chunks().dictionary_encode().indices.to_numpy()
        ends = [*(np.flatnonzero(np.diff(codes)) + 1).tolist(), rows.num_rows]
    first = 0
    for end in ends:
        for begin in range(first, end, per_batch):
            yield begin, min(begin + per_batch, end)
        first = end


def _blobs(rows: pa.Table, first_us: int, head: bytes) -> pa.Array:
    """Return for each row `head`, the number of values, and each value after its length."""
    count = struct.pack(">H", rows.num_columns + 1)
    parts: list[Any] = [pa.scalar(head + count, pa.large_binary())]
    for column in rows.columns:
        parts += _value(column.combine_chunks())
    parts += _value(pa.array(first_us + np.arange(rows.num_rows)))
    nothing = pa.scalar(b"", pa.large_binary())
    return pc.binary_join_element_wise(*parts, nothing)


def _value(column: pa.Array) -> list[Any]:
    """Return lengths and values, both as bytes."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    if pa.types.is_string(column.type):
        lengths = pc.binary_length(column).to_numpy().astype(">i4")
        return [_bytes_of(lengths), column.cast(pa.binary()).cast(pa.large_binary())]
    return [
        pa.scalar(struct.pack(">i", 8), pa.large_binary()),
        _bytes_of(column.to_numpy().astype(">i8")),
    ]


def _bytes_of(numbers: np.ndarray[Any, Any]) -> pa.Array:
    kind = pa.binary(numbers.itemsize)
    fixed = pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers.tobytes())])
    return fixed.cast(pa.binary()).cast(pa.large_binary())
