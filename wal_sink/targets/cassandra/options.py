"""The options of the Cassandra target.

A secret is in an option or in an environment variable, and the option has precedence. The environment is read
at each connection, so a secret in the environment can change while a query runs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from wal_sink.errors import OptionError
from wal_sink.options import (
    BYTES,
    CONNECTS,
    SECONDS,
    SECRET,
    SHAPES,
    about,
    fields,
    from_environment,
    json_pairs,
    marked,
)
from wal_sink.targets.cassandra.row_plan import MAX_TTL_S, TableName
from wal_sink.targets.ddl import CREATE_TABLE, KEY_COLUMNS, PARTITION_COLUMNS, Layout
from wal_sink.targets.operation_options import OPERATION_COLUMN, OperationOptions

LEDGER_TABLE = "wal_sink_ledger"
COLUMNS_OPTION = "cassandra.columns"
WRITE_MODE = "cassandra.writeMode"
TTL = "cassandra.ttl"
TTL_COLUMN = "cassandra.ttlColumn"
EXPIRES_AT_COLUMN = "cassandra.expiresAtColumn"
TIMESTAMP_COLUMN = "cassandra.timestampColumn"
BUNDLE = "cassandra.secureConnectBundle"

TO_CORRECT = "Check that the tables exist, and that the role has the permissions it needs."
"""The remedy if the server refuses a statement."""
TO_REACH = "Repair the cluster, and try again."
"""The remedy if the cluster does not answer."""

_EXCLUSIVE = (
    ("cassandra.contactPoints", BUNDLE),
    ("cassandra.ssl.", BUNDLE),
    (TTL_COLUMN, TTL),
    (EXPIRES_AT_COLUMN, TTL),
    (EXPIRES_AT_COLUMN, TTL_COLUMN),
)
"""Pairs of options that exclude each other. The first text may be the begin of several names."""
_DEPENDENT = (
    ("cassandra.ssl.", "cassandra.ssl.enabled"),
    ("cassandra.ssl.clientKey", "cassandra.ssl.clientCertificate"),
)
"""Pairs of options: the first has no effect without the second. The first text may be the begin of several
names."""


class CassandraOptions(OperationOptions, frozen=True, kw_only=True):
    """The options of the cluster, the connection, the table and the rows.

    :raises OptionError: an option is invalid, or contradicts another option.
    """

    keyspace: Annotated[
        str, about("Keyspace of the table, by its exact name", SHAPES, min_length=1)
    ]
    table: Annotated[str, about("Table to write to, by its exact name", SHAPES, min_length=1)]
    nulls: Annotated[
        Literal["unset", "write"],
        about(
            "unset: a null leaves the older value. write: a null clears it, by a tombstone", SHAPES
        ),
    ] = msgspec.field(name="cassandra.nulls", default="unset")
    columns: Annotated[
        str,
        about(
            'JSON object of columns with another name in the table, such as {"customerId":'
            ' "customer_id"}: the name in the DataFrame, then the name in the table',
            SHAPES,
        ),
    ] = msgspec.field(name=COLUMNS_OPTION, default="")
    write_mode: Annotated[
        Literal["insert", "update"],
        about(
            "insert: a row without values exists, too. update: a row exists as long as one of its values"
            " does",
            SHAPES,
        ),
    ] = msgspec.field(name=WRITE_MODE, default="insert")
    ttl: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_TTL_S)] | None,
        about(
            f"TTL of every row from when it was published, 1 to {MAX_TTL_S} seconds."
            " Default: none, or the default TTL of the table",
            SECONDS,
            SHAPES,
        ),
    ] = msgspec.field(name=TTL, default=None)
    ttl_column: Annotated[
        str, about("Column with the TTL of each row in seconds. It is not written", SHAPES)
    ] = msgspec.field(name=TTL_COLUMN, default="")
    expires_at_column: Annotated[
        str, about("Timestamp column with the time at which each row expires", SHAPES)
    ] = msgspec.field(name=EXPIRES_AT_COLUMN, default="")
    timestamp_column: Annotated[
        str,
        about(
            "Column with the time of the event: a timestamp, or a bigint of microseconds since 1970. Of"
            " two versions of a row the later event stays",
            SHAPES,
        ),
    ] = msgspec.field(name=TIMESTAMP_COLUMN, default="")
    contact_points: Annotated[
        str, about("Addresses of some of the nodes, comma-separated", CONNECTS)
    ] = msgspec.field(name="cassandra.contactPoints", default="")
    port: Annotated[
        int, about("Port of the native protocol, 1 to 65535", CONNECTS, ge=1, le=65535)
    ] = msgspec.field(name="cassandra.port", default=9042)
    secure_connect_bundle: Annotated[
        str, about("Path of a secure connect bundle, instead of cassandra.contactPoints", CONNECTS)
    ] = msgspec.field(name=BUNDLE, default="")
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
        str, about("Datacenter to write in. Default: the only datacenter")
    ] = msgspec.field(name="cassandra.localDatacenter", default="")
    consistency_level: Annotated[
        Literal["ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "LOCAL_ONE"],
        about(
            "Consistency level of rows and ledger. Not ANY: a hint that can expire would count as a row"
        ),
    ] = msgspec.field(name="cassandra.consistencyLevel", default="LOCAL_QUORUM")
    serial_consistency_level: Annotated[
        Literal["SERIAL", "LOCAL_SERIAL"], about("Serial consistency level of the ledger")
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
        about("Most requests in flight: auto, or 1 to 1024. Fewer while the cluster is slow"),
    ] = msgspec.field(name="cassandra.concurrency", default="auto")

    def __post_init__(self) -> None:
        refuse_bad_name("keyspace", self.keyspace)
        _refuse_bad_table(self.table)
        for part in self.ledger:
            refuse_bad_name("cassandra.ledgerTable", part)
        _ = self.words, self.column_names  # refuse a list that is not well-formed
        layout = self.layout
        if self.create_table:
            primary_key(layout)
        self._refuse_contradictions()
        if not self.secure_connect_bundle:
            _refuse_bad_contact_points(self.contact_points, self.hosts)

    @property
    def hosts(self) -> tuple[str, ...]:
        """The separate names or addresses in `cassandra.contactPoints`."""
        points = (point.strip() for point in self.contact_points.split(","))
        return tuple(point for point in points if point)

    @property
    def where(self) -> str:
        """The name of the cluster in messages: the contact points or the bundle."""
        return self.contact_points or self.secure_connect_bundle

    @property
    def data(self) -> TableName:
        """The table to write to."""
        return TableName(self.keyspace, self.table)

    @property
    def ledger(self) -> TableName:
        """The ledger's table."""
        keyspace, dot, table = self.ledger_table.rpartition(".")
        return TableName(keyspace if dot else self.keyspace, table or LEDGER_TABLE)

    @property
    def column_names(self) -> Mapping[str, str]:
        """The table's names of renamed columns, by the DataFrame's names."""
        return read_columns(self.columns)

    @property
    def controls(self) -> dict[str, str]:
        """The control columns, by the options that name them."""
        columns = {
            OPERATION_COLUMN: self.operation_column,
            TTL_COLUMN: self.ttl_column,
            EXPIRES_AT_COLUMN: self.expires_at_column,
            TIMESTAMP_COLUMN: self.timestamp_column,
        }
        return {option: column for option, column in columns.items() if column}

    def _refuse_contradictions(self) -> None:
        names = {
            option.name
            for option in fields(type(self))
            if getattr(self, option.field) not in (option.default, "")
        }
        for begin, other in _EXCLUSIVE:
            if other in names and (name := _first(names, begin)):
                raise OptionError(
                    f"Option {name} is given beside {other}, and only one of the two can be used.",
                    "Keep one of them.",
                )
        for begin, other in _DEPENDENT:
            if other not in names and (name := _first(names, begin)):
                raise OptionError(
                    f"Option {name} is given without {other}, and would have no effect.",
                    f"Set {other}, too, or leave out {name}.",
                )
        options: dict[str, str] = {}
        for option, column in self.controls.items():
            if (other := options.setdefault(column, option)) != option:
                raise OptionError(
                    f"Options {other} and {option} both name column {column}.",
                    "Name a column for each of them.",
                )


def _first(names: set[str], begin: str) -> str:
    return next((name for name in sorted(names) if name.startswith(begin)), "")


def primary_key(layout: Layout) -> Layout:
    """Return the primary key of a new table, with the partition key first.

    Without `partitionColumns`, the partition key is the first column of `keyColumns`.

    :raises OptionError: the key is empty, or lacks a column of the partition key.
    """
    key, partition = layout.key, layout.partition or layout.key[:1]
    if not key:
        raise OptionError(
            f"Option {CREATE_TABLE} is true and {KEY_COLUMNS} names no column: a table of Cassandra has a"
            " primary key.",
            f"List the columns of the primary key in {KEY_COLUMNS}. If the partition key is not the first of"
            f" them alone, list its columns in {PARTITION_COLUMNS}.",
        )
    if lacking := [name for name in partition if name not in key]:
        raise OptionError(
            f"Option {PARTITION_COLUMNS} names {lacking[0]}, and {KEY_COLUMNS} does not.",
            f"List in {KEY_COLUMNS} all columns of the primary key, including those of the partition key.",
        )
    return Layout((*partition, *(name for name in key if name not in partition)), partition)


_EXAMPLE = f'{COLUMNS_OPTION}={{"customerId": "customer_id"}}'


def read_columns(text: str) -> Mapping[str, str]:
    """Parse `cassandra.columns`: return the table's names of renamed columns, by the DataFrame's names.

    :raises OptionError: the text is invalid, or two columns are written to one.
    """
    if not text.strip():
        return {}
    columns: dict[str, str] = {}
    for name, column in json_pairs(COLUMNS_OPTION, text, _EXAMPLE):
        if not isinstance(column, str) or not name or not column:
            raise OptionError(
                f"Option {COLUMNS_OPTION} writes {name!r} to {column!r}, which cannot be a name.",
                f"Write it as {_EXAMPLE}: the DataFrame's name, then the table's.",
            )
        if column in columns.values():
            raise OptionError(
                f"Option {COLUMNS_OPTION} has two columns that are written to {column!r}.",
                "Drop one of the two columns, or write both as one column by coalesce.",
            )
        columns[name] = column
    return {name: column for name, column in columns.items() if name != column}


def _refuse_bad_table(table: str) -> None:
    if "." in table:
        keyspace, _, name = table.partition(".")
        raise OptionError(
            f"Option table contains a keyspace: {table}.",
            f'Write .option("keyspace", "{keyspace}").option("table", "{name}").',
        )
    refuse_bad_name("table", table)


def refuse_bad_name(option: str, name: str) -> None:
    """Refuse a name that a keyspace or a table cannot have.

    :raises OptionError: Cassandra does not allow the name.
    """
    if not re.fullmatch(r"[A-Za-z0-9_]{1,222}", name):
        raise OptionError(
            f"Option {option}: {name!r} cannot be a name in Cassandra.",
            "Names of keyspaces and tables are letters, digits and underscores; write the exact "
            "name, without quotes. A table's keyspace is in option keyspace.",
        )


_COSMOS = re.compile(r"\.cosmos\.(azure\.com|azure\.cn|azure\.us)$")


def _refuse_bad_contact_points(text: str, hosts: tuple[str, ...]) -> None:
    if not hosts:
        problem = "names no host" if text.strip() else "is missing"
        raise OptionError(
            f"Option cassandra.contactPoints {problem}.",
            'Add .option("cassandra.contactPoints", …): addresses of some of the nodes, comma-separated;'
            f" or {BUNDLE}.",
        )
    if any(_COSMOS.search(host) for host in hosts):
        raise OptionError(
            "Option cassandra.contactPoints names Azure Cosmos DB, which is not supported: it keeps one write"
            " timestamp for a row and not one for each cell, so a late row could clear values of a newer row"
            " in other columns.",
            "Write to Apache Cassandra, Astra or Scylla, or to a target of your own.",
        )
    # One colon is host:port, and an IPv6 address has several. The error does not repeat the text, which may
    # contain a password.
    if any(re.search(r"^[^:\[\]]*:\d*$|[\[\]@/ ]", host) for host in hosts):
        raise OptionError(
            "Option cassandra.contactPoints has a part that is not a name or address of a host.",
            "Give names or addresses alone, comma-separated. The port goes into cassandra.port, and the login"
            " into cassandra.username and cassandra.password.",
        )


ENVIRONMENT = {field: str(name) for field, name in marked(CassandraOptions, "environment").items()}
"""Environment variables of options, by the option's field in `CassandraOptions`."""


class Login(NamedTuple):
    """The name of a role, and its password."""

    username: str
    password: str


def with_environment(options: CassandraOptions) -> CassandraOptions:
    """Fill the options for login and TLS that are not set from environment variables of this process."""
    values = {
        field: value
        for field, variable in ENVIRONMENT.items()
        if not getattr(options, field) and (value := os.environ.get(variable))
    }
    if not options.ssl_client_certificate:
        values.pop("ssl_client_key_password", None)  # there is no key
    return msgspec.structs.replace(options, **values) if values else options


def login(options: CassandraOptions) -> Login | None:
    """Return the login of a new connection; None for a cluster without authentication.

    :raises OptionError: the role or its password is missing.
    """
    now = with_environment(options)
    for half, missing in (("username", "password"), ("password", "username")):
        if getattr(now, half) and not getattr(now, missing):
            raise OptionError(
                f"There is a cassandra.{half} without cassandra.{missing}.",
                f"Give the option cassandra.{missing}, or set {ENVIRONMENT[missing]} where the flusher"
                " runs. For a cluster without authentication leave out both.",
            )
    return Login(now.username, now.password) if now.username else None
