"""Makes the frames of requests from encoded rows, several frames in one buffer.

The driver would encode a BATCH message row by row, from one Python tuple for each row. Here a request gets
rows that are already encoded. The bytes before and after the rows are the same in all batches of a keyspace.
They are copied from a frame that the driver makes of a batch without rows.
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
"""The meaning of negative lengths: -1 is a null, and -2 an unset value (native protocol, section 3)."""
_BEFORE_ROWS = 3
"""The bytes of a BATCH body before its statements: one byte for the type, two for their number."""


class EncodedBatch(msgspec.Struct, gc=False):
    """A request: an unlogged batch of encoded rows (native protocol, section 4.1.7)."""

    number: int
    """The number of rows, at most 65,535."""
    data: bytes
    """The rows, one after the other. These bytes are a copy, because a view would keep all rows of the buffer
    in memory."""
    statements: Any
    """The `Statements` of the rows' plan."""
    node: Any = None
    """The driver's host that is the first replica of all rows; None for any node."""

    def __len__(self) -> int:
        return self.number

    def halves(self) -> list[EncodedBatch]:
        """Return two batches, each with half of the rows; an empty list for a single row."""
        data, middle = self.data, self.number // 2
        if not middle:
            return []
        cut = 0
        for _ in range(middle):
            _, _, cut = _statement(data, cut)
        halves = (middle, data[:cut]), (self.number - middle, data[cut:])
        return [msgspec.structs.replace(self, number=number, data=half) for number, half in halves]

    def rows(self) -> Iterator[tuple[bytes, list[Any]]]:
        """Yield the statement's id and the values of each row. A value is bytes, None or `UNSET_VALUE`."""
        data, at = self.data, 0
        while at < len(data):
            query_id, values, at = _statement(data, at)
            yield query_id, values


def _statement(data: bytes, at: int) -> tuple[bytes, list[Any], int]:
    """Return the id, the values and the end of the statement that begins at position `at`."""
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
    """Return the bytes before a row's values in a batch (native protocol, section 4.1.7).

    :param query_id: the id of the prepared statement.
    :param values: the number of values.
    """
    return _PREPARED + _SHORT.pack(len(query_id)) + query_id + _SHORT.pack(values)


_BEGIN = struct.Struct(">BBhBicH")
"""The header of a frame, then the type of the batch and the number of its statements."""
_BATCH = 0x0D


class Envelope(NamedTuple):
    """The parts of a frame that all batches of a keyspace have in common."""

    version: int
    flags: int
    kind: bytes
    after: bytes
    """The bytes after the rows: consistency levels, keyspace, and a default timestamp that no row uses."""

    def frames(self, requests: Sequence[EncodedBatch], streams: Sequence[int]) -> bytes:
        """Return the frames of requests as one block of bytes.

        :param streams: the stream id of each request.
        """
        version, flags, kind, after = self
        begin, beside = _BEGIN.pack, _BEFORE_ROWS + len(after)
        pieces: list[bytes] = []
        for request, stream in zip(requests, streams, strict=True):
            data = request.data
            size = beside + len(data)
            head = begin(version, flags, stream, _BATCH, size, kind, request.number)
            pieces += head, data, after
        return b"".join(pieces)


def envelope(session: Any, profile: Any, keyspace: str) -> Envelope:
    """Let the driver encode a batch without rows, and return the parts of its frame.

    :param session: the driver's session.
    :param profile: the name of an execution profile, which has the consistency levels.
    """
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.keyspace = keyspace
    # The driver starts no timer for a future without timeout.
    message = session._create_response_future(
        batch, None, False, None, timeout=None, execution_profile=profile
    ).message
    cluster = session.cluster
    version, beta = cluster.protocol_version, cluster.allow_beta_protocol_version
    frame: bytes = ProtocolHandler.encode_message(message, 0, version, None, beta)
    _, flags, *_ = HEADER.unpack_from(frame)
    body = frame[HEADER.size :]
    return Envelope(version, flags, body[:1], body[_BEFORE_ROWS:])
