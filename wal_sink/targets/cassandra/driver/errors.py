"""Sends requests of which one is awaited, and classifies exceptions of the driver.

An exception means something for rows (`classify`), and for the ledger (`effect_unknown`). A request is
repeated for as long as its error may pass, and is never awaited for ever. The driver ends each request, by an
answer or by its own timer, but both come from one of its threads. When that is stalled or has died, no
request ends (3.30.1), and a flusher that waits for one would never report, never try again, and never connect
again.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import tenacity
from cassandra import (
    AuthenticationFailed,
    CDCWriteFailure,
    CoordinationFailure,
    InvalidRequest,
    OperationTimedOut,
    RequestValidationException,
    Timeout,
    Unauthorized,
    Unavailable,
    UnresolvableContactPoints,
)
from cassandra.cluster import NoHostAvailable

from wal_sink.errors import SchemaMismatch, TargetUnavailable, WalSinkError
from wal_sink.targets.base import ErrorClass
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


def classify(error: Exception) -> ErrorClass:
    """Say whether to try again at once, to slow down first, or to stop the flush.

    Rows are idempotent, so an error that may pass is worth another attempt. An unknown error is fatal: a
    bug must not be retried for ever.
    """
    if isinstance(error, WalSinkError):
        return "retry" if error.transient else "fatal"
    if _is_of_a_node(error):
        return "retry"
    if isinstance(error, NoHostAvailable):
        return _of_hosts(error)
    known: dict[ErrorClass, Any] = {"fatal": _FATAL, "throttle": _THROTTLE, "retry": _RETRY}
    for error_class, types in known.items():
        if isinstance(error, types):
            return error_class
    return "retry" if _is_cas_unknown(error) else "fatal"


def asks_to_slow_down(error: Exception) -> bool:
    """Return True if the cluster is overloaded: it says so, or did not answer in time."""
    is_slow = classify(error) == "throttle" or isinstance(error, Timeout | OperationTimedOut)
    return is_slow and not was_not_sent(error)


def was_not_sent(error: Exception) -> bool:
    """Return True if the driver refused a request because the socket has no room for it at this moment.

    The driver takes no request while the socket's send buffer is full, which it is whenever requests are
    made faster than the network takes them. That says nothing about the cluster.
    """
    return _is_each(error, lambda cause: isinstance(cause, ConnectionBusy))


def is_refused(error: Exception) -> bool:
    """Return True if the server says that a request is wrong for what its rows hold.

    Never for what fails while a replica writes (WriteFailure, of reason UNKNOWN mostly, and ServerError): a
    full disk, a full CDC space and an overload bring the same errors as a value that an index cannot take.
    """
    return _is_invalid(error) and not _is_of_a_node(error)


_OF_A_NODE = re.compile(
    r"""(?:^|message=["'])"""
    r"(?:unconfigured table |(?:keyspace|table) \S+ (?:does not|doesn't) exist|undefined column name )"
    r"|disk usage exceeds",
    re.IGNORECASE,
)
"""How Cassandra 3.11 to 5.0 says that a coordinator lacks keyspace, table or column (`Schema.validateTable`,
`TableMetadata.getExistingColumn`, CREATE), and how a guardrail says that a disk is too full."""


def _is_of_a_node(error: Exception) -> bool:
    """Return True if a request is invalid for the state of a node, which passes.

    It says nothing of the rows: the node may have joined just now, lag behind a change of the schema, or want
    space.
    """
    return _is_invalid(error) and _OF_A_NODE.search(str(error)) is not None


def _is_invalid(error: Exception) -> bool:
    return _is_each(error, lambda cause: isinstance(cause, InvalidRequest))


def effect_unknown(error: Exception) -> bool:
    """Return True if a conditional update that raised `error` may have taken effect, or may do so later.

    `Unavailable` is such an error: a coordinator raises it for the commit, too, after the proposal was
    accepted. So is every error that the server reports once it has started to work. `NoHostAvailable` is
    not: the driver retries nothing (`connection`), so it means that nothing was sent.
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


def _of_hosts(error: NoHostAvailable) -> ErrorClass:
    """Judge by the error of each host: an error is fatal for the cluster only if it is for every host."""
    if _is_each(error, lambda cause: isinstance(cause, _FATAL)):
        return "fatal"
    return "throttle" if _is_each(error, lambda cause: isinstance(cause, _THROTTLE)) else "retry"


def _is_each(error: Exception, is_such: Callable[[Exception], bool]) -> bool:
    """Return True if `is_such` holds for an error; for an error of each host, if it holds for all of them."""
    if not isinstance(error, NoHostAvailable):
        return is_such(error)
    errors = of_each_host(error)
    return bool(errors) and all(map(is_such, errors))


def of_each_host(error: NoHostAvailable) -> list[Exception]:
    """Return the error of each host; none where the driver names addresses alone, as it opens a session."""
    return list(error.errors.values()) if isinstance(error.errors, dict) else []


_LOST_S = 10.0
"""How much later than its timeout a request may end; a busy process is late by less."""


def longest_s(request_timeout: float) -> float:
    """Return after how many seconds a request that has not ended counts as lost."""
    return request_timeout + _LOST_S


def execute(
    session: Any,
    statement: Any,
    values: Any,
    *,
    profile: str,
    timeout_s: float,
) -> Any:
    """Send a request and return its result, as `session.execute` does.

    :param timeout_s: after which it counts as lost, see `longest_s`.
    :raises OperationTimedOut: the driver has not ended it; it may have had its effect, or have it later.
    """
    future = session.execute_async(statement, values, execution_profile=profile)
    ended = threading.Event()
    future.add_callbacks(lambda _rows: ended.set(), lambda _error: ended.set())
    if not ended.wait(timeout_s):
        raise OperationTimedOut(f"the driver did not end a request within {timeout_s:.0f} s")
    return future.result()


CREATE_S = 60.0
"""How long the nodes have to create a table: all have to agree on it, which takes longer than a row."""


def create_table(session: Any, statement: str, name: object, kind: str = "Table") -> None:
    """Send a CREATE TABLE, and wait until the nodes agree on it.

    :param kind: of table, as an error begins with it.
    :raises SchemaMismatch: the role may not create it.
    :raises TargetUnavailable: it was created, but the nodes do not agree on it yet.
    """
    try:
        result = session.execute(statement, timeout=CREATE_S)
    except Unauthorized as error:
        raise SchemaMismatch(
            f"{kind} {name} does not exist, and this role may not create it: {error}",
            f"Have it created:\n{statement};",
        ) from error
    if not result.response_future.is_schema_agreed:
        raise TargetUnavailable(
            f"The nodes do not agree yet that {name} was created.",
            "See that all nodes are up (nodetool describecluster), and start again.",
        )


PATIENCE_S = 10.0
"""Seconds without any acknowledgement after which a request's error is raised.

Short, because the flusher goes on trying for as long as it takes, and can report meanwhile why. But a cluster
that still acknowledges a request now and then is slow and not away: giving up on it would write again all
that it has taken, and make it slower.
"""


def retrying(patience_s: float = PATIENCE_S) -> tenacity.Retrying:
    """Repeat a call with growing, random pauses, until it succeeds, its error will not pass or time is up."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_worth_repeating),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
        stop=tenacity.stop_after_delay(patience_s),
        reraise=True,
    )


def is_worth_repeating(error: BaseException) -> bool:
    """Return True if the same request may succeed within seconds."""
    if isinstance(error, WalSinkError) or not isinstance(error, Exception):
        return False  # an error of ours has the result of such attempts
    return not _is_invalid(error) and classify(error) != "fatal"
