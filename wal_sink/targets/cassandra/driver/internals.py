"""What the sink uses of the driver beyond its API reference; only this module and `frames` do.

These are exceptions that the driver raises, and how its connections use their sockets and streams. None of
that is promised. So it is used of those versions alone that were tested (`is_tested`): with any other one
rows are written by the public classes.

**Answers to pipelined requests** are read all at once where they say that rows are written. The driver
reads each answer by itself: it copies what has come, looks for the stream in four places, decodes a message
and calls back, in about as much time as the whole request takes otherwise. An answer to rows is nearly
always VOID, of 13 bytes, and a read brings many. So before the driver looks at what has come, a
`ReadingConnection` takes those from its beginning, for which it has to know no more than their header.

Whatever else has come is the driver's, untouched: another answer, a frame that is longer than its segment,
a checksum that is wrong, a stream of which nothing is known. Segments are decoded by its own codec.

**Requests** are written to their socket by the thread that makes them. The driver's `push` leaves them to
its own thread: three turns of its event loop for each push, and two threads that take the interpreter from
each other. A socket has room nearly always, so nothing waits for it. It is done for libev, the driver's
choice on Linux, and without TLS: the driver's thread reads meanwhile, and OpenSSL does not let two threads
use one connection at once.
"""

from __future__ import annotations

import contextlib
import functools
import io
import socket
import struct
import threading
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import cassandra
from cassandra.cluster import Cluster
from cassandra.connection import (
    ConnectionBusy,
    ConnectionException,
    ProtocolError,
    ProtocolVersionUnsupported,
)
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import (
    ConfigurationException,
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ProtocolException,
    ProtocolHandler,
    ServerError,
    SyntaxException,
)
from cassandra.segment import CrcException

from wal_sink.log_context import line_logger

log = line_logger(__name__)

TESTED = "3.30"
"""The versions of the driver in which all this was tested begin so."""


def is_tested() -> bool:
    """Whether the driver is of such a version."""
    return bool(cassandra.__version__.startswith(f"{TESTED}."))


RESULT = 0x08
_VOID = b"\x00\x00\x00\x01"
HEADER = struct.Struct(">BBhBi")
"""Version, flags, stream, opcode, length of the body (native protocol, section 2)."""
_STREAM, _AFTER_STREAM = 2, 4
"""Where the stream begins and ends in it."""
_ANSWER = 0x80
COMPRESSED = 0x01
_LONGEST = 64
"""Bytes of a body that may be VOID: compressed, it is longer than the 4 that it has."""
_CHECKSUM = 4
"""Bytes after the payload of a segment (native protocol 5, section 2.2)."""

Decompress = Callable[[bytes], bytes]


def decoded(
    version: int, types: Any, stream: int, flags: int, opcode: int, body: bytes, *how: Any
) -> Any:
    """Decode an answer to a pipelined request, for the driver: rows are written, or its own message.

    :returns: a list of the stream's id where the answer is VOID (native protocol, 4.2.5.1).
    """
    if opcode == RESULT and body == _VOID and not flags:
        return [stream]
    return ProtocolHandler.decode_message(version, types, stream, flags, opcode, body, *how)


class Acknowledged(NamedTuple):
    """What the beginning of some bytes acknowledges."""

    streams: list[int]
    end: int
    """Where the first byte is that says something else."""
    is_all: bool
    """Whether nothing follows, or only the first bytes of what has not come as a whole."""


def in_frames(frames: bytes, version: int, decompress: Decompress | None) -> Acknowledged:
    """Read frames up to the first that is not VOID.

    Those that follow such a frame nearly always differ from it in their stream only, and are not decoded.

    :param decompress: of the connection, for frames that are compressed; None: none is.
    """
    streams: list[int] = []
    at = 0
    while (size := _void_size(frames, at, version, decompress)) > 0:
        begin, rest = frames[at : at + _STREAM], frames[at + _AFTER_STREAM : at + size]
        whole = at + (len(frames) - at) // size * size
        for begins, stream, follows in _like(size).iter_unpack(frames[at:whole]):
            if follows != rest or begins != begin or stream < 0:
                break
            streams.append(stream)
            at += size
    return Acknowledged(streams, at, is_all=size == 0)


def _void_size(frames: bytes, at: int, version: int, decompress: Decompress | None) -> int:
    """Return the bytes of the VOID frame that begins at `at`; 0: it is not whole; -1: it is another."""
    if len(frames) - at < HEADER.size:
        return 0
    begin, flags, stream, opcode, length = HEADER.unpack_from(frames, at)
    body = frames[at + HEADER.size : at + HEADER.size + max(length, 0)]
    if begin != version | _ANSWER or opcode != RESULT or stream < 0 or not 0 <= length <= _LONGEST:
        return -1
    if len(body) < length:
        return 0
    if flags == COMPRESSED and decompress is not None:
        flags, body = 0, decompress(body)
    return -1 if flags or body != _VOID else HEADER.size + length


@functools.lru_cache(maxsize=_LONGEST)
def _like(size: int) -> struct.Struct:
    """Return what divides frames of a size into what is before the stream, the stream, and the rest."""
    return struct.Struct(f">{_STREAM}sh{size - _AFTER_STREAM}s")


def in_segments(data: bytes, version: int, codec: Any) -> Acknowledged:
    """Read segments up to the first that holds anything but whole VOID frames.

    :param codec: of the driver, for the connection.
    :raises Exception: of the codec: a checksum is wrong.
    """
    payloads, ends, is_all = _payloads(data, codec)
    while True:  # nearly always once: a call for each segment would take as long as their frames
        frames = b"".join(payloads)
        found = in_frames(frames, version, None)
        if found.end == len(frames):
            return Acknowledged(found.streams, ends[len(payloads)], is_all)
        payloads.pop()
        is_all = False


def _payloads(data: bytes, codec: Any) -> tuple[list[bytes], list[int], bool]:
    """Return the payloads of the segments that hold whole frames, up to the first that does not.

    :returns: also where the first begins and each ends, and whether no whole segment follows.
    """
    payloads: list[bytes] = []
    ends, size, read = [0], codec.header_length_with_crc, io.BytesIO(data)
    while header := _segment_header(codec, data[ends[-1] : ends[-1] + size]):
        end = ends[-1] + _segment_size(codec, header)
        if not header.is_self_contained:
            return payloads, ends, False
        if len(data) < end:
            break
        read.seek(ends[-1] + size)
        payloads.append(codec.decode(read, header).payload)
        ends.append(end)
    return payloads, ends, True


@functools.lru_cache(maxsize=1024)
def _segment_header(codec: Any, data: bytes) -> Any:
    """Decode a segment's header, whose checksum the driver takes in Python, bit by bit; few differ.

    :returns: None for the first bytes of one.
    """
    is_whole = len(data) == codec.header_length_with_crc
    return codec.decode_header(io.BytesIO(data)) if is_whole else None


def _segment_size(codec: Any, header: Any) -> int:
    size: int = codec.header_length_with_crc + header.payload_length + _CHECKSUM
    return size


class ReadingConnection:
    """Goes before a connection class of the driver, of which it overrides how it reads what has come."""

    def process_io_buffer(self) -> None:
        """Read what has come; called by the driver's thread."""
        found = self._acknowledged()
        if found is None or not self._take(found) or not found.is_all:
            super().process_io_buffer()  # type: ignore[misc]

    def _process_segment_buffer(self: Any) -> None:
        """Read a segment; called by the driver's thread.

        The driver (3.30.1) loses the first bytes of a header when no more have come. Where segments may be
        compressed, it reads one that is not when its last 2 bytes are missing. Either ends the connection.
        The driver takes the buffer's position for the number of bytes that have come, and keeps those
        after it: at 0 it reads nothing, and keeps all.
        """
        codec, data = self._segment_codec, self._iobuf.getvalue()
        with contextlib.suppress(CrcException):  # the driver raises it again
            header = _segment_header(codec, data[: codec.header_length_with_crc])
            if header is None or len(data) < _segment_size(codec, header):
                self._iobuf.seek(0)
        super()._process_segment_buffer()  # type: ignore[misc]

    def _acknowledged(self: Any) -> Acknowledged | None:
        """Return what is acknowledged by what has come; None: the driver has to look at it."""
        try:
            if self._current_frame is not None:
                return None  # the driver has begun to read what is longer
            buffer, version = self._io_buffer, self.protocol_version
            if not self._is_checksumming_enabled:
                return in_frames(buffer.io_buffer.getvalue(), version, self.decompressor)
            if buffer.readable_cql_frame_bytes():
                return None
            return in_segments(buffer.io_buffer.getvalue(), version, self._segment_codec)
        except Exception as error:  # noqa: BLE001 -- a wrong checksum; the driver raises it again
            log.debug("what a node has sent is left to the driver: %r", error)
            return None

    def _take(self: Any, found: Acknowledged) -> bool:
        """Take answers; return False, and take none, if no pipelined request waits for one of them.

        A stream is free after its request was told, as the driver does it: until then `Streams.abandoned`
        may look for it, and must not find the request of another.
        """
        streams, by = found.streams, dict[Any, list[int]]()
        with self.lock:
            requests = self._requests
            for stream in streams:
                answered, decodes, _ = requests.get(stream) or _NO_REQUEST
                if decodes is not decoded:
                    return False
                by.setdefault(answered, []).append(stream)
            if len(set(streams)) < len(streams):
                return False
            for stream in streams:
                del requests[stream]
        self.msg_received = True
        _cut(self._iobuf, found.end)
        for answered, these in by.items():
            try:
                answered(these)
            except Exception:
                log.exception("answers to rows were not counted")
        with self.lock:
            self.request_ids.extend(streams)
        return True


def _cut(buffer: io.BytesIO, end: int) -> None:
    """Remove the first bytes."""
    rest = buffer.getvalue()[end:]
    buffer.seek(0)
    buffer.truncate()
    buffer.write(rest)


_NO_REQUEST = (None, None, None)


class WritingConnection:
    """Goes before a connection class of the driver, whose `push` it overrides."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pushing = threading.Lock()
        super().__init__(*args, **kwargs)

    def push(self, data: bytes) -> None:
        """Write what the socket takes now; the driver's thread writes the rest, and meets what is wrong."""
        with self._pushing:  # nothing comes between a message and its rest
            rest = data[self._written(data) :]
            if rest:
                super().push(rest)  # type: ignore[misc]

    def _written(self: Any, data: bytes) -> int:
        """Write the first bytes, and return how many; none where the driver's thread may be writing.

        That thread writes only while it watches for room. It begins to watch when it finds something in the
        queue, which only `push` puts there, and ends when the queue is empty. So the queue is looked at
        first: where it is empty, and nothing is watched after that, the thread does not begin before
        `push` has ended.
        """
        try:
            if (
                self.deque
                or self._write_watcher_is_active
                or type(self._socket) is not socket.socket
            ):
                return 0
            written: int = self._socket.send(data)
        except BlockingIOError:
            written = 0
        except (OSError, AttributeError):  # AttributeError: another event loop
            return 0
        if written < len(data):
            self._socket_writable = False  # until the driver's thread has written the rest
        return written


__all__ = [
    "ConfigurationException",
    "ConnectionBusy",
    "ConnectionException",
    "ErrorMessage",
    "IsBootstrappingErrorMessage",
    "NoConnectionsAvailable",
    "OverloadedErrorMessage",
    "PreparedQueryNotFound",
    "ProtocolError",
    "ProtocolException",
    "ProtocolVersionUnsupported",
    "ServerError",
    "SyntaxException",
]

NO_TLS = (
    "cassandra-driver runs by asyncio here, which takes no TLS: build it with libev (apt-get install gcc"
    " python3-dev libev-dev; pip install --force-reinstall --no-binary cassandra-driver cassandra-driver)."
)
"""What to do where `is_asyncio`, and the cluster wants TLS."""

CAS_WRITE_UNKNOWN = 0x1700
"""Code of the native protocol, version 5, for which the driver has no exception of its own."""


class WideConnection(ReadingConnection, WritingConnection, Cluster.connection_class):  # type: ignore[misc] # the driver has no types
    """The driver's connection, for the event loop that it chose, with a larger buffer for each system call.

    Its own buffer has 4 KiB: a batch of 96 KiB takes 24 system calls.
    """

    out_buffer_size = 256 * 1024


def is_asyncio() -> bool:
    """Whether the driver has chosen the event loop of asyncio: from Python 3.12 on, where it has no libev.

    asyncio refuses sockets with TLS ("Socket cannot be of type SSLSocket"), in a task whose exception the
    driver does not see (3.30.1): each connection is silent until its time-out.
    """
    return any(each.__name__ == "AsyncioConnection" for each in WideConnection.__mro__)


def can_send(session: Any) -> bool:
    """Whether no connection's send buffer is full; True for a driver in which that cannot be seen.

    While one is full the driver refuses every request with `ConnectionBusy`, and loses one of the
    connection's 32,768 stream ids for each (3.30.1: `borrow_connection` takes it, and it is never returned).
    """
    try:
        # A copy of the list: the driver's threads add and remove pools as nodes come and go.
        connections = [pool._connection for pool in list(session.get_pools())]
        return all(each._socket_writable for each in connections if each is not None)
    except (AttributeError, TypeError, RuntimeError):
        return True


def pools(session: Any, datacenter: str) -> dict[Any, Any]:
    """Return the pool of each node of a datacenter to which the driver is connected, by the driver's host."""
    found = {pool.host: pool for pool in list(session.get_pools()) if pool._connection is not None}
    return {host: pool for host, pool in found.items() if host.datacenter == datacenter}


class Streams(NamedTuple):
    """Streams of one connection, borrowed for requests that go by one push.

    Each ends once: `unsent`, or `returned`. The driver itself makes a stream free when its answer has come.
    """

    pool: Any
    connection: Any
    ids: list[int]

    def push(self, frames: bytes, answered: Callable[[Any], None]) -> None:
        """Send frames, one for each stream and in their order.

        The driver makes segments, compresses these, and writes them. Of a version of the protocol without
        segments the frames have to be compressed already.

        :param answered: called by the driver's threads: with a list of those streams whose answers say that
            rows are written, and for any other answer with the driver's message. When the connection is
            lost, with an exception that names no stream.
        :raises Exception: of the driver; nothing was sent. It may have called `answered` before.
        """
        first, *others = self.ids
        entry = (answered, decoded, None)
        self.connection._requests.update(dict.fromkeys(others, entry))
        self.connection.send_msg(frames, first, answered, encoder=_as_it_is, decoder=decoded)

    def unsent(self) -> None:
        """Make the streams free that `push` could not use."""
        with self.connection.lock:
            for stream in self.ids:
                self.connection._requests.pop(stream, None)
            self.connection.request_ids.extend(self.ids)
        self.returned(0)

    def abandoned(self, late: Collection[int]) -> int:
        """Keep streams from other requests until their late answers come; return how many.

        The answers of the others are being taken at this moment.
        """
        connection = self.connection
        with connection.lock:
            orphans = [each for each in late if connection._requests.pop(each, None) is not None]
            connection.orphaned_request_ids.update(orphans)
            if len(connection.orphaned_request_ids) >= connection.orphaned_threshold:
                connection.orphaned_threshold_reached = True
        return len(orphans)

    def returned(self, orphans: int) -> None:
        """Say that the requests have ended, so that the driver sees in which state their connection is.

        :param orphans: of which the driver waits for the answer.
        """
        answered = len(self.ids) - orphans
        if not answered:
            self.pool.return_connection(self.connection, stream_was_orphaned=True)
            return
        with self.connection.lock:
            self.connection.in_flight -= answered - 1
        self.pool.return_connection(self.connection)  # and counts the last one


def borrow(pool: Any, number: int) -> Streams | None:
    """Borrow streams of a pool's connection; None when it has not so many, or is about to be replaced."""
    connection = pool._connection
    if connection is None or pool.is_shutdown:
        return None
    with connection.lock:
        is_good = not (
            connection.is_defunct or connection.is_closed or connection.orphaned_threshold_reached
        )
        # Ids that the driver has lost (`can_send`) are counted as in flight or not, but are not there.
        known = (
            len(connection.request_ids) + connection.max_request_id - connection.highest_request_id
        )
        if not is_good or min(known, connection.max_request_id - connection.in_flight) < number:
            return None
        connection.in_flight += number
        free = connection.request_ids
        ids = [free.popleft() for _ in range(min(number, len(free)))]
        ids += [connection.get_request_id() for _ in range(number - len(ids))]
        return Streams(pool, connection, ids)


def is_result(response: Any) -> bool:
    """Whether the driver's message says that a request was done."""
    return getattr(response, "opcode", None) == RESULT


def _as_it_is(frames: bytes, *_: object, **__: object) -> bytes:
    return frames
