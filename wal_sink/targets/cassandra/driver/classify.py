"""Judges exceptions of the driver: for rows (`classify`), and for the ledger (`effect_unknown`)."""

from __future__ import annotations

from cassandra import (
    AuthenticationFailed,
    CDCWriteFailure,
    CoordinationFailure,
    InvalidRequest,
    OperationTimedOut,
    RequestValidationException,
    Timeout,
    Unavailable,
    UnresolvableContactPoints,
    WriteFailure,
)
from cassandra.cluster import NoHostAvailable

from wal_sink.errors import WalSinkError
from wal_sink.targets.base import Kind
from wal_sink.targets.cassandra.driver.internals import (
    CAS_WRITE_UNKNOWN,
    ConnectionBusy,
    ConnectionException,
    ErrorMessage,
    IsBootstrappingErrorMessage,
    NoConnectionsAvailable,
    OverloadedErrorMessage,
    ProtocolError,
    ProtocolException,
    ProtocolVersionUnsupported,
    ServerError,
    SyntaxException,
)

_FATAL = (
    AuthenticationFailed,
    RequestValidationException,  # InvalidRequest, Unauthorized, AlreadyExists
    SyntaxException,
    ProtocolException,
    ProtocolVersionUnsupported,
    ProtocolError,
)
_UNKNOWN = 0
"""A replica's reason for a failure in WriteFailure (native protocol, version 5, section 9)."""
_THROTTLE = (OverloadedErrorMessage, CDCWriteFailure, ConnectionBusy, NoConnectionsAvailable)
_RETRY = (
    Timeout,  # WriteTimeout, ReadTimeout
    CoordinationFailure,  # WriteFailure, ReadFailure
    Unavailable,
    OperationTimedOut,
    ConnectionException,
    IsBootstrappingErrorMessage,
    ServerError,
    UnresolvableContactPoints,
)


def classify(error: Exception) -> Kind:
    """Say whether to try again at once, to slow down first, or to stop the flush.

    Rows are idempotent, so an error that may pass is worth another attempt. An unknown error is fatal: a
    bug must not be retried for ever.
    """
    if isinstance(error, WalSinkError):
        return "retry" if error.transient else "fatal"
    if isinstance(error, NoHostAvailable):
        return _of_hosts(error)
    if isinstance(error, _FATAL):
        return "fatal"
    if isinstance(error, _THROTTLE):
        return "throttle"
    if isinstance(error, _RETRY) or _is_cas_unknown(error):
        return "retry"
    return "fatal"


def asks_to_slow_down(error: Exception) -> bool:
    """Whether the cluster is overloaded: it says so, or did not answer in time."""
    return classify(error) == "throttle" or isinstance(error, Timeout | OperationTimedOut)


def was_not_sent(error: Exception) -> bool:
    """Whether the driver refused a request because the socket has no room for it at this moment.

    The driver takes no request while the socket's send buffer is full, which it is whenever requests are
    made faster than the network takes them. That says nothing about the cluster.
    """
    errors = _by_host(error) if isinstance(error, NoHostAvailable) else [error]
    return bool(errors) and all(isinstance(each, ConnectionBusy) for each in errors)


def is_refused(error: Exception) -> bool:
    """Whether the server says that a request is wrong, so that it would be refused again."""
    errors = _by_host(error) if isinstance(error, NoHostAvailable) else [error]
    return bool(errors) and all(isinstance(each, InvalidRequest) for each in errors)


def may_be_a_row(error: Exception) -> bool:
    """Whether a request may have failed for what one of its rows holds, though nothing says so.

    What fails inside of a server while it writes, such as an index that cannot take a value, comes as
    WriteFailure of reason UNKNOWN from every replica that failed, or as a ServerError. A full disk does, too.
    """
    errors = _by_host(error) if isinstance(error, NoHostAvailable) else [error]
    return bool(errors) and all(_is_unexplained(each) for each in errors)


def _is_unexplained(error: Exception) -> bool:
    if isinstance(error, WriteFailure):
        # Before version 5 of the protocol there are no reasons.
        return all(reason == _UNKNOWN for reason in (error.error_code_map or {}).values())
    return isinstance(error, ServerError)


def effect_unknown(error: Exception) -> bool:
    """Whether a conditional update that raised `error` may have taken effect, or may take effect later.

    `Unavailable` is such an error: a coordinator raises it for the commit, too, after the proposal was
    accepted. So is every error that the server reports once it has started to work. `NoHostAvailable` is
    not: nothing is retried under the ledger's profile, so it means that nothing was sent.
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


def _of_hosts(error: NoHostAvailable) -> Kind:
    """Judge by the error of each host: an error is fatal for the cluster only if it is for every host."""
    errors = _by_host(error)
    if errors and all(isinstance(each, _FATAL) for each in errors):
        return "fatal"
    if errors and all(isinstance(each, _THROTTLE) for each in errors):
        return "throttle"
    return "retry"


def _by_host(error: NoHostAvailable) -> list[Exception]:
    return list(error.errors.values()) if isinstance(error.errors, dict) else []
