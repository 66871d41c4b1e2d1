"""The meaning of each exception of the driver, for rows and for conditional updates."""

from __future__ import annotations

import cassandra
import pytest
from cassandra.cluster import NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException, ConnectionShutdown
from cassandra.pool import NoConnectionsAvailable
from cassandra.protocol import (
    ErrorMessage,
    IsBootstrappingErrorMessage,
    OverloadedErrorMessage,
    PreparedQueryNotFound,
    ProtocolException,
    ServerError,
    SyntaxException,
)

from wal_sink.errors import InvalidRow, SchemaMismatch, TargetUnavailable
from wal_sink.targets.base import ErrorClass
from wal_sink.targets.cassandra.driver.errors import classify, effect_unknown, was_not_sent

CAS_UNKNOWN = ErrorMessage(0x1700, "CAS result unknown", None)
OVERLOADED = OverloadedErrorMessage(0x1001, "busy", None)
AUTH = cassandra.AuthenticationFailed("bad password")


def of_hosts(*errors: Exception) -> NoHostAvailable:
    """Return the driver's error for the errors of several hosts."""
    return NoHostAvailable("none", {f"host {i}": error for i, error in enumerate(errors)})


@pytest.mark.parametrize(
    ("error", "kind", "unknown"),
    [
        (cassandra.WriteTimeout("", write_type=0), "retry", True),
        (cassandra.WriteTimeout("", write_type=cassandra.WriteType.CAS), "retry", True),
        (cassandra.ReadTimeout(""), "retry", True),
        (cassandra.WriteFailure(""), "retry", True),
        (cassandra.ReadFailure(""), "retry", True),
        (cassandra.Unavailable(""), "retry", True),
        (cassandra.OperationTimedOut({}, None), "retry", True),
        (ConnectionException("lost"), "retry", True),
        (ConnectionShutdown("lost"), "retry", True),
        (ServerError(0, "NullPointerException", None), "retry", True),
        (CAS_UNKNOWN, "retry", True),
        (cassandra.CDCWriteFailure("full"), "throttle", True),
        (OVERLOADED, "throttle", False),
        (ConnectionBusy("full"), "throttle", False),
        (IsBootstrappingErrorMessage(0x1002, "", None), "retry", False),
        (cassandra.UnresolvableContactPoints({}), "retry", False),
        (PreparedQueryNotFound(0x2500, "forgotten", None), "retry", False),
        (cassandra.InvalidRequest("no such column"), "fatal", False),
        (cassandra.Unauthorized("no"), "fatal", False),
        (cassandra.AlreadyExists("ks", "t"), "fatal", False),
        (SyntaxException(0x2000, "", None), "fatal", False),
        (ProtocolException(0x000A, "", None), "fatal", False),
        (AUTH, "fatal", False),
        (ErrorMessage(0x7777, "never seen", None), "fatal", False),
        (cassandra.DriverException("ID mismatch while trying to reprepare"), "fatal", False),
        (ValueError("a bug"), "fatal", False),
        (SchemaMismatch("gone"), "fatal", False),
        (InvalidRow("null"), "fatal", False),
        (TargetUnavailable("later"), "retry", False),
    ],
)
def test_each_driver_error_is_classified_by_kind_and_effect(
    error: Exception, kind: ErrorClass, unknown: bool
) -> None:
    assert classify(error) == kind
    assert effect_unknown(error) is unknown


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([], "retry"),
        ([ConnectionRefusedError(111, "refused")], "retry"),
        ([Exception("whatever a host said")], "retry"),
        ([AUTH, AUTH], "fatal"),
        ([AUTH, ConnectionRefusedError(111, "refused")], "retry"),
        ([ProtocolException(0x000A, "", None)], "fatal"),
        ([NoConnectionsAvailable(), ConnectionBusy("full")], "throttle"),
        ([NoConnectionsAvailable(), ConnectionException("down")], "retry"),
    ],
)
def test_error_of_several_hosts_has_their_error_class(
    errors: list[Exception], kind: ErrorClass
) -> None:
    """The error is fatal only if the errors of all hosts are fatal.

    A request that no host accepted had no effect.
    """
    error = of_hosts(*errors)
    assert classify(error) == kind
    assert effect_unknown(error) is False


@pytest.mark.parametrize(
    ("error", "unsent"),
    [
        (ConnectionBusy("full"), True),
        (cassandra.OperationTimedOut({}, None), False),
        (of_hosts(ConnectionBusy("full"), ConnectionBusy("full")), True),
        (of_hosts(ConnectionBusy("full"), ConnectionException("lost")), False),
        (of_hosts(NoConnectionsAvailable()), False),
        (of_hosts(), False),
    ],
)
def test_request_is_unsent_only_if_all_sockets_are_full(error: Exception, *, unsent: bool) -> None:
    assert was_not_sent(error) is unsent
