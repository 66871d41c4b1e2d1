"""Declares the options of the Cassandra target: where the cluster is, and how it is spoken to.

Secrets come from options or the environment, and are read at each connection, so that they can be changed.
An option has precedence over the environment; to change it takes a restart.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.options import BYTES, CONNECTS, SECONDS, SECRET, about, from_environment, marked
from wal_sink.targets.cassandra.row_options import RowOptions, refuse_bad_name
from wal_sink.targets.cassandra.row_plan import TableName

LEDGER_TABLE = "wal_sink_ledger"


class CassandraOptions(RowOptions, frozen=True, kw_only=True):
    """Where the cluster is, how to connect, which table to write to, and what becomes of rows there.

    :raises OptionError: when constructed with a value that is invalid, or invalid beside another one.
    """

    contact_points: Annotated[
        str, about("Addresses of some of the nodes, comma-separated", CONNECTS)
    ] = msgspec.field(name="cassandra.contactPoints", default="")
    port: Annotated[
        int, about("Port of the native protocol, 1 to 65535", CONNECTS, ge=1, le=65535)
    ] = msgspec.field(name="cassandra.port", default=9042)
    secure_connect_bundle: Annotated[
        str, about("Path of a secure connect bundle, instead of cassandra.contactPoints", CONNECTS)
    ] = msgspec.field(name="cassandra.secureConnectBundle", default="")
    ssl_enabled: Annotated[bool, about("Whether to connect by TLS", CONNECTS)] = msgspec.field(
        name="cassandra.ssl.enabled", default=False
    )
    ssl_ca_certificate: Annotated[
        str, about("Path of the certificates to trust, PEM. Default: the system's", CONNECTS)
    ] = msgspec.field(name="cassandra.ssl.caCertificate", default="")
    ssl_client_certificate: Annotated[
        str, about("Path of the client's certificate chain, PEM", CONNECTS)
    ] = msgspec.field(name="cassandra.ssl.clientCertificate", default="")
    ssl_client_key: Annotated[
        str, about("Path of the client's key, PEM. Default: in the same file", CONNECTS)
    ] = msgspec.field(name="cassandra.ssl.clientKey", default="")
    ssl_client_key_password: Annotated[
        str,
        about(
            "Password of an encrypted key",
            SECRET,
            from_environment("WAL_SINK_CASSANDRA_SSL_CLIENT_KEY_PASSWORD"),
        ),
    ] = msgspec.field(name="cassandra.ssl.clientKeyPassword", default="")
    ssl_check_hostname: Annotated[
        bool, about("Whether the certificate of a node has to name its address", CONNECTS)
    ] = msgspec.field(name="cassandra.ssl.checkHostname", default=True)
    username: Annotated[
        str,
        about(
            "Role to log in as. Default: no login", from_environment("WAL_SINK_CASSANDRA_USERNAME")
        ),
    ] = msgspec.field(name="cassandra.username", default="")
    password: Annotated[
        str, about("Password of the role", SECRET, from_environment("WAL_SINK_CASSANDRA_PASSWORD"))
    ] = msgspec.field(name="cassandra.password", default="")
    request_timeout: Annotated[
        float, about("How long to wait for the answer to one request, above 0", SECONDS, gt=0)
    ] = msgspec.field(name="cassandra.requestTimeout", default=10.0)
    local_datacenter: Annotated[
        str, about("Datacenter to write in. Default: the only one there is")
    ] = msgspec.field(name="cassandra.localDatacenter", default="")
    consistency_level: Annotated[
        Literal["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE"],
        about(
            "Level of rows and ledger; not ANY, under which a hint that can expire counts as a row"
        ),
    ] = msgspec.field(name="cassandra.consistencyLevel", default="LOCAL_QUORUM")
    serial_consistency_level: Annotated[
        Literal["SERIAL", "LOCAL_SERIAL"], about("Level of the ledger's Paxos")
    ] = msgspec.field(name="cassandra.serialConsistencyLevel", default="SERIAL")
    ledger_table: Annotated[
        str, about(f"Table of the ledger. Default: <keyspace>.{LEDGER_TABLE}")
    ] = msgspec.field(name="cassandra.ledgerTable", default="")
    batch_bytes: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=1024, le=1024 * 1024)],
        about("Most bytes of a batch of one partition: auto, or 1024 to 1048576", BYTES),
    ] = msgspec.field(name="cassandra.batchBytes", default="auto")
    batch_rows: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=1, le=65_535)],
        about("Most rows of a batch: auto, or 1 to 65535"),
    ] = msgspec.field(name="cassandra.batchRows", default="auto")
    concurrency: Annotated[
        Literal["auto"] | Annotated[int, Meta(ge=1, le=1024)],
        about("Most requests in flight: auto, or 1 to 1024. Fewer while slow"),
    ] = msgspec.field(name="cassandra.concurrency", default="auto")

    def __post_init__(self) -> None:
        refuse_bad_name("keyspace", self.keyspace)
        RowOptions.__post_init__(self)
        if self.secure_connect_bundle:
            self._refuse_beside_a_bundle()
        else:
            _refuse_bad_contact_points(self.contact_points, self.hosts)
        self._refuse_half_of_tls()
        for part in self.ledger:
            refuse_bad_name("cassandra.ledgerTable", part)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The contact points."""
        points = (point.strip() for point in self.contact_points.split(","))
        return tuple(point for point in points if point)

    @property
    def where(self) -> str:
        """The contact points or the bundle, as messages name the cluster."""
        return self.contact_points or self.secure_connect_bundle

    @property
    def ledger(self) -> TableName:
        """The ledger's table."""
        keyspace, dot, table = self.ledger_table.rpartition(".")
        return TableName(keyspace if dot else self.keyspace, table or LEDGER_TABLE)

    def _refuse_beside_a_bundle(self) -> None:
        for name in self._begin_with("cassandra.contactPoints", "cassandra.ssl."):
            raise OptionError(
                f"Option {name} is given beside cassandra.secureConnectBundle, which says where the"
                " cluster is and how to connect by TLS.",
                f"Leave out {name}, or the bundle.",
            )

    def _refuse_half_of_tls(self) -> None:
        for name in self._begin_with("cassandra.ssl."):
            if not self.ssl_enabled:
                raise OptionError(
                    f"Option {name} is given without cassandra.ssl.enabled.",
                    "Set cassandra.ssl.enabled to true, or leave it out.",
                )
        for name in self._begin_with("cassandra.ssl.clientKey"):
            if not self.ssl_client_certificate:
                raise OptionError(
                    f"Option {name} is given without cassandra.ssl.clientCertificate.",
                    "Give both, or neither for a cluster that asks for no client certificate.",
                )

    def _begin_with(self, *prefixes: str) -> list[str]:
        """Return the names of given options that begin with one of `prefixes`."""
        return [name for name in self.given if name.startswith(prefixes)]


def _refuse_bad_contact_points(given: str, hosts: tuple[str, ...]) -> None:
    if not hosts:
        problem = "names no host" if given.strip() else "is missing"
        raise OptionError(
            f"Option cassandra.contactPoints {problem}.",
            'Add .option("cassandra.contactPoints", …): addresses of some of the nodes, comma-separated;'
            " or cassandra.secureConnectBundle.",
        )
    if "@" in given:  # not repeated: people put passwords before it
        raise OptionError(
            "Option cassandra.contactPoints holds a @, which no name of a host has.",
            "Give names or addresses alone, comma-separated; the login goes into cassandra.username and"
            " cassandra.password.",
        )
    for host in hosts:
        # One colon is host:port; an IPv6 address has more.
        if re.fullmatch(r"[^:\[\]]*:\d*|\[.*\].*", host) or "/" in host or " " in host:
            raise OptionError(
                f"Option cassandra.contactPoints: {host!r} is not the name or address of a host.",
                "Give names or addresses alone, comma-separated; the port goes into "
                "cassandra.port.",
            )


ENVIRONMENT = {field: str(name) for field, name in marked(CassandraOptions, "environment").items()}
"""The environment variables for options, by the option's field."""


class Login(NamedTuple):
    """Role and password."""

    username: str
    password: str


def with_environment(options: CassandraOptions) -> CassandraOptions:
    """Fill in what no option gives from this process's environment as it is now."""
    found = {
        field: value
        for field, variable in ENVIRONMENT.items()
        if not getattr(options, field) and (value := os.environ.get(variable))
    }
    if not options.ssl_client_certificate:
        found.pop("ssl_client_key_password", None)  # there is no key that it could open
    return msgspec.structs.replace(options, **found) if found else options


def login(options: CassandraOptions) -> Login | None:
    """Return the role and password to log in with now; None for a cluster without authentication.

    :raises OptionError: only one of them is given.
    """
    now = with_environment(options)
    for given, missing in (("username", "password"), ("password", "username")):
        if getattr(now, given) and not getattr(now, missing):
            raise OptionError(
                f"There is a cassandra.{given} without cassandra.{missing}.",
                f"Give the option cassandra.{missing}, or set {ENVIRONMENT[missing]} where the flusher"
                " runs; or neither of both for a cluster without authentication.",
            )
    return Login(now.username, now.password) if now.username else None
