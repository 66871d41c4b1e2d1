"""Cluster and session of the driver, set up so that nothing is retried or sent twice behind us."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any, Self

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    UnresolvableContactPoints,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)

from wal_sink.errors import OptionError, TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.targets.cassandra.classify import classify
from wal_sink.targets.cassandra.driver_internals import ConnectionException, ErrorMessage
from wal_sink.targets.cassandra.options import CassandraOptions

ROWS = "rows"
"""Execution profile of rows: the data's consistency level."""
LEDGER = "ledger"
"""Execution profile of conditional updates: the data's level, and the serial one."""
LEDGER_READ = "ledger read"
"""Execution profile of the ledger's reads: the serial level, which sees every acknowledged update."""

_OLDEST_PROTOCOL = 4
"""The first that has unset values: Cassandra 2.2."""


class Connection:
    """A session of the driver with the profiles above; close it, or threads stay behind.

    :param datacenter: the local one.
    """

    def __init__(self, cluster: Any, session: Any, datacenter: str) -> None:
        self._cluster = cluster
        self.session = session
        self.datacenter = datacenter

    def close(self) -> None:
        """Disconnect and end the driver's threads. Idempotent."""
        self._cluster.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(options: CassandraOptions) -> Connection:
    """Connect to the local datacenter.

    :raises TargetUnavailable: no contact point answers in time.
    :raises OptionError: login refused, or the datacenter has to be named.
    """
    cluster = _cluster(options)
    try:
        session = _open(cluster, options)
        datacenter = choose_datacenter(options.local_datacenter, _datacenters(cluster))
        if cluster.protocol_version < _OLDEST_PROTOCOL:
            raise OptionError(
                f"The cluster at {options.contact_points} speaks native protocol "
                f"{cluster.protocol_version}, which cannot leave a column unset.",
                "Use Cassandra 2.2 or later.",
            )
    except BaseException:
        cluster.shutdown()
        raise
    return Connection(cluster, session, datacenter)


@contextlib.contextmanager
def explained(options: CassandraOptions) -> Iterator[None]:
    """Turn what the driver raises inside, once connected, into errors of ours.

    :raises TargetUnavailable: it may pass.
    :raises TargetRefused: it will not.
    """
    try:
        yield
    except (NoHostAvailable, DriverException, ConnectionException, ErrorMessage) as error:
        what = f"Cassandra at {options.contact_points}: {type(error).__name__}: {error}"
        if classify(error) == "fatal":
            raise TargetRefused(
                what,
                "See that the tables are there and that the role "
                f"{options.username or '(no login)'} has the permissions it needs.",
            ) from error
        raise TargetUnavailable(what, "See to the cluster, and try again.") from error


def choose_datacenter(wanted: str, known: Iterable[str]) -> str:
    """Return the local datacenter: the one wanted, or the only one there is.

    :raises OptionError: it does not exist, or it is not named and there are several.
    """
    known = sorted(known)
    if wanted:
        if wanted not in known:
            raise OptionError(
                f"Option cassandra.localDatacenter is {wanted}, which the cluster does not have.",
                f"Use one of {', '.join(known)}; names are exact.",
            )
        return wanted
    if len(known) != 1:
        raise OptionError(
            f"The cluster has {len(known)} datacenters: {', '.join(known)}.",
            "Say in which one to write: .option("
            f'"cassandra.localDatacenter", "{known[0] if known else "…"}").',
        )
    return known[0]


def _profiles(options: CassandraOptions) -> dict[Any, Any]:
    data = ConsistencyLevel.name_to_value[options.consistency_level]
    serial = ConsistencyLevel.name_to_value[options.serial_consistency_level]

    def profile(consistency: int) -> Any:
        # No speculative execution is the default. A policy instance belongs to one profile.
        return ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(
                DCAwareRoundRobinPolicy(options.local_datacenter)
            ),
            retry_policy=FallthroughRetryPolicy(),
            consistency_level=consistency,
            serial_consistency_level=serial,
            request_timeout=options.request_timeout,
        )

    return {
        EXEC_PROFILE_DEFAULT: profile(data),
        ROWS: profile(data),
        LEDGER: profile(data),
        LEDGER_READ: profile(serial),
    }


def _cluster(options: CassandraOptions) -> Any:
    try:
        return Cluster(
            contact_points=list(options.hosts),
            port=options.port,
            auth_provider=PlainTextAuthProvider(options.username, options.password)
            if options.username
            else None,
            execution_profiles=_profiles(options),
            # The driver's default gives a host up after 64 attempts, ten minutes of an outage.
            reconnection_policy=ExponentialReconnectionPolicy(0.5, 10, max_attempts=None),
            connect_timeout=options.request_timeout,
            control_connection_timeout=options.request_timeout,
            monitor_reporting_enabled=False,
        )
    except UnresolvableContactPoints as error:
        raise _no_connection(error, options) from error


def _open(cluster: Any, options: CassandraOptions) -> Any:
    try:
        return cluster.connect()
    except (NoHostAvailable, DriverException, ConnectionException, OSError) as error:
        # A wrong datacenter shows as no host being left to talk to.
        if options.local_datacenter and (known := _datacenters(cluster)):
            choose_datacenter(options.local_datacenter, known)
        raise _no_connection(error, options) from error


def _datacenters(cluster: Any) -> set[str]:
    return {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}


def _no_connection(error: Exception, options: CassandraOptions) -> WalSinkError:
    causes = list(error.errors.values()) if isinstance(error, NoHostAvailable) else [error]
    if causes and all(isinstance(cause, AuthenticationFailed) for cause in causes):
        if not options.username:
            return OptionError(
                f"The cluster at {options.contact_points} wants a login.",
                "Give cassandra.username and cassandra.password.",
            )
        return OptionError(
            f"The cluster at {options.contact_points} refuses the login of cassandra.username "
            f"{options.username}: {causes[0]}",
            "Correct cassandra.username or cassandra.password.",
        )
    said = "; ".join(dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in causes))
    return TargetUnavailable(
        f"No connection to Cassandra at {options.contact_points}, port {options.port}: "
        f"{said or error}",
        "See that the nodes are up and that this host reaches them, and check "
        "cassandra.contactPoints and cassandra.port.",
    )
