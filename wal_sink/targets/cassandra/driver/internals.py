"""What the sink uses of the driver beyond its API reference. Only this module and `frames` do so.

These are exceptions that the driver raises, and how its connections use sockets and streams. The driver may
change them, so `pyproject.toml` pins the tested versions.

The driver reads and writes its sockets. A reader and a writer of the sink's own were tried: scattered rows
were 3 % faster (16 pairs of runs over the whole way), grouped rows were not.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

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

RESULT = 0x08
_VOID = b"\x00\x00\x00\x01"
HEADER = struct.Struct(">BBhBi")
"""Version, flags, stream, opcode, length of the body (native protocol, section 2)."""


def decoded(
    version: int, types: Any, stream: int, flags: int, opcode: int, body: bytes, *how: Any
) -> Any:
    """Decode the answer to a pipelined request; the driver calls it.

    :returns: the stream's id if the answer is VOID: the rows are written (native protocol, 4.2.5.1).
        Otherwise the driver's message.
    """
    if opcode == RESULT and body == _VOID and not flags:
        return stream
    return ProtocolHandler.decode_message(version, types, stream, flags, opcode, body, *how)


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

CAS_WRITE_UNKNOWN = 0x1700
"""An error code of the native protocol, version 5, without an exception type in the driver."""


class ConnectionFixes:
    """A mixin that corrects a connection class of the driver."""

    out_buffer_size = 256 * 1024
    """Bytes for each system call. The driver's default is 4 KiB: a batch of 96 KiB would take 24 system
    calls."""

    def _process_segment_buffer(self: Any) -> None:
        """Read a segment; a thread of the driver calls it.

        The driver (3.30.1) loses the first bytes of a header if the rest has not arrived, and the connection
        ends. It takes the position in the buffer for the number of bytes that have arrived, and drops the
        bytes before the position. At position 0 it reads nothing and drops nothing.
        """
        if self._iobuf.tell() < self._segment_codec.header_length_with_crc:
            self._iobuf.seek(0)
        super()._process_segment_buffer()  # type: ignore[misc]


class WideConnection(ConnectionFixes, Cluster.connection_class):  # type: ignore[misc] # the driver has no types
    """The driver's connection class for the event loop that the driver has chosen."""


def can_send(session: Any) -> bool:
    """Return True if the send buffer of no connection is full.

    While a buffer is full the driver refuses every request with `ConnectionBusy`. Each such request costs
    one of the connection's 32,768 stream ids (3.30.1: `borrow_connection` takes an id that is never
    returned).
    """
    # The list is copied: the driver's threads add and remove pools as nodes come and go.
    connections = [pool._connection for pool in list(session.get_pools())]
    return all(connection._socket_writable for connection in connections if connection is not None)


def pools(session: Any, datacenter: str) -> dict[Any, Any]:
    """Return the pool of each connected node of a datacenter, by the driver's host."""
    return {
        pool.host: pool
        for pool in list(session.get_pools())
        if pool._connection is not None and pool.host.datacenter == datacenter
    }


class Streams(NamedTuple):
    """Stream ids of one connection, reserved for requests that are sent by one push.

    They end once: by `free` or by `end`. The driver frees a stream when its answer has come.
    """

    pool: Any
    connection: Any
    ids: list[int]

    def push(self, frames: bytes, answered: Callable[[Any], None]) -> None:
        """Send frames, one for each stream, in their order.

        :param answered: a callback in threads of the driver. Its argument is the stream's id if the rows are
            written, the driver's message for any other answer, and an exception without a stream if the
            connection is lost.
        :raises Exception: an error of the driver. Nothing was sent, but `answered` may have been called.
        """
        first, *others = self.ids
        entry = (answered, decoded, None)
        self.connection._requests.update(dict.fromkeys(others, entry))
        self.connection.send_msg(frames, first, answered, encoder=_as_it_is, decoder=decoded)

    def free(self) -> None:
        """Free the streams after `push` has failed."""
        with self.connection.lock:
            for stream in self.ids:
                self.connection._requests.pop(stream, None)
            self.connection.request_ids.extend(self.ids)
        self.end(0)

    def reserve_late(self, late: Collection[int]) -> int:
        """Reserve late streams until their answers come. Return how many are reserved.

        A stream whose answer is being handled at this moment is not reserved.
        """
        connection = self.connection
        with connection.lock:
            orphans = [
                stream for stream in late if connection._requests.pop(stream, None) is not None
            ]
            connection.orphaned_request_ids.update(orphans)
            if len(connection.orphaned_request_ids) >= connection.orphaned_threshold:
                connection.orphaned_threshold_reached = True
        return len(orphans)

    def end(self, orphans: int) -> None:
        """Return the connection to its pool, after the requests have ended.

        :param orphans: the number of requests whose answer is late.
        """
        answered = len(self.ids) - orphans
        if not answered:
            self.pool.return_connection(self.connection, stream_was_orphaned=True)
            return
        with self.connection.lock:
            self.connection.in_flight -= answered - 1
        self.pool.return_connection(self.connection)  # decrements in_flight for the last


def borrow(pool: Any, number: int) -> Streams | None:
    """Reserve streams of a pool's connection; return None if it has too few, or is about to be replaced."""
    connection = pool._connection
    if connection is None or pool.is_shutdown:
        return None
    with connection.lock:
        is_good = not (
            connection.is_defunct or connection.is_closed or connection.orphaned_threshold_reached
        )
        # Ids that the driver has lost (`can_send`) are not among the known ids.
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
    """Return True if a message of the driver reports success."""
    return getattr(response, "opcode", None) == RESULT


def _as_it_is(frames: bytes, *_: object, **__: object) -> bytes:
    return frames
