"""Looks at the server before anything is written: refuses an unfit one, and logs what will surprise.

The answers of Amazon Keyspaces, Azure Cosmos DB and Scylla are those that others have recorded.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Iterator
from typing import Any

from cassandra import InvalidRequest, Unauthorized

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.features import FEATURES
from wal_sink.targets.cassandra.options import CassandraOptions, login
from wal_sink.targets.cassandra.row_options import IF_NOT_EXISTS
from wal_sink.targets.cassandra.schema.table import OLD_ROWS, SETTINGS, Server
from wal_sink.targets.names import quote

log = logging.getLogger(__name__)

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
    names = ", ".join(f"'{name}'" for name in SETTINGS)
    query = f"SELECT name, value FROM system_views.settings WHERE name IN ({names})"  # noqa: S608 -- constants
    try:
        return {row.name: row.value for row in session.execute(query)}
    except (InvalidRequest, Unauthorized):
        return None


def _tablets(session: Any) -> dict[str, int]:
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
_USE = "Write to Apache Cassandra, Astra or Scylla, or to a target of your own: `wal-sink new-target NAME`."


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
    for feature in FEATURES:
        feature.refuse_server(server, options)


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
