"""Refuses a server that would lose rows, or acknowledge none, before anything is written.

The answers of Amazon Keyspaces and Azure Cosmos DB are those that others have recorded.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.names import quote
from wal_sink.text import counted

log = logging.getLogger(__name__)

SETTING = "storage_compatibility_mode"
"""The setting that decides how late a row may expire."""


class Server(NamedTuple):
    """A cluster, as the node that was asked describes it."""

    release_version: str
    """Of Cassandra; products that speak its protocol name a version that they are like."""
    cluster_name: str
    keyspaces: Mapping[str, Mapping[str, str]]
    """The replication of each keyspace, as `system_schema` has it."""
    compatibility: str | None = None
    """The setting `storage_compatibility_mode`; None: the server has none, or this role may not read it."""
    nodes: Mapping[str, int] = MappingProxyType({})
    """The number of nodes by datacenter, also of those that are down."""


OLD_ROWS = (
    "Rows have the time at which their epoch was published: rows that are pending for longer than that can no"
    " longer be written. Remove the threshold, or set it to more than the longest outage that the log has to"
    " bridge, on every node, in cassandra.yaml or by JMX."
)
"""What minimum_timestamp_fail_threshold does to pending rows, and the remedy."""


def is_too_old(error: Exception) -> bool:
    """Return True if the server refuses a row for its timestamp, by minimum_timestamp_fail_threshold."""
    return "minimum" in str(error) and "timestamp" in str(error)


def read_server(session: Any) -> Server:
    """Ask a node what it is.

    :param session: the driver's session.
    :raises Exception: of the driver.
    """
    local = session.execute("SELECT release_version, cluster_name FROM system.local").one()
    keyspaces = session.execute("SELECT keyspace_name, replication FROM system_schema.keyspaces")
    hosts = session.cluster.metadata.all_hosts()
    return Server(
        release_version=local.release_version or "",
        cluster_name=local.cluster_name or "",
        keyspaces={row.keyspace_name: dict(row.replication or {}) for row in keyspaces},
        compatibility=_compatibility(session),
        nodes=Counter(host.datacenter for host in hosts if host.datacenter),
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
    product = (server.cluster_name.lower(), server.release_version)
    if product == _COSMOS or any(_COSMOS_HOSTS.search(host) for host in options.hosts):
        raise SchemaMismatch(
            f"The cluster at {options.where} is Azure Cosmos DB, which is not supported: it keeps one write"
            " timestamp for a row and not one for each cell, so a late row could clear what a newer row has"
            " written to other columns.",
            _USE,
        )


def replicas(replication: Mapping[str, str], nodes: Mapping[str, int]) -> dict[str, int]:
    """Return the replicas of a keyspace by datacenter; none for a strategy that is not known.

    :param replication: of the keyspace, as `system_schema` has it.
    :param nodes: the number of nodes by datacenter.
    """
    factors = {name: factor.split("/")[0] for name, factor in replication.items()}  # 3/1: transient
    match factors.pop("class", "").rpartition(".")[2]:
        case "SimpleStrategy" if len(nodes) == 1:
            return {name: int(factors["replication_factor"]) for name in nodes}
        case "NetworkTopologyStrategy":
            return {name: int(factor) for name, factor in factors.items()}
        case _:
            return {}


def required_replicas(level: str, factors: Mapping[str, int], datacenter: str) -> dict[str, int]:
    """Return how many replicas a consistency level asks for, by datacenter; by "" for wherever they are.

    :param factors: the replicas of a keyspace by datacenter.
    :param datacenter: the local one.
    """
    total, local = sum(factors.values()), factors.get(datacenter, 0)
    match level:
        case "LOCAL_ONE":
            return {datacenter: 1}
        case "LOCAL_QUORUM" | "LOCAL_SERIAL":
            return {datacenter: local // 2 + 1}
        case "EACH_QUORUM":
            return {name: factor // 2 + 1 for name, factor in factors.items() if factor}
        case _:
            fixed = {"ONE": 1, "TWO": 2, "THREE": 3, "ALL": total}
            return {"": fixed.get(level, total // 2 + 1)}


def refuse_too_few_nodes(server: Server, options: CassandraOptions, datacenter: str) -> None:
    """Refuse keyspaces whose rows, or whose ledger, the nodes can never acknowledge; warn of missing nodes.

    :param datacenter: the local one.
    :raises SchemaMismatch: a consistency level asks for more replicas than nodes can hold.
    """
    rows, serial = options.consistency_level, options.serial_consistency_level
    data, ledger = options.data.keyspace, options.ledger.keyspace
    for keyspace, level in dict.fromkeys(((data, rows), (ledger, rows), (ledger, serial))):
        factors = replicas(server.keyspaces.get(keyspace, {}), server.nodes)
        if not factors or not server.nodes:
            continue
        held = {name: min(rf, server.nodes.get(name, 0)) for name, rf in factors.items()}
        places = (
            f"{factor} in {name}, which has {counted(server.nodes.get(name, 0), 'node')}"
            for name, factor in factors.items()
        )
        text = f"The replication factor of keyspace {keyspace} is {' and '.join(places)}."
        for name, required in required_replicas(level, factors, datacenter).items():
            available = held.get(name, 0) if name else sum(held.values())
            if required > available:
                few = {place: count for place, count in held.items() if count}
                few = few or {datacenter: min(3, server.nodes.get(datacenter, 0))}
                fewer = ", ".join(f"'{place}': {count}" for place, count in few.items())
                option = "serialConsistencyLevel" if level == serial else "consistencyLevel"
                raise SchemaMismatch(
                    f"{text} {level} asks for {counted(required, 'replica')}, and there can be"
                    f" {available}: no row would ever be acknowledged.",
                    f"Start the nodes that are missing; or set cassandra.{option} to a level that these nodes"
                    f" reach; or run:\nALTER KEYSPACE {quote(keyspace)} WITH replication ="
                    f" {{'class': 'NetworkTopologyStrategy', {fewer}}};",
                )
        if held != factors:
            _warn(f"{text} Rows have fewer copies than that, and fewer nodes may be down")


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
            " replica has it, and is lost with that replica. LOCAL_QUORUM survives that."
        )
    return server


@functools.cache
def _warn(text: str) -> None:
    """Log a text once in the life of the process: connections come and go."""
    log.warning("%s", text)
