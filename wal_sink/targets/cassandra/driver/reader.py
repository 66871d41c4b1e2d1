"""Reads the answers to light requests: those that say that rows are written, all that have come at once.

The driver reads each answer by itself: it copies what has come, looks for the stream in four places, decodes
a message and calls back, in about as much time as the whole request takes otherwise. An answer to rows is
nearly always VOID, of 13 bytes, and a read brings many. So before the driver looks at what has come, a
`ReadingConnection` takes those from its beginning, for which it has to know no more than their header.

Whatever else has come is the driver's, untouched: another answer, a frame that is longer than its segment, a
checksum that is wrong, a stream of which nothing is known. And it reads everything until it has once read
answers of a connection just as they would have been read here. Segments are decoded by its own codec.
"""

from __future__ import annotations

import functools
import io
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import cassandra
from cassandra.protocol import ProtocolHandler

from wal_sink.log_context import line_logger

log = line_logger(__name__)

RESULT = 0x08
_VOID = b"\x00\x00\x00\x01"
_HEADER = struct.Struct(">BBhBi")
"""Version, flags, stream, opcode, length of the body (native protocol, section 2)."""
_STREAM, _AFTER_STREAM = 2, 4
"""Where the stream begins and ends in it."""
_ANSWER = 0x80
_COMPRESSED = 0x01
_LONGEST = 64
"""Bytes of a body that may be VOID: compressed, it is longer than the 4 that it has."""
_CHECKSUM = 4
"""Bytes after the payload of a segment (native protocol 5, section 2.2)."""

Decompress = Callable[[bytes], bytes]


def decoded(
    version: int, types: Any, stream: int, flags: int, opcode: int, body: bytes, *how: Any
) -> Any:
    """Decode an answer to a light request, for the driver: rows are written, or its own message.

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
    if len(frames) - at < _HEADER.size:
        return 0
    begin, flags, stream, opcode, length = _HEADER.unpack_from(frames, at)
    body = frames[at + _HEADER.size : at + _HEADER.size + max(length, 0)]
    if begin != version | _ANSWER or opcode != RESULT or stream < 0 or not 0 <= length <= _LONGEST:
        return -1
    if len(body) < length:
        return 0
    if flags == _COMPRESSED and decompress is not None:
        flags, body = 0, decompress(body)
    return -1 if flags or body != _VOID else _HEADER.size + length


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
    while len(data) - ends[-1] >= size:
        begin = ends[-1] + size
        header = _segment_header(codec, data[ends[-1] : begin])
        end = begin + header.payload_length + _CHECKSUM
        if not header.is_self_contained:
            return payloads, ends, False
        if len(data) < end:
            break
        read.seek(begin)
        payloads.append(codec.decode(read, header).payload)
        ends.append(end)
    return payloads, ends, True


@functools.lru_cache(maxsize=1024)
def _segment_header(codec: Any, data: bytes) -> Any:
    """Decode a segment's header, whose checksum the driver takes in Python, bit by bit; few differ."""
    return codec.decode_header(io.BytesIO(data))


class ReadingConnection:
    """Goes before a connection class of the driver, whose `process_io_buffer` it overrides."""

    _agrees: bool | None = None
    """Whether the driver has read answers as they are read here; None: there were none yet."""

    def process_io_buffer(self) -> None:
        """Read what has come; called by the driver's thread."""
        found = None if self._agrees is False else self._acknowledged()
        if found is None or (self._agrees is None and not found.streams):
            super().process_io_buffer()  # type: ignore[misc]
        elif self._agrees is None:
            self._compare(found)
        elif not self._take(found) or not found.is_all:
            super().process_io_buffer()  # type: ignore[misc]

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

    def _compare(self: Any, found: Acknowledged) -> None:
        """Let the driver read, and see whether it has taken the same answers."""
        try:
            before = {stream: self._requests[stream] for stream in found.streams}
            awaited = all(entry[1] is decoded for entry in before.values())
        except Exception:  # noqa: BLE001 -- not ours, or a name means something else
            awaited = False
        super().process_io_buffer()  # type: ignore[misc]
        if not awaited:
            return
        left = [each for each in before if self._requests.get(each) is before[each]]
        self._agrees = not left
        if left:
            log.warning(
                "cassandra-driver %s does not take the answers that are acknowledgements of rows (streams"
                " %s). It reads them all, which takes more CPU where rows are scattered.",
                *(cassandra.__version__, left),
            )

    def _take(self: Any, found: Acknowledged) -> bool:
        """Take answers; return False when there is one that no light request waits for, and take none then.

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
