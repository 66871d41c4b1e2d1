"""Refuses a server that would lose rows, or acknowledge none, before anything is written.

The answers of Amazon Keyspaces and Azure Cosmos DB are those that others have recorded.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.targets.sql_text import quote
from wal_sink.text import counted

log = logging.getLogger(__name__)


class Server(NamedTuple):
    """A cluster, as the node that was asked describes it."""

    release_version: str
    """Of Cassandra; products that speak its protocol name a version that they are like."""
    cluster_name: str
    keyspaces: Mapping[str, Mapping[str, str]]
    """The replication of each keyspace, as `system_schema` has it."""
    nodes: Mapping[str, int] = MappingProxyType({})
    """The number of nodes by datacenter, also of those that are down."""


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
            log.warning("%s Rows have fewer copies than that, and fewer nodes may be down", text)


def inspect_server(session: Any, options: CassandraOptions, datacenter: str) -> None:
    """Refuse a server as it describes itself, and warn of a level under which rows can be lost.

    :param session: the driver's session.
    :param datacenter: the local one.
    :raises SchemaMismatch: rows cannot be written exactly once there, or would never be acknowledged.
    :raises Exception: of the driver.
    """
    local = session.execute("SELECT release_version, cluster_name FROM system.local").one()
    keyspaces = session.execute("SELECT keyspace_name, replication FROM system_schema.keyspaces")
    hosts = session.cluster.metadata.all_hosts()
    server = Server(
        release_version=local.release_version or "",
        cluster_name=local.cluster_name or "",
        keyspaces={row.keyspace_name: dict(row.replication or {}) for row in keyspaces},
        nodes=Counter(host.datacenter for host in hosts if host.datacenter),
    )
    refuse_unfit(server, options)
    refuse_too_few_nodes(server, options, datacenter)
    if options.consistency_level in ("ONE", "LOCAL_ONE"):
        log.warning(
            "cassandra.consistencyLevel is %s: a row counts as written when one replica has it, and is lost"
            " with that replica. LOCAL_QUORUM survives that",
            options.consistency_level,
        )
