"""What the sink uses of the driver beyond its API reference; only this module and `frames` do.

These are exceptions that the driver raises, and how its connections use their sockets. What `frames` uses is
tested by a canary at each connect.
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
    ConfigurationException,
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    ProtocolException,
    ServerError,
    SyntaxException,
)

__all__ = [
    "CAS_WRITE_UNKNOWN",
    "ConfigurationException",
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
    """The driver's connection, for the event loop that it chose, with a larger buffer for each system call.

    Its own buffer has 4 KiB: a batch of 96 KiB takes 24 system calls. In a driver that has another name for
    the attribute, this one changes nothing.
    """

    out_buffer_size = 256 * 1024


def has_room(session: Any) -> bool:
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
