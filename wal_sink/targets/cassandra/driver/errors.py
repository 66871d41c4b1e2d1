"""Classifies exceptions of the driver, and sends requests with a deadline.

`classify` says what an exception means for rows, and `effect_unknown` what it means for the ledger.

The driver ends each request by its answer or by a timer. One thread of the driver does both. If that thread
stalls or has died, no request ends (3.30.1), and a flusher that waits without a deadline would never report
or connect again.
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
    PreparedQueryNotFound,
    ProtocolError,
    ProtocolException,
    ProtocolVersionUnsupported,
    ServerError,
    SyntaxException,
)

_FATAL = (
    AuthenticationFailed,
    InvalidRequest,
    Unauthorized,
    ConfigurationException,  # AlreadyExists
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
    PreparedQueryNotFound,
    ServerError,
    UnresolvableContactPoints,
)


def classify(error: Exception) -> ErrorClass:
    """Return "retry" to try again at once, "throttle" to slow down first, "fatal" to stop the flush.

    Rows are idempotent, so an error that may pass is worth another try. An unknown error is fatal: a bug
    must not be retried forever.
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


def is_overload(error: Exception) -> bool:
    """Return True if the cluster is overloaded: it reports so, or did not answer in time."""
    is_slow = classify(error) == "throttle" or isinstance(error, Timeout | OperationTimedOut)
    return is_slow and not was_not_sent(error)


def was_not_sent(error: Exception) -> bool:
    """Return True if the driver refused a request because the send buffer of the socket is full.

    The buffer is full whenever requests are made faster than the network takes them. That says nothing about
    the cluster.
    """
    return _is_every_cause(error, lambda cause: isinstance(cause, ConnectionBusy))


def is_refused(error: Exception) -> bool:
    """Return True if the server refuses a request for the content of its rows.

    A failure while a replica writes is not a refusal (`WriteFailure`, mostly of reason UNKNOWN, and
    `ServerError`): a full disk, a full CDC space and an overload cause the same errors as a value that an
    index cannot take.
    """
    return _is_invalid(error) and not _is_of_a_node(error)


_OF_A_NODE = re.compile(
    r"""(?:^|message=["'])"""
    r"(?:unconfigured table |(?:keyspace|table) \S+ (?:does not|doesn't) exist|undefined column name )"
    r"|disk usage exceeds",
    re.IGNORECASE,
)
"""The messages of Cassandra 3.11 to 5.0 if a coordinator lacks keyspace, table or column
(`Schema.validateTable`, `TableMetadata.getExistingColumn`, CREATE), and of the guardrail for a full disk."""


def _is_of_a_node(error: Exception) -> bool:
    """Return True if a request is invalid only in the present state of a node.

    The node may have just joined, lag behind a change of the schema, or lack disk space. The error does not
    concern the rows.
    """
    return _is_invalid(error) and _OF_A_NODE.search(str(error)) is not None


def _is_invalid(error: Exception) -> bool:
    return _is_every_cause(error, lambda cause: isinstance(cause, InvalidRequest))


def effect_unknown(error: Exception) -> bool:
    """Return True if a conditional update that raised `error` may have an effect, now or later.

    A coordinator may raise `Unavailable` for the commit, after the proposal was accepted. Every error of a
    server that has started to work is such an error. `NoHostAvailable` is not: the driver repeats nothing
    (`connection`), so no request was sent.
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
    """Return the class of a `NoHostAvailable`: fatal only if the error of every host is fatal."""
    if _is_every_cause(error, lambda cause: isinstance(cause, _FATAL)):
        return "fatal"
    return (
        "throttle"
        if _is_every_cause(error, lambda cause: isinstance(cause, _THROTTLE))
        else "retry"
    )


def _is_every_cause(error: Exception, predicate: Callable[[Exception], bool]) -> bool:
    """Return True if a predicate holds for an error, or for the errors of all hosts."""
    if not isinstance(error, NoHostAvailable):
        return predicate(error)
    errors = of_each_host(error)
    return bool(errors) and all(map(predicate, errors))


def of_each_host(error: NoHostAvailable) -> list[Exception]:
    """Return the error of each host; none if the driver reports only addresses."""
    return list(error.errors.values()) if isinstance(error.errors, dict) else []


_LOST_S = 10.0
"""Seconds after its timeout at which a request counts as lost. A busy process is late by less."""


def longest_s(request_timeout: float) -> float:
    """Return the seconds after which a request that has not ended counts as lost."""
    return request_timeout + _LOST_S


def execute(
    session: Any,
    statement: Any,
    values: Any,
    *,
    profile: str,
    timeout_s: float,
) -> Any:
    """Send a request, and return its result as `session.execute` does.

    :param timeout_s: seconds after which the request counts as lost, see `longest_s`.
    :raises OperationTimedOut: the driver has not ended the request. It may have an effect, now or later.
    """
    future = session.execute_async(statement, values, execution_profile=profile)
    ended = threading.Event()
    future.add_callbacks(lambda _rows: ended.set(), lambda _error: ended.set())
    if not ended.wait(timeout_s):
        raise OperationTimedOut(f"the driver did not end a request within {timeout_s:.0f} s")
    return future.result()


CREATE_S = 60.0
"""Seconds that the nodes have to create a table. All nodes have to agree, which takes longer than a row."""


def create_table(session: Any, statement: str, name: object, kind: str = "Table") -> None:
    """Send a CREATE TABLE, and wait until the nodes agree on the table.

    :param kind: the first words of an error, such as "Table".
    :raises SchemaMismatch: the role may not create the table.
    :raises TargetUnavailable: the table was created, but the nodes do not agree on it yet.
    """
    try:
        result = session.execute(statement, timeout=CREATE_S)
    except Unauthorized as error:
        raise SchemaMismatch(
            f"{kind} {name} does not exist, and this role may not create it: {error}",
            f"Let a role with the permission CREATE run:\n{statement};",
        ) from error
    if not result.response_future.is_schema_agreed:
        raise TargetUnavailable(
            f"The nodes do not agree yet that {name} was created.",
            "Check that all nodes are up (nodetool describecluster), and start again.",
        )


PATIENCE_S = 10.0
"""Seconds without any acknowledgement after which the error of a request is raised.

The flusher tries again forever, and reports the error meanwhile, so patience can be short. But a cluster
that acknowledges a request now and then is slow and not down: after an error the whole window would be
written again, and make the cluster slower."""


def retrying(patience_s: float = PATIENCE_S) -> tenacity.Retrying:
    """Repeat a call, after growing and random pauses.

    It ends when the call succeeds, when its error will not pass, or when time is up.
    """
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(is_worth_repeating),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
        stop=tenacity.stop_after_delay(patience_s),
        reraise=True,
    )


def is_worth_repeating(error: BaseException) -> bool:
    """Return True if the same request may succeed within seconds."""
    if isinstance(error, WalSinkError) or not isinstance(error, Exception):
        return False  # raised after repeated tries
    return not _is_invalid(error) and classify(error) != "fatal"
