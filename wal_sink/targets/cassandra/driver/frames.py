"""Requests of encoded rows, and the frames of several requests in one buffer.

The driver encodes a BATCH message row by row, from one Python tuple for each row. Here `encode` encodes the
rows of a whole slice at once, and a request is a part of these bytes. The bytes around the rows are the same
for all batches of a keyspace, so they are taken once from the driver's frame of a batch without rows.

The frames of a group are joined by one call. A request has a copy of its bytes: a view would keep the whole
slice in memory until the last answer.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from cassandra.protocol import ProtocolHandler
from cassandra.query import UNSET_VALUE, BatchStatement, BatchType

from wal_sink.targets.cassandra.driver.internals import HEADER

_SHORT = struct.Struct(">H")
_LENGTH = struct.Struct(">i")
_PREPARED = b"\x01"
_WITHOUT_BYTES = {-1: None, -2: UNSET_VALUE}
"""Values without bytes, by their lengths (native protocol, section 3)."""
_BEFORE_ROWS = 3
"""The bytes of a BATCH body before its statements: one for the type, two for the number of statements."""


class EncodedBatch(msgspec.Struct, gc=False):
    """An unlogged, idempotent batch of encoded rows (native protocol, section 4.1.7).

    Nearly all batches are pipelined. To make a statement of the driver from one takes longer than to send it:
    see `statements.driver_statement`.
    """

    number: int
    """The number of rows, at most 65,535: a [short] of the protocol."""
    data: bytes
    """The statements of the rows, one after the other."""
    statements: Any
    """The `Statements` of the plan of the rows."""
    node: Any = None
    """The driver's host that is the first replica of all rows; None if any node will do, or if it is
    unknown."""

    def __len__(self) -> int:
        return self.number

    def halves(self) -> list[EncodedBatch]:
        """Return two batches with half of the rows each; an empty list for a single row."""
        data, middle = self.data, self.number // 2
        if not middle:
            return []
        cut = 0
        for _ in range(middle):
            _, _, cut = _statement(data, cut)
        halves = (middle, data[:cut]), (self.number - middle, data[cut:])
        return [msgspec.structs.replace(self, number=number, data=half) for number, half in halves]

    def rows(self) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield for each row the id of its statement, and its values: bytes, None or `UNSET_VALUE`."""
        data, at = self.data, 0
        while at < len(data):
            query_id, values, at = _statement(data, at)
            yield query_id, values


def _statement(data: bytes, at: int) -> tuple[bytes, list[Any], int]:
    """Return id, values and end of the statement that begins at `at`."""
    at += len(_PREPARED)
    (length,) = _SHORT.unpack_from(data, at)
    at += _SHORT.size
    query_id = data[at : at + length]
    (count,) = _SHORT.unpack_from(data, at + length)
    at += length + _SHORT.size
    values: list[Any] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        values.append(data[at : at + length] if length >= 0 else _WITHOUT_BYTES[length])
        at += max(length, 0)
    return query_id, values, at


def statement_head(query_id: bytes, values: int) -> bytes:
    """Return the bytes before the values of a prepared statement in a batch.

    They are kind 1, the id as [short bytes], and the number of values as a [short] (native protocol, 4.1.7).
    """
    return _PREPARED + _SHORT.pack(len(query_id)) + query_id + _SHORT.pack(values)


_BEGIN = struct.Struct(">BBhBicH")
"""The header of a frame and the begin of a BATCH body: its type, and the number of its statements."""
_BATCH = 0x0D


class Envelope(NamedTuple):
    """The driver's bytes around the rows of a batch: the same for all batches of a keyspace."""

    version: int
    flags: int
    kind: bytes
    after: bytes
    """The consistency levels, the keyspace, and a default timestamp that no row uses."""

    def frames(self, requests: Sequence[EncodedBatch], streams: Sequence[int]) -> bytes:
        """Return the frames of requests, in their order."""
        version, flags, kind, after = self
        begin, beside = _BEGIN.pack, _BEFORE_ROWS + len(after)
        pieces: list[bytes] = []
        for request, stream in zip(requests, streams, strict=True):
            data = request.data
            size = beside + len(data)
            pieces += (
                begin(version, flags, stream, _BATCH, size, kind, request.number),
                data,
                after,
            )
        return b"".join(pieces)


def envelope(session: Any, profile: Any, keyspace: str) -> Envelope:
    """Return the driver's bytes around the rows of a batch.

    :param session: the driver's session.
    """
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.keyspace = keyspace
    # A future without timeout starts nothing.
    message = session._create_response_future(
        batch, None, False, None, timeout=None, execution_profile=profile
    ).message
    cluster = session.cluster
    version, beta = cluster.protocol_version, cluster.allow_beta_protocol_version
    frame: bytes = ProtocolHandler.encode_message(message, 0, version, None, beta)
    _, flags, *_ = HEADER.unpack_from(frame)
    body = frame[HEADER.size :]
    return Envelope(version, flags, body[:1], body[_BEFORE_ROWS:])
