"""Refuses a server that would lose rows, before anything is written.

The answers of Amazon Keyspaces and Azure Cosmos DB are those that others have recorded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.options import CassandraOptions

log = logging.getLogger(__name__)


class Server(NamedTuple):
    """A cluster, as the node that was asked describes it."""

    release_version: str
    """Of Cassandra; products that speak its protocol name a version that they are like."""
    cluster_name: str
    keyspaces: Collection[str]


_KEYSPACES_SERVICE = ("Amazon Keyspaces", "system_schema_mcs")
"""The name of its cluster, and a keyspace that only it has."""
_COSMOS = ("cosmosprod", "3.11.0")
"""The name of its cluster, in lower case, and the version that it names."""
_COSMOS_HOSTS = re.compile(r"\.cosmos\.(azure\.com|azure\.cn|azure\.us)$")
_USE = "Write to Apache Cassandra, Astra or Scylla, or to a target of your own."


def refuse_unfit(server: Server, options: CassandraOptions) -> None:
    """Refuse a server on which the guarantees of a target cannot hold.

    :raises SchemaMismatch: names what the server lacks.
    """
    name, keyspace = _KEYSPACES_SERVICE
    if server.cluster_name == name or keyspace in server.keyspaces:
        raise SchemaMismatch(
            f"The cluster at {options.where} is {name}, which is not supported: it takes no reads at SERIAL,"
            " by which the ledger is read, and write timestamps only in tables with client-side timestamps.",
            _USE,
        )
    product = (server.cluster_name.lower(), server.release_version)
    if product == _COSMOS or any(_COSMOS_HOSTS.search(host) for host in options.hosts):
        raise SchemaMismatch(
            f"The cluster at {options.where} is Azure Cosmos DB, which is not supported: it keeps one write"
            " timestamp for a row and not one for each cell, so a late row could clear what a newer row has"
            " written to other columns.",
            _USE,
        )


def inspect_server(session: Any, options: CassandraOptions) -> None:
    """Refuse a server as it describes itself, and warn of a level under which rows can be lost.

    :param session: the driver's session.
    :raises SchemaMismatch: rows cannot be written exactly once there.
    :raises Exception: of the driver.
    """
    local = session.execute("SELECT release_version, cluster_name FROM system.local").one()
    keyspaces = session.execute("SELECT keyspace_name FROM system_schema.keyspaces")
    server = Server(
        release_version=local.release_version or "",
        cluster_name=local.cluster_name or "",
        keyspaces={row.keyspace_name for row in keyspaces},
    )
    refuse_unfit(server, options)
    if options.consistency_level in ("ONE", "LOCAL_ONE"):
        log.warning(
            "cassandra.consistencyLevel is %s: a row counts as written when one replica has it, and is lost"
            " with that replica. LOCAL_QUORUM survives that",
            options.consistency_level,
        )
