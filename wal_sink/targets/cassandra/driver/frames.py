"""Requests of rows that are encoded already, and the frames of many of them in one buffer.

The driver encodes a BATCH message row by row, from one Python tuple per row. `encode` encodes the rows of a
whole slice at once, and a request takes its part of those bytes. What the driver writes around the rows of a
batch is the same for all batches of a keyspace, so it is taken once from its frame of a batch without rows. A
group of requests is then joined from its parts by one call, which is the only copy of the rows on their way
into the driver's segment. Those frames are all that is kept while the requests are in flight: the rows are
part of a slice, of which one late answer would keep megabytes in memory.
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
"""Values by their lengths (native protocol, section 3)."""
_BEFORE_ROWS = 3
"""Bytes of a BATCH body before its statements: one for its type, two for their number."""


class EncodedBatch(msgspec.Struct, gc=False):
    """An unlogged batch of rows that are encoded already (native protocol, section 4.1.7), idempotent.

    It is made for each request, and nearly always pipelined. A statement of the driver takes longer to make
    than the whole request to send; `statements.bound` returns one.
    """

    number: int
    """Of the rows, at most 65,535: it is a [short]."""
    data: bytes | memoryview
    """The statement of each row, one after the other."""
    statements: Any
    """The `Statements` of the plan by which the rows are written."""
    node: Any = None
    """The driver's host that is the first replica of each row; None: any will do, or it is not known."""

    def __len__(self) -> int:
        return self.number

    def halves(self) -> list[EncodedBatch]:
        """Return two batches with half of the rows each; none for a single row."""
        data, middle = bytes(self.data), self.number // 2
        if not middle:
            return []
        cut = 0
        for _ in range(middle):
            _, _, cut = _statement(data, cut)
        halves = (middle, data[:cut]), (self.number - middle, data[cut:])
        return [msgspec.structs.replace(self, number=number, data=half) for number, half in halves]

    def rows(self) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield for each row the id of its statement, and its values: bytes, None, or `UNSET_VALUE`."""
        data, at = bytes(self.data), 0
        while at < len(data):
            query_id, values, at = _statement(data, at)
            yield query_id, values


def _statement(data: bytes, at: int) -> tuple[bytes, list[Any], int]:
    """Return the id and the values of the statement that begins at `at`, and where it ends."""
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
    """Return what stands before the values of a prepared statement in a batch.

    Kind 1, the id as [short bytes], the number of values as a [short] (native protocol, 4.1.7).
    """
    return _PREPARED + _SHORT.pack(len(query_id)) + query_id + _SHORT.pack(values)


_BEGIN = struct.Struct(">BBhBicH")
"""The header of a frame, and how the body of a BATCH begins: its type, and the number of its statements."""
_BATCH = 0x0D


class Envelope(NamedTuple):
    """What the driver writes around the rows of a batch: the same for all batches of a keyspace."""

    version: int
    flags: int
    kind: bytes
    after: bytes
    """The consistency levels, the keyspace, and a timestamp that no row takes: each has its own."""

    def frames(self, requests: Sequence[EncodedBatch], streams: Sequence[int]) -> Frames:
        """Return the frames of requests, of which there is at least one, in their order."""
        version, flags, kind, after = self
        begin, beside = _BEGIN.pack, _BEFORE_ROWS + len(after)
        pieces: list[bytes | memoryview] = []
        for request, stream in zip(requests, streams, strict=True):
            data = request.data
            size = beside + len(data)
            pieces += (
                begin(version, flags, stream, _BATCH, size, kind, request.number),
                data,
                after,
            )
        return Frames(self, b"".join(pieces), requests[0].statements, requests[0].node)


class Frames(NamedTuple):
    """The frames of requests for one node, one after the other."""

    around: Envelope
    data: bytes
    statements: Any
    node: Any

    def request(self, place: int) -> EncodedBatch:
        """Return a request, with bytes of its own."""
        for number, frame in enumerate(self._split()):
            if number == place:
                rows = frame[_BEGIN.size : len(frame) - len(self.around.after)]
                *_, count = _BEGIN.unpack_from(frame)
                return EncodedBatch(count, rows, self.statements, self.node)
        raise IndexError(place)

    def _split(self) -> Iterator[bytes]:
        at = 0
        while at < len(self.data):
            *_, length = HEADER.unpack_from(self.data, at)
            end = at + HEADER.size + length
            yield self.data[at:end]
            at = end


def envelope(session: Any, profile: Any, keyspace: str) -> Envelope:
    """Return what the driver writes around the rows of a batch.

    :param session: the driver's.
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
