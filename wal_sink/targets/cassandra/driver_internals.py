"""Exceptions of the driver that its API reference does not list; nothing else imports them.

The driver raises them, so they have to be told apart, and no public name stands for them. Whatever else
is not public is used by `frames`, behind a canary.
"""

from __future__ import annotations

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
]

CAS_WRITE_UNKNOWN = 0x1700
"""Code of the native protocol, version 5, for which the driver has no exception of its own."""
