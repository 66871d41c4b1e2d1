"""Classifies exceptions of the driver.

`classify` is for requests that may be repeated, such as rows. `effect_unknown` is for conditional updates of
the ledger, which must not be repeated.
"""

from __future__ import annotations

import re

from cassandra import (
    AuthenticationFailed,
    CDCWriteFailure,
    ConfigurationException,
    CoordinationFailure,
    InvalidRequest,
    OperationTimedOut,
    Timeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable

from wal_sink.errors import WalSinkError
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.cassandra.driver.internals import (
    CAS_WRITE_UNKNOWN,
    ConnectionBusy,
    ConnectionException,
    ErrorMessage,
    IsBootstrappingErrorMessage,
    NoConnectionsAvailable,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ProtocolError,
    ProtocolException,
    ProtocolVersionUnsupported,
    ServerError,
    SyntaxException,
)

_CLASSES: dict[ErrorClass, tuple[type[Exception], ...]] = {
    # Fatal errors come first, because `ProtocolVersionUnsupported` is also a `ConnectionException`.
    "fatal": (
        AuthenticationFailed,
        InvalidRequest,
        Unauthorized,
        ConfigurationException,  # AlreadyExists
        SyntaxException,
        ProtocolException,
        ProtocolVersionUnsupported,
        ProtocolError,
    ),
    "throttle": (OverloadedErrorMessage, CDCWriteFailure, ConnectionBusy, NoConnectionsAvailable),
    "retry": (
        Timeout,  # WriteTimeout, ReadTimeout
        CoordinationFailure,  # WriteFailure, ReadFailure
        Unavailable,
        OperationTimedOut,
        ConnectionException,
        IsBootstrappingErrorMessage,
        PreparedQueryNotFound,
        ServerError,
        UnresolvableContactPoints,
    ),
}


def classify(error: Exception) -> ErrorClass:
    """Return "retry" to try again at once, "throttle" to slow down first, "fatal" to stop the flush.

    An unknown error is fatal, because a bug must not be retried forever.
    """
    if isinstance(error, WalSinkError):
        return "retry" if error.transient else "fatal"
    if _is_of_a_node(error):  # before `_CLASSES`, in which every `InvalidRequest` is fatal
        return "retry"
    for error_class, types in _CLASSES.items():
        if _every_cause_is(error, types):
            return error_class
    return "retry" if isinstance(error, NoHostAvailable) or _is_cas_unknown(error) else "fatal"


def is_overload(error: Exception) -> bool:
    """Return True if the cluster reports an overload, or did not answer in time."""
    is_slow = classify(error) == "throttle" or isinstance(error, Timeout | OperationTimedOut)
    return is_slow and not was_not_sent(error)


def was_not_sent(error: Exception) -> bool:
    """Return True if the driver refused a request because the send buffer of the socket is full.

    The buffer is full whenever the sink is faster than the network, also if the cluster is not overloaded.
    """
    return _every_cause_is(error, ConnectionBusy)


def is_refused(error: Exception) -> bool:
    """Return True if the server refuses a request because of its rows.

    `WriteFailure` and `ServerError` do not count as refusals, although a value that an index cannot take
    causes them. A full disk, a full CDC space and an overload cause the same errors.
    """
    return is_invalid(error) and not _is_of_a_node(error)


_OF_A_NODE = re.compile(
    r"""(?:^|message=["'])"""
    r"(?:unconfigured table |(?:keyspace|table) \S+ (?:does not|doesn't) exist|undefined column name )"
    r"|disk usage exceeds",
    re.IGNORECASE,
)
"""Messages of Cassandra 3.11 to 5.0 if a coordinator lacks the keyspace, the table or a column
(`Schema.validateTable`, `TableMetadata.getExistingColumn`, CREATE), or if its disk is full. The
message about the disk begins with the name of a guardrail."""


def _is_of_a_node(error: Exception) -> bool:
    """Return True if a request is invalid only because of the present state of a node.

    The node may have just joined, lag behind a change of the schema, or lack disk space.
    """
    return is_invalid(error) and _OF_A_NODE.search(str(error)) is not None


def is_invalid(error: Exception) -> bool:
    """Return True if a server refuses the request as invalid."""
    return _every_cause_is(error, InvalidRequest)


def effect_unknown(error: Exception) -> bool:
    """Return True if a conditional update that raised `error` may have an effect, now or later.

    After any error of a node that has begun the update, the update may have an effect. A coordinator may
    even raise `Unavailable` for the commit, after the replicas have accepted the proposal. After
    `NoHostAvailable` the update has no effect, because `connect` turns off the driver's retries, so no node
    got the request.
    """
    return isinstance(
        error,
        Timeout
        | CoordinationFailure
        | CDCWriteFailure
        | Unavailable
        | OperationTimedOut
        | ConnectionException
        | ServerError,
    ) or _is_cas_unknown(error)


def _is_cas_unknown(error: Exception) -> bool:
    return isinstance(error, ErrorMessage) and error.code == CAS_WRITE_UNKNOWN


def _every_cause_is(error: Exception, types: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Return True if an error, or the error of each host in a `NoHostAvailable`, has one of the types."""
    causes = of_each_host(error) if isinstance(error, NoHostAvailable) else [error]
    return bool(causes) and all(isinstance(cause, types) for cause in causes)


def of_each_host(error: NoHostAvailable) -> list[Exception]:
    """Return the error of each host; an empty list if the driver reports only addresses."""
    return list(error.errors.values()) if isinstance(error.errors, dict) else []
