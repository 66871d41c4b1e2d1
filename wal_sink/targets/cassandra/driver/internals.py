"""What the sink uses of the driver beyond its API reference; only this module and `frames` do.

These are exceptions that the driver raises, and how its connections use their sockets and streams. None of
that is promised, so `pyproject.toml` pins the versions with which the tests have run.

The driver reads and writes its sockets by itself. A reader of answers and a writer of requests of the sink's
own made scattered rows 3 % faster (16 pairs of runs, the whole way), and grouped rows not at all.
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
    """Decode an answer to a pipelined request, for the driver.

    :returns: the stream's id where rows are written (VOID, native protocol, 4.2.5.1); else the message.
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

NO_TLS = (
    "cassandra-driver runs by asyncio here, which takes no TLS: build it with libev (apt-get install gcc"
    " python3-dev libev-dev; pip install --force-reinstall --no-binary cassandra-driver cassandra-driver)."
)
"""What to do where `is_asyncio`, and the cluster wants TLS."""

CAS_WRITE_UNKNOWN = 0x1700
"""Code of the native protocol, version 5, for which the driver has no exception of its own."""


class ConnectionMend:
    """Goes before a connection class of the driver."""

    out_buffer_size = 256 * 1024
    """For each system call. The driver's own has 4 KiB: a batch of 96 KiB takes 24 system calls."""

    def _process_segment_buffer(self: Any) -> None:
        """Read a segment; called by the driver's thread.

        The driver (3.30.1) loses the first bytes of a header when no more have come, which ends the
        connection. It takes the buffer's position for the number of bytes that have come, and keeps those
        after it: at 0 it reads nothing, and keeps all.
        """
        if self._iobuf.tell() < self._segment_codec.header_length_with_crc:
            self._iobuf.seek(0)
        super()._process_segment_buffer()  # type: ignore[misc]


class WideConnection(ConnectionMend, Cluster.connection_class):  # type: ignore[misc] # the driver has no types
    """The driver's connection, for the event loop that it chose."""


def is_asyncio() -> bool:
    """Return True if the driver has chosen asyncio's event loop: from Python 3.12 on, where it lacks libev.

    asyncio refuses sockets with TLS ("Socket cannot be of type SSLSocket"), in a task whose exception the
    driver does not see (3.30.1): each connection is silent until its time-out.
    """
    return any(base.__name__ == "AsyncioConnection" for base in WideConnection.__mro__)


def can_send(session: Any) -> bool:
    """Return True if no connection's send buffer is full.

    While one is full the driver refuses every request with `ConnectionBusy`, and loses one of the
    connection's 32,768 stream ids for each (3.30.1: `borrow_connection` takes it, and it is never returned).
    """
    # A copy of the list: the driver's threads add and remove pools as nodes come and go.
    connections = [pool._connection for pool in list(session.get_pools())]
    return all(connection._socket_writable for connection in connections if connection is not None)


def pools(session: Any, datacenter: str) -> dict[Any, Any]:
    """Return the pool of each node of a datacenter to which the driver is connected, by the driver's host."""
    return {
        pool.host: pool
        for pool in list(session.get_pools())
        if pool._connection is not None and pool.host.datacenter == datacenter
    }


class Streams(NamedTuple):
    """Stream ids of one connection, reserved for requests that are sent in one push.

    Each ends once: `unsent`, or `returned`. The driver itself makes a stream free when its answer has come.
    """

    pool: Any
    connection: Any
    ids: list[int]

    def push(self, frames: bytes, answered: Callable[[Any], None]) -> None:
        """Send frames, one for each stream and in their order.

        :param answered: called by the driver's threads: with the stream whose answer says that rows are
            written, and for any other answer with the driver's message. When the connection is lost, with an
            exception that names no stream.
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
            orphans = [
                stream for stream in late if connection._requests.pop(stream, None) is not None
            ]
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
    """Borrow streams of a pool's connection; None if it has too few, or is about to be replaced."""
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
    """Return True if the driver's message says that a request was done."""
    return getattr(response, "opcode", None) == RESULT


def _as_it_is(frames: bytes, *_: object, **__: object) -> bytes:
    return frames
