"""What the driver's API reference does not list; nothing else uses it.

Exceptions that the driver raises, so that they have to be told apart, and how its connections use their
sockets. Whatever else is not public is used by `frames`, behind a canary.
"""

from __future__ import annotations

from typing import Any

from cassandra.cluster import Cluster
from cassandra.connection import (
    ConnectionBusy,
    ConnectionException,
    ProtocolError,
    ProtocolVersionUnsupported,
)
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import (
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    ProtocolException,
    ServerError,
    SyntaxException,
)

__all__ = [
    "CAS_WRITE_UNKNOWN",
    "ConnectionBusy",
    "ConnectionException",
    "ErrorMessage",
    "IsBootstrappingErrorMessage",
    "NoConnectionsAvailable",
    "OverloadedErrorMessage",
    "ProtocolError",
    "ProtocolException",
    "ProtocolVersionUnsupported",
    "ServerError",
    "SyntaxException",
    "WideConnection",
    "has_room",
]

CAS_WRITE_UNKNOWN = 0x1700
"""Code of the native protocol, version 5, for which the driver has no exception of its own."""


class WideConnection(Cluster.connection_class):  # type: ignore[misc] # the driver has no types
    """The driver's connection, of whatever event loop, that gives the socket more at a time.

    By itself it gives it 4 KiB, a batch of 96 KiB in 24 system calls. In a driver that has another name for
    the bound, this one changes nothing.
    """

    out_buffer_size = 256 * 1024


def has_room(session: Any) -> bool:
    """Whether no connection's send buffer is full; True for a driver in which that cannot be seen.

    While it is full the driver refuses every request with `ConnectionBusy`, and loses for each one of the
    connection's 32,768 stream ids (3.30.1: `borrow_connection` has taken it, and nobody gives it back).
    """
    try:
        # A list first: the driver's threads add and remove pools as nodes come and go.
        connections = [pool._connection for pool in list(session.get_pools())]
        return all(each._socket_writable for each in connections if each is not None)
    except (AttributeError, TypeError, RuntimeError):
        return True
