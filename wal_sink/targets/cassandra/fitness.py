"""Refuses a server that would lose rows, before anything is written.

The answers of Amazon Keyspaces and Azure Cosmos DB are those that others have recorded.
"""

from __future__ import annotations

import functools
import logging
import re
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.options import CassandraOptions

log = logging.getLogger(__name__)

SETTING = "storage_compatibility_mode"
"""The setting that decides how late a row may expire."""


class Server(NamedTuple):
    """A cluster, as the node that was asked describes it."""

    release_version: str
    """Of Cassandra; products that speak its protocol name a version that they are like."""
    cluster_name: str
    keyspaces: frozenset[str]
    compatibility: str | None = None
    """The setting `storage_compatibility_mode`; None: the server has none, or this role may not read it."""


OLD_ROWS = (
    "Rows have the time at which their epoch was published: those that wait in the log for longer than that"
    " cannot be written any more. Take the threshold out, or set it to more than the longest outage that the"
    " log has to bridge, on every node, in cassandra.yaml or by JMX."
)
"""What minimum_timestamp_fail_threshold does to rows that wait, and the remedy."""


def is_too_old(error: Exception) -> bool:
    """Whether the server refuses a row for its timestamp, by minimum_timestamp_fail_threshold."""
    return "minimum" in str(error) and "timestamp" in str(error)


def read_server(session: Any) -> Server:
    """Ask a node what it is.

    :param session: the driver's session.
    :raises Exception: of the driver.
    """
    local = session.execute("SELECT release_version, cluster_name FROM system.local").one()
    keyspaces = session.execute("SELECT keyspace_name FROM system_schema.keyspaces")
    return Server(
        release_version=local.release_version or "",
        cluster_name=local.cluster_name or "",
        keyspaces=frozenset(row.keyspace_name for row in keyspaces),
        compatibility=_compatibility(session),
    )


def _compatibility(session: Any) -> str | None:
    from cassandra import InvalidRequest, Unauthorized  # noqa: PLC0415 -- not in tasks

    query = f"SELECT value FROM system_views.settings WHERE name = '{SETTING}'"  # noqa: S608 -- a constant
    try:
        row = session.execute(query).one()
    except (InvalidRequest, Unauthorized):
        return None
    return row.value if row else None


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
    if server.cluster_name == name or keyspace in server.keyspaces:
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


def inspect_server(session: Any, options: CassandraOptions) -> Server:
    """Return what the server says of itself.

    :param session: the driver's session.
    :raises SchemaMismatch: rows cannot be written exactly once there.
    :raises Exception: of the driver.
    """
    server = read_server(session)
    refuse_unfit(server, options)
    if options.consistency_level in ("ONE", "LOCAL_ONE"):
        _warn(
            f"cassandra.consistencyLevel is {options.consistency_level}: a row counts as written when one"
            " replica has it, and is lost with that replica. LOCAL_QUORUM is what most want."
        )
    return server


@functools.cache
def _warn(text: str) -> None:
    """Log a text once in the life of the process: connections come and go."""
    log.warning("%s", text)
