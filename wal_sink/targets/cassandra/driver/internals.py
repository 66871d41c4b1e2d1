"""Undocumented parts of the driver that the sink uses: exceptions, streams, buffers, the wait for one schema.

Only this module and `frames` use undocumented parts. The driver may change them, so `pyproject.toml` pins the
tested versions.

The driver reads and writes its sockets. Socket code of wal_sink was tried, and not kept. It was 3 % faster if
rows were scattered over many partitions (16 pairs of whole flushes), and not faster otherwise.
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
"""The opcode of an answer that reports success."""
_VOID = b"\x00\x00\x00\x01"
HEADER = struct.Struct(">BBhBi")
"""Version, flags, stream, opcode, length of the body (native protocol, section 2)."""


def decoded(
    version: int, types: Any, stream: int, flags: int, opcode: int, body: bytes, *how: Any
) -> Any:
    """Decode the answer to a request. The driver calls this function.

    If the answer is VOID, it acknowledges the rows (native protocol, section 4.2.5.1), and the id of the
    stream is returned. Otherwise the driver's message is returned.
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


def has_one_schema(session: Any, timeout_s: float) -> bool:
    """Wait until all nodes that are up have the same schema. Return False if they do not agree in time."""
    agreed = session.cluster.control_connection.wait_for_schema_agreement(wait_time=timeout_s)
    return bool(agreed)


class ConnectionFixes:
    """A mixin that corrects a connection class of the driver."""

    out_buffer_size = 256 * 1024
    """The most bytes that a system call sends. With the driver's 4 KiB, a batch of 96 KiB would need 24."""

    def _process_segment_buffer(self: Any) -> None:
        """Read a segment, in a thread of the driver.

        If only the first bytes of a header have arrived, the driver (3.30.1) drops all bytes before the
        position in its buffer, and the connection fails. So the position is set to 0, and no byte is dropped.
        """
        if self._iobuf.tell() < self._segment_codec.header_length_with_crc:
            self._iobuf.seek(0)
        super()._process_segment_buffer()  # type: ignore[misc]


class WideConnection(ConnectionFixes, Cluster.connection_class):  # type: ignore[misc] # the driver has no types
    """The driver's connection class for the event loop that the driver has chosen."""


def can_send(session: Any) -> bool:
    """Return True if the send buffer of no connection is full.

    While a buffer is full, the driver refuses every request with `ConnectionBusy`, and loses one of the
    connection's 32,768 stream ids each time (3.30.1: `borrow_connection` takes an id, and nothing returns
    it).
    """
    # The list is a copy: threads of the driver add and remove pools.
    connections = [pool._connection for pool in list(session.get_pools())]
    return all(connection._socket_writable for connection in connections if connection is not None)


def pools(session: Any, datacenter: str) -> dict[Any, Any]:
    """Return the connection pools of a datacenter's connected nodes, by the driver's host."""
    return {
        pool.host: pool
        for pool in list(session.get_pools())
        if pool._connection is not None and pool.host.datacenter == datacenter
    }


class Streams(NamedTuple):
    """Reserved stream ids of one connection, for requests that are sent together.

    The driver frees a stream when its answer arrives. The caller calls `end` once, after all requests have
    ended, or `free` if nothing was sent.
    """

    pool: Any
    connection: Any
    ids: list[int]

    def push(self, frames: bytes, answered: Callable[[Any], None]) -> None:
        """Send frames, one for each stream, in the order of the ids.

        :param answered: is called by threads of the driver, with the result of `decoded` for each answer, and
            with an exception if the connection is lost.
        :raises Exception: an error of the driver. Nothing was sent, but `answered` may have been called.
        """
        first, *others = self.ids
        entry = (answered, decoded, None)
        self.connection._requests.update(dict.fromkeys(others, entry))
        self.connection.send_msg(frames, first, answered, encoder=_unchanged, decoder=decoded)

    def free(self) -> None:
        """Free the streams after `push` has raised an error, and return the connection to its pool."""
        with self.connection.lock:
            for stream in self.ids:
                self.connection._requests.pop(stream, None)
            self.connection.request_ids.extend(self.ids)
        self.end(0)

    def reserve_late(self, late: Collection[int]) -> int:
        """Keep streams reserved until their late answers arrive. Return the number of these streams.

        If the answer of a stream has arrived in the meantime, the stream is not reserved and does not count.
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
        """Return the connection to its pool.

        :param orphans: the number of streams that `reserve_late` has reserved.
        """
        answered = len(self.ids) - orphans
        if not answered:
            self.pool.return_connection(self.connection, stream_was_orphaned=True)
            return
        with self.connection.lock:
            self.connection.in_flight -= answered - 1
        self.pool.return_connection(self.connection)  # counts the last answered request itself


def borrow(pool: Any, number: int) -> Streams | None:
    """Reserve streams of a pool's connection.

    Return None if the connection is closed, has too few streams, or has too many late answers. In the last
    case the driver replaces the connection.
    """
    connection = pool._connection
    if connection is None or pool.is_shutdown:
        return None
    with connection.lock:
        is_good = not (
            connection.is_defunct or connection.is_closed or connection.orphaned_threshold_reached
        )
        # Ids that the driver has lost (see `can_send`) do not count.
        unused = (
            len(connection.request_ids) + connection.max_request_id - connection.highest_request_id
        )
        if not is_good or min(unused, connection.max_request_id - connection.in_flight) < number:
            return None
        connection.in_flight += number
        free = connection.request_ids
        ids = [free.popleft() for _ in range(min(number, len(free)))]
        ids += [connection.get_request_id() for _ in range(number - len(ids))]
        return Streams(pool, connection, ids)


def _unchanged(frames: bytes, *_: object, **__: object) -> bytes:
    return frames
