"""Connects to a cluster. The driver's own retries and speculative requests are turned off.

Each call of `connect` reads the files for TLS, so files may be renewed.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import zipfile
from collections.abc import Iterable, Iterator
from typing import Any, Self

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    UnresolvableContactPoints,
)
from cassandra.auth import AuthProvider, PlainTextAuthenticator
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.policies import (
    DCAwareRoundRobinPolicy,
    ExponentialReconnectionPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)

from wal_sink.errors import OptionError, TargetUnavailable, WalSinkError
from wal_sink.options import VARIABLE_IS_READ
from wal_sink.targets.cassandra.driver.errors import of_each_host
from wal_sink.targets.cassandra.driver.internals import (
    ConnectionException,
    WideConnection,
)
from wal_sink.targets.cassandra.options import (
    ENVIRONMENT,
    CassandraOptions,
    login,
    with_environment,
)


def tls_context(options: CassandraOptions) -> ssl.SSLContext | None:
    """Return the TLS context of the options; None if TLS is off.

    :raises OptionError: a file is missing, unreadable or invalid.
    """
    if not options.ssl_enabled:
        return None
    authority, certificate = options.ssl_ca_certificate, options.ssl_client_certificate
    using = f"cassandra.ssl.caCertificate: {authority}"
    try:
        context = ssl.create_default_context(cafile=authority or None)
        context.check_hostname = options.ssl_check_hostname
        if certificate:
            key = options.ssl_client_key
            using = f"cassandra.ssl.clientCertificate: {certificate} and {key or 'the key in it'}"
            # Without a password for an encrypted key, OpenSSL would prompt at the terminal.
            password = with_environment(options).ssl_client_key_password or "no password given"
            context.load_cert_chain(certificate, key or None, password)
    except (ssl.SSLError, OSError) as error:
        raise OptionError(
            f"Option {using} cannot be used: {error}",
            "Name readable PEM files that exist on the driver and on every executor. Certificate chain and"
            " key have to belong together, and an encrypted key needs"
            " cassandra.ssl.clientKeyPassword.",
        ) from error
    return context


ROWS = "rows"
"""The execution profile of rows and of the ledger's updates, with the consistency levels of the options."""
LEDGER_READ = "ledger read"
"""The execution profile of the ledger's reads, at the serial consistency level. Such a read returns all
acknowledged updates."""

_CERTIFICATE = ("certificate", "CERTIFICATE", "unknown ca", "UNKNOWN_CA")
"""Words in OpenSSL's errors about certificates. Some of these errors have no exception type."""

_UNCHECKED = "Unable to perform authentication"
"""Words in the error of a node that cannot read the roles now, so it has not checked the login."""

_DRIVER_LOG = logging.getLogger("cassandra.cluster")

_OLDEST_PROTOCOL = 4
"""The first version of the native protocol with unset values."""

_SILENT_S = 5
"""Seconds until the driver sends a heartbeat to a silent node, and seconds until the driver then closes the
connection.

While the send buffer of one connection is full, the sink sends nothing to any node (`internals.can_send`).
With the driver's default of 30 s, a node that hangs would stop all writes for a minute."""


class Connection:
    """A connected session of the driver, with the execution profiles `ROWS` and `LEDGER_READ`."""

    def __init__(self, cluster: Any, session: Any, datacenter: str) -> None:
        self._cluster = cluster
        self.session = session
        self.datacenter = datacenter
        """The local datacenter."""

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
    :raises OptionError: the login or a certificate is refused, or `cassandra.localDatacenter` is missing.
    """
    with _without_driver_log():
        cluster = _cluster(options)
        try:
            session = _open(cluster, options)
            datacenter = choose_datacenter(options.local_datacenter, _datacenters(cluster))
            if cluster.protocol_version < _OLDEST_PROTOCOL:
                raise OptionError(
                    f"The cluster at {options.where} speaks native protocol "
                    f"{cluster.protocol_version}, which cannot leave a column unset.",
                    "Use Cassandra 4 or later.",
                )
        except BaseException:
            cluster.shutdown()
            raise
        return Connection(cluster, session, datacenter)


@contextlib.contextmanager
def _without_driver_log() -> Iterator[None]:
    """Drop the driver's log records of this thread. `connect` raises an error with the same content.

    For each try the driver logs two tracebacks, and a flusher tries tens of thousands of times in an outage
    of a weekend.
    """
    connecting = threading.get_ident()

    def is_of_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != connecting

    _DRIVER_LOG.addFilter(is_of_another_thread)
    try:
        yield
    finally:
        _DRIVER_LOG.removeFilter(is_of_another_thread)


def choose_datacenter(option: str, datacenters: Iterable[str]) -> str:
    """Return the local datacenter.

    :param option: the datacenter that the option names; empty if the option is not set.
    :param datacenters: the datacenters of the cluster.
    :raises OptionError: the datacenter does not exist. Or the option is empty, and there are several.
    """
    known = sorted(datacenters)
    if option:
        if option not in known:
            raise OptionError(
                f"Option cassandra.localDatacenter is {option}, which the cluster does not have.",
                f"Use one of {', '.join(known)}; names are exact.",
            )
        return option
    if len(known) != 1:
        raise OptionError(
            f"The cluster has {len(known)} datacenters: {', '.join(known)}.",
            "Name the one to write in: .option("
            f'"cassandra.localDatacenter", "{known[0] if known else "…"}").',
        )
    return known[0]


def _profiles(options: CassandraOptions) -> dict[Any, Any]:
    data = ConsistencyLevel.name_to_value[options.consistency_level]
    serial = ConsistencyLevel.name_to_value[options.serial_consistency_level]

    def profile(consistency: int) -> Any:
        # A profile has no speculative requests by default. Two profiles must not share a policy instance.
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
        # For requests that read or change the schema. The keyspaces `system` and `system_schema` have one
        # replica on each node, so a read at TWO or THREE would be refused.
        EXEC_PROFILE_DEFAULT: profile(ConsistencyLevel.LOCAL_ONE),
        ROWS: profile(data),
        LEDGER_READ: profile(serial),
    }


class _Auth(AuthProvider):  # type: ignore[misc] # the driver has no types
    """Reads role and password at each connection, including connections that the driver opens by itself."""

    def __init__(self, options: CassandraOptions) -> None:
        self._options = options

    def new_authenticator(self, host: object) -> PlainTextAuthenticator:  # noqa: ARG002
        return PlainTextAuthenticator(*(login(self._options) or ("", "")))


def _address(options: CassandraOptions) -> dict[str, Any]:
    if path := options.secure_connect_bundle:
        return {"cloud": {"secure_connect_bundle": path}}
    return {
        "contact_points": list(options.hosts),
        "port": options.port,
        "ssl_context": tls_context(options),
    }


def _cluster(options: CassandraOptions) -> Any:
    address = _address(options)
    auth = _Auth(options) if login(options) else None
    try:
        return Cluster(
            **address,
            auth_provider=auth,
            execution_profiles=_profiles(options),
            # With the driver's default policy, a host would be given up after 64 attempts, in ten minutes.
            reconnection_policy=ExponentialReconnectionPolicy(0.5, 10, max_attempts=None),
            connect_timeout=options.request_timeout,
            control_connection_timeout=options.request_timeout,
            connection_class=WideConnection,
            compression=False,
            idle_heartbeat_interval=_SILENT_S,
            idle_heartbeat_timeout=_SILENT_S,
            monitor_reporting_enabled=False,
        )
    except UnresolvableContactPoints as error:
        raise _no_connection(OSError("none of these names has an address"), options) from error
    except Exception as error:
        if "cloud" not in address:
            raise
        if not zipfile.is_zipfile(options.secure_connect_bundle):
            raise OptionError(
                f"Option cassandra.secureConnectBundle: {options.secure_connect_bundle} is not a zip file:"
                f" {error}",
                "Put the bundle, as it was downloaded, at this path on driver and executors.",
            ) from error
        raise TargetUnavailable(
            f"No cluster is found by cassandra.secureConnectBundle {options.where}: {error!r}",
            "Check that driver and executors have the zip file as it was downloaded, that the database is"
            " awake, and that the bundle belongs to it and has not expired.",
        ) from error


def _open(cluster: Any, options: CassandraOptions) -> Any:
    try:
        return cluster.connect()
    except (NoHostAvailable, DriverException, ConnectionException, OSError) as error:
        # If the datacenter of the option does not exist, the driver connects to no host.
        if options.local_datacenter and (known := _datacenters(cluster)):
            choose_datacenter(options.local_datacenter, known)
        raise _no_connection(error, options) from error


def _datacenters(cluster: Any) -> set[str]:
    return {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}


def _no_connection(error: Exception, options: CassandraOptions) -> WalSinkError:
    causes = (isinstance(error, NoHostAvailable) and of_each_host(error)) or [error]
    for cause in causes:
        if isinstance(cause, AuthenticationFailed) and _UNCHECKED not in str(cause):
            return _no_login(cause, options)
        if any(word in str(cause) for word in _CERTIFICATE):
            return _no_trust(cause, options)
    texts = dict.fromkeys(f"{type(cause).__name__}: {cause}" for cause in causes)
    reasons = "; ".join(texts)
    return TargetUnavailable(
        f"No connection to Cassandra at {options.where}, port {options.port}: {reasons or error}",
        "Check that the nodes are up, that this host reaches them, and "
        f"cassandra.contactPoints and cassandra.port. {_about_tls(options, reasons)}",
    )


def _about_tls(options: CassandraOptions, reasons: str) -> str:
    if not options.ssl_enabled:
        return "If the cluster requires TLS, set cassandra.ssl.enabled."
    if "WRONG_VERSION_NUMBER" in reasons:
        return "The answer is not TLS: leave out cassandra.ssl.enabled, or correct cassandra.port."
    verb = "do not trust" if options.ssl_client_certificate else "require a"
    return f"Nodes that {verb} cassandra.ssl.clientCertificate close the connection."


def _no_login(cause: Exception, options: CassandraOptions) -> OptionError:
    role = login(options)
    variables = f"{ENVIRONMENT['username']} and {ENVIRONMENT['password']}"
    if role is None:
        return OptionError(
            f"The cluster at {options.where} requires a login.",
            f"Give cassandra.username and cassandra.password, or set {variables}.",
        )
    return OptionError(
        f"The cluster at {options.where} refuses the login of cassandra.username {role.username}: {cause}",
        f"Correct cassandra.username or cassandra.password, or the variables {variables}."
        f" {VARIABLE_IS_READ}",
    )


def _no_trust(cause: Exception, options: CassandraOptions) -> OptionError:
    return OptionError(
        f"TLS with the cluster at {options.where} is refused: {cause}",
        "If the nodes' certificate is refused: cassandra.ssl.caCertificate has to have its issuer, and with"
        " cassandra.ssl.checkHostname the certificate has to name its node's address. If the client's"
        " certificate is refused: set cassandra.ssl.clientCertificate and cassandra.ssl.clientKey to a pair"
        " that the nodes trust.",
    )
