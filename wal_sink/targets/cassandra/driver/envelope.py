"""Lays the frames of many requests into one buffer, and finds a request in it again.

What the driver writes around the rows of a batch is the same for all batches of a keyspace, so it is taken
once from a frame that the driver has made. A group of requests is then joined from its parts by one call,
which is the only copy of the rows on their way into the driver's segment. Those frames are all that is kept
while the requests are in flight: the rows are part of a slice, of which one late answer would keep megabytes
in memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from cassandra import ProtocolVersion

from wal_sink.targets.cassandra.driver.frames import (
    BEFORE_ROWS,
    EncodedBatch,
    EncodedRows,
    EncodedRowsHandler,
)

_HEADER = struct.Struct(">BBhBi")
"""Version, flags, stream, opcode, length of the body (native protocol, section 2)."""
_BEGIN = struct.Struct(">BBhBicH")
"""The same, and how the body of a BATCH begins: its type, and the number of its statements."""
_COMPRESSED = 0x01
_BATCH = 0x0D

Compress = Callable[[bytes], bytes]


class Envelope(NamedTuple):
    """What the driver writes around the rows of a batch: the same for all batches of a keyspace."""

    version: int
    flags: int
    compresses: bool
    """Whether each frame is compressed by itself: later versions of the protocol compress segments."""
    kind: bytes
    after: bytes
    """The consistency levels, the keyspace, and a timestamp that no row takes: each has its own."""

    def frames(self, requests: Sequence[EncodedBatch], streams: Sequence[int]) -> Frames:
        """Return the frames of requests, of which there is at least one, in their order."""
        version, flags, _, kind, after = self
        begin, beside = _BEGIN.pack, BEFORE_ROWS + len(after)
        pieces: list[bytes | memoryview] = []
        for request, stream in zip(requests, streams, strict=True):
            rows = request.rows
            data = rows.data
            size = beside + len(data)
            pieces += (begin(version, flags, stream, _BATCH, size, kind, rows.number), data, after)
        keys = [request.routing_key for request in requests]
        return Frames(self, b"".join(pieces), keys, requests[0].keyspace, requests[0].node)


class Frames:
    """The frames of requests for one node, one after the other.

    :param keys: the routing key of each.
    """

    def __init__(
        self, around: Envelope, data: bytes, keys: Sequence[bytes], keyspace: str, node: Any
    ) -> None:
        self._around = around
        self._data = data
        self._keys = keys
        self._keyspace = keyspace
        self._node = node

    def on_wire(self, compress: Compress | None) -> bytes:
        """Return what is pushed.

        :param compress: of the connection; None: it compresses nothing.
        """
        if compress is None or not self._around.compresses:
            return self._data
        return b"".join(_compressed(frame, compress) for frame in self._each())

    def request(self, place: int) -> EncodedBatch:
        """Return a request, with bytes of its own."""
        for number, frame in enumerate(self._each()):
            if number == place:
                rows = frame[_BEGIN.size : len(frame) - len(self._around.after)]
                *_, count = _BEGIN.unpack_from(frame)
                own = EncodedRows(count, rows)
                return EncodedBatch(own, self._keyspace, self._keys[place], self._node)
        raise IndexError(place)

    def _each(self) -> Iterator[bytes]:
        at = 0
        while at < len(self._data):
            *_, length = _HEADER.unpack_from(self._data, at)
            end = at + _HEADER.size + length
            yield self._data[at:end]
            at = end


def _compressed(frame: bytes, compress: Compress) -> bytes:
    version, flags, stream, opcode, _ = _HEADER.unpack_from(frame)
    body = compress(frame[_HEADER.size :])
    return _HEADER.pack(version, flags | _COMPRESSED, stream, opcode, len(body)) + body


def envelope(sent: Any, rows: EncodedRows, cluster: Any) -> Envelope:
    """Return what is around the rows of a message that `frames.message` has returned.

    :param rows: of the request that the message is of.
    :param cluster: the driver's.
    """
    version = cluster.protocol_version
    frame = EncodedRowsHandler.encode_message(
        sent, 0, version, None, cluster.allow_beta_protocol_version
    )
    _, flags, _, _, _ = _HEADER.unpack_from(frame)
    body = frame[_HEADER.size :]
    return Envelope(
        version,
        flags,
        not ProtocolVersion.has_checksumming_support(version),
        body[:1],
        body[BEFORE_ROWS + len(rows.data) :],
    )
