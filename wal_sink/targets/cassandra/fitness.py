"""Looks at the server before anything is written: refuses an unfit one, and logs what will surprise.

The answers of Amazon Keyspaces, Azure Cosmos DB and Scylla are those that others have recorded.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.options import CassandraOptions, login
from wal_sink.targets.cassandra.row_options import IF_NOT_EXISTS
from wal_sink.targets.names import quote

log = logging.getLogger(__name__)

SETTINGS = (
    "minimum_timestamp_fail_threshold",
    "maximum_timestamp_fail_threshold",
    "user_timestamps_enabled",
    "write_consistency_levels_disallowed",
    "read_consistency_levels_disallowed",
    "column_value_size_fail_threshold",
    "collection_size_fail_threshold",
    "items_per_collection_fail_threshold",
    "data_disk_usage_percentage_fail_threshold",
    "sai_string_term_size_fail_threshold",
    "sai_frozen_term_size_fail_threshold",
    "sai_vector_term_size_fail_threshold",
    "storage_compatibility_mode",
)
"""The settings that decide whether rows are taken."""

_TABLETS_WITH_CONDITIONS = (2025, 4)
"""The first Scylla that takes conditional updates where a keyspace has tablets."""


class Server(NamedTuple):
    """A cluster, as the node that was asked describes it."""

    release_version: str
    """Of Cassandra; products that speak its protocol name a version that they are like."""
    cluster_name: str
    replication: Mapping[str, Mapping[str, str]]
    """By keyspace, as `system_schema.keyspaces` has it."""
    settings: Mapping[str, str | None] | None = None
    """Those of `SETTINGS` that the server has; None: it has no such table, or this role may not read it."""
    scylla_version: str = ""
    """Empty where it is not Scylla."""
    tablets: Mapping[str, int] = MappingProxyType({})
    """Scylla's keyspaces with tablets, and how many a table begins with."""

    def replicas(self, keyspace: str) -> dict[str, int]:
        """Return how many replicas each datacenter has; empty where a keyspace does not say it so."""
        counts = {
            name: factor.partition("/")[0]  # 3/1: one of the three is transient
            for name, factor in self.replication.get(keyspace, {}).items()
            if name not in ("class", "replication_factor")
        }
        return {name: int(n) for name, n in counts.items() if n.isdecimal() and int(n)}

    def why_no_conditions(self, keyspace: str) -> str:
        """Say why a keyspace takes no conditional updates; empty: it does."""
        version = tuple(map(int, re.findall(r"\d+", self.scylla_version)[:2]))
        if keyspace not in self.tablets or (version and version >= _TABLETS_WITH_CONDITIONS):
            return ""
        first = ".".join(map(str, _TABLETS_WITH_CONDITIONS))
        return (
            f"has tablets, and Scylla {self.scylla_version} refuses conditional updates there;"
            f" Scylla {first} is the first that takes them."
        )

    def serial_notices(
        self, options: CassandraOptions, keyspace: str, whose: str, what: str
    ) -> Iterator[str]:
        """Yield what conditional updates need of a keyspace in several datacenters.

        :param whose: the keyspace is, and what needs them, as the sentence has it.
        """
        replicas = self.replicas(keyspace)
        if options.serial_consistency_level != "SERIAL" or len(replicas) < 2:
            return
        total = sum(replicas.values())
        counts = ", ".join(f"{name} {count}" for name, count in sorted(replicas.items()))
        yield (
            f"Keyspace {keyspace} {whose}has {total} replicas in {len(replicas)} datacenters ({counts})."
            f" At cassandra.serialConsistencyLevel = SERIAL {what} needs {total // 2 + 1} of them, across"
            " datacenters: it is as slow as the way between them, and stops when too many are away, though"
            f" rows need {options.consistency_level} only. If the flushers of a query only ever run beside"
            " one datacenter, stop all of them and set LOCAL_SERIAL, everywhere the same."
        )


OLD_ROWS = (
    "Rows have the time at which their epoch was published: those that wait in the log for longer than that"
    " cannot be written any more. Take the threshold out, or set it to more than the longest outage that the"
    " log has to bridge, on every node, in cassandra.yaml or by JMX."
)
"""What minimum_timestamp_fail_threshold does to rows that wait, and the remedy."""


def is_too_old(error: Exception) -> bool:
    """Whether the server refuses a row for its timestamp, by minimum_timestamp_fail_threshold."""
    return "minimum" in str(error) and "timestamp" in str(error)


_SCYLLA = "scylla_local"
"""A table of `system` that only Scylla has."""


def read_server(session: Any) -> Server:
    """Ask a node what it is.

    :param session: the driver's session.
    :raises Exception: of the driver.
    """
    local = session.execute("SELECT release_version, cluster_name FROM system.local").one()
    keyspaces = session.execute("SELECT keyspace_name, replication FROM system_schema.keyspaces")
    server = Server(
        release_version=local.release_version or "",
        cluster_name=local.cluster_name or "",
        replication={row.keyspace_name: dict(row.replication or {}) for row in keyspaces},
        settings=_settings(session),
    )
    tables = session.execute(
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system'"
    )
    if _SCYLLA not in {row.table_name for row in tables}:
        return server
    version = session.execute("SELECT version FROM system.versions WHERE key = 'local'").one()
    return server._replace(
        scylla_version=version.version if version else "unknown", tablets=_tablets(session)
    )


def _settings(session: Any) -> dict[str, str | None] | None:
    from cassandra import InvalidRequest, Unauthorized  # noqa: PLC0415 -- not in tasks

    names = ", ".join(f"'{name}'" for name in SETTINGS)
    query = f"SELECT name, value FROM system_views.settings WHERE name IN ({names})"  # noqa: S608 -- constants
    try:
        return {row.name: row.value for row in session.execute(query)}
    except (InvalidRequest, Unauthorized):
        return None


def _tablets(session: Any) -> dict[str, int]:
    from cassandra import InvalidRequest  # noqa: PLC0415 -- not in tasks

    query = "SELECT keyspace_name, initial_tablets FROM system_schema.scylla_keyspaces"
    try:
        rows = list(session.execute(query))
    except InvalidRequest:
        return {}  # a version without tablets
    return {
        row.keyspace_name: row.initial_tablets for row in rows if row.initial_tablets is not None
    }


_KEYSPACES_SERVICE = ("Amazon Keyspaces", "system_schema_mcs")
"""The name of its cluster, and a keyspace that only it has."""
_COSMOS = ("cosmosprod", "3.11.0")
"""The name of its cluster, in lower case, and the version that it names."""
_COSMOS_HOSTS = re.compile(r"\.cosmos\.(azure\.com|azure\.cn|azure\.us)$")
_USE = "Write to Apache Cassandra, Astra or Scylla, or to a target of your own."


def refuse_unfit(server: Server, options: CassandraOptions) -> None:
    """Refuse a server on which the guarantees of a target cannot hold, or not with these keyspaces.

    :raises SchemaMismatch: names what the server lacks.
    """
    name, keyspace = _KEYSPACES_SERVICE
    if server.cluster_name == name or keyspace in server.replication:
        raise SchemaMismatch(
            f"The cluster at {options.where} is {name}, which is not supported: it takes no reads at SERIAL,"
            " by which the ledger is read, and write timestamps only in tables with client-side timestamps.",
            _USE,
        )
    told = (server.cluster_name.lower(), server.release_version)
    if told == _COSMOS or any(_COSMOS_HOSTS.search(host) for host in options.hosts):
        raise SchemaMismatch(
            f"The cluster at {options.where} is Azure Cosmos DB, which is not supported: it keeps one write"
            " timestamp for a row and not one for each cell, so a row that comes late could clear what a"
            " newer one has written to other columns.",
            _USE,
        )
    keyspace = options.ledger.keyspace
    if why := server.why_no_conditions(keyspace):
        raise SchemaMismatch(
            f"Keyspace {keyspace} of the ledger {why}",
            "Keep the ledger in a keyspace without tablets, and name it in cassandra.ledgerTable; the table"
            " itself may stay where it is:\n"
            f"CREATE KEYSPACE {quote(keyspace + '_ledger')} WITH replication = {{'class':"
            " 'NetworkTopologyStrategy', 'replication_factor': 3} AND tablets = {'enabled': false};",
        )


def notices(server: Server, options: CassandraOptions) -> Iterator[str]:
    """Yield what will surprise at some time: a sentence with its remedy each."""
    yield from server.serial_notices(
        options, options.ledger.keyspace, "of the ledger ", "each flush"
    )
    if options.if_not_exists:
        what = f"each row ({IF_NOT_EXISTS})"
        yield from server.serial_notices(options, options.keyspace, "", what)
    if options.consistency_level in ("ONE", "LOCAL_ONE"):
        yield (
            f"cassandra.consistencyLevel is {options.consistency_level}: a row counts as written when one"
            " replica has it, and is lost with that replica. LOCAL_QUORUM is what most want."
        )
    settings = server.settings or {}
    if oldest := settings.get("minimum_timestamp_fail_threshold"):
        yield (
            f"The server has minimum_timestamp_fail_threshold = {oldest}. Versions that look at batches, as"
            f" 5.0.9 does not, refuse older rows, except from superusers. {OLD_ROWS}"
        )
    if newest := settings.get("maximum_timestamp_fail_threshold"):
        yield (
            f"The server has maximum_timestamp_fail_threshold = {newest}. Versions that look at batches, as"
            " 5.0.9 does not, refuse rows that are as far ahead of its clock, except from superusers. Keep"
            " the clocks of the flusher's host and of the nodes together."
        )
    if settings.get("user_timestamps_enabled") == "false":
        yield (
            "The server refuses USING TIMESTAMP (user_timestamps_enabled = false), except from superusers;"
            " without it no row can be written exactly once. Set it to true on every node."
        )
    for doing, option, level in (
        ("write", "consistencyLevel", options.consistency_level),
        ("read", "serialConsistencyLevel", options.serial_consistency_level),
    ):
        name = f"{doing}_consistency_levels_disallowed"
        if level in re.findall(r"\w+", settings.get(name) or ""):
            yield (
                f"The server refuses {doing}s at {level} ({name}), except from superusers. Choose another"
                f" cassandra.{option}."
            )
    for name, what in _GUARDRAILS.items():
        if (value := settings.get(name)) not in (None, "", "-1"):
            yield f"The server has {name} = {value}: it refuses {what}, except from superusers."


_VALUES = "rows with larger ones, and the flush stops there with TargetRefused"
_GUARDRAILS = {
    "column_value_size_fail_threshold": f"{_VALUES}; the ledger's own values have up to 32 kB",
    "collection_size_fail_threshold": _VALUES,
    "items_per_collection_fail_threshold": _VALUES,
    "data_disk_usage_percentage_fail_threshold": "all rows for a node whose disk is fuller",
}
"""What further settings make the server refuse."""


def inspect_server(session: Any, options: CassandraOptions) -> Server:
    """Return what the server says of itself.

    :param session: the driver's session.
    :raises SchemaMismatch: rows cannot be written exactly once there.
    :raises Exception: of the driver.
    """
    server = read_server(session)
    refuse_unfit(server, options)
    for notice in notices(server, options):
        _say(logging.WARNING, notice)
    if server.settings is None and not server.scylla_version and (role := login(options)):
        _say(
            logging.INFO,
            "the server's limits cannot be read, and its defaults are taken for them; to see them at the"
            f" start: GRANT SELECT ON system_views.settings TO {quote(role.username)};",
        )
    return server


@functools.cache
def _say(level: int, text: str) -> None:
    """Log a text once in the life of the process: connections come and go."""
    log.log(level, "%s", text)
