"""Refuses clusters with too few nodes, clocks that are ahead, and roles that lack a permission."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from cassandra import InvalidRequest, Unauthorized

from wal_sink.errors import OptionError, SchemaMismatch, TargetRefused
from wal_sink.targets.cassandra.driver.internals import ServerError, SyntaxException
from wal_sink.targets.cassandra.options import CassandraOptions, login
from wal_sink.targets.cassandra.table import TableMetadata
from wal_sink.targets.ddl import quote
from wal_sink.units import counted, now_us

logger = logging.getLogger(__name__)

CLOCK_AHEAD_S = 60
"""The most seconds by which this host's clock may be ahead of a node's clock at a start."""


def replicas(replication: Mapping[str, str], nodes: Mapping[str, int]) -> dict[str, int]:
    """Return a keyspace's number of replicas in each datacenter; empty for an unknown strategy.

    :param replication: the keyspace's replication in `system_schema`.
    :param nodes: the number of nodes in each datacenter.
    """
    # "3/1" stands for 3 replicas, 1 of which is transient.
    factors = {name: factor.split("/")[0] for name, factor in replication.items()}
    match factors.pop("class", "").rpartition(".")[2]:
        case "SimpleStrategy" if len(nodes) == 1:
            return {name: int(factors["replication_factor"]) for name in nodes}
        case "NetworkTopologyStrategy":
            return {name: int(factor) for name, factor in factors.items()}
        case _:
            return {}


def required_replicas(level: str, factors: Mapping[str, int], datacenter: str) -> dict[str, int]:
    """Return the number of replicas that a consistency level needs in each datacenter.

    The key "" has the number of replicas that may be in any datacenter.

    :param factors: the number of the keyspace's replicas in each datacenter.
    :param datacenter: the local datacenter.
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


def refuse_too_few_nodes(
    keyspaces: Mapping[str, Mapping[str, str]],
    nodes: Mapping[str, int],
    options: CassandraOptions,
    datacenter: str,
) -> None:
    """Refuse a keyspace that has fewer nodes than a consistency level needs replicas.

    :param keyspaces: the replication of each keyspace, such as {'class': …, 'dc1': '3'}.
    :param nodes: the number of nodes in each datacenter, including nodes that are down.
    :param datacenter: the local datacenter.
    :raises SchemaMismatch: no row, or no update of the ledger, would be acknowledged.
    """
    rows, serial = options.consistency_level, options.serial_consistency_level
    data, ledger = options.data.keyspace, options.ledger.keyspace
    for keyspace, level in dict.fromkeys(((data, rows), (ledger, rows), (ledger, serial))):
        factors = replicas(keyspaces.get(keyspace, {}), nodes)
        held = {name: min(factor, nodes.get(name, 0)) for name, factor in factors.items()}
        required_by_name = required_replicas(level, factors, datacenter) if factors else {}
        for name, required in required_by_name.items():
            available = held.get(name, 0) if name else sum(held.values())
            if required <= available:
                continue
            factor_texts = " and ".join(
                f"{factor} in {place}, which has {counted(nodes.get(place, 0), 'node')}"
                for place, factor in factors.items()
            )
            possible = {place: count for place, count in held.items() if count}
            if not possible.get(place := name or datacenter) and nodes.get(place):
                possible[place] = min(3, nodes[place])
            replication = ", ".join(f"'{place}': {count}" for place, count in possible.items())
            option = "serialConsistencyLevel" if level == serial else "consistencyLevel"
            raise SchemaMismatch(
                f"The replication factor of keyspace {keyspace} is {factor_texts}. {level} needs"
                f" {counted(required, 'replica')}, and there can be {available}: no row would ever be"
                " acknowledged.",
                f"Start the missing nodes; or set cassandra.{option} to a level that these nodes can"
                f" reach; or run:\nALTER KEYSPACE {quote(keyspace)} WITH replication ="
                f" {{'class': 'NetworkTopologyStrategy', {replication}}};",
            )


def inspect_server(session: Any, options: CassandraOptions, datacenter: str) -> None:
    """Refuse too few nodes, or a clock that is ahead.

    :param session: the driver's session.
    :param datacenter: the local datacenter.
    :raises SchemaMismatch: the error names what the server lacks.
    :raises OptionError: the clock of this host is ahead.
    :raises Exception: an error of the driver.
    """
    rows = session.execute("SELECT keyspace_name, replication FROM system_schema.keyspaces")
    keyspaces = {row.keyspace_name: dict(row.replication or {}) for row in rows}
    hosts = session.cluster.metadata.all_hosts()
    nodes = Counter(host.datacenter for host in hosts if host.datacenter)
    refuse_too_few_nodes(keyspaces, nodes, options, datacenter)
    refuse_clock_ahead(session, options)
    if options.consistency_level in ("ONE", "LOCAL_ONE"):
        logger.warning(
            "cassandra.consistencyLevel is %s: a row counts as written when one replica has the row, and the"
            " row is lost with this replica. With LOCAL_QUORUM the row survives",
            options.consistency_level,
        )


def refuse_clock_ahead(session: Any, options: CassandraOptions) -> None:
    """Refuse to start on a host whose clock is far ahead of a node's clock.

    The write timestamps of rows come from this host's clock. If the clock is ahead, the rows hide later
    writes of other clients.

    :param session: the driver's session.
    :raises OptionError: the clock of this host is more than `CLOCK_AHEAD_S` ahead.
    """
    try:
        local = session.execute("SELECT currentTimestamp() AS now FROM system.local").one()
    except (InvalidRequest, SyntaxException):
        return  # the server lacks this function
    ahead_s = now_us() / 1_000_000 - local.now.replace(tzinfo=UTC).timestamp()
    if ahead_s > CLOCK_AHEAD_S:
        raise OptionError(
            f"The clock of this host, the driver's, is {ahead_s:,.0f} s ahead of the clock of Cassandra at"
            f" {options.where}. Rows with timestamps of this clock would hide later writes of other clients.",
            "Set the clocks of driver and nodes by NTP, then start the query again.",
        )


def refuse_missing_permissions(
    session: Any, options: CassandraOptions, metadata: TableMetadata
) -> None:
    """Refuse a role that may not write rows, or may not read and write the ledger.

    Each permission is tested by a statement that matches no rows. A list of the role's permissions would need
    another permission, and not every product has such a list.

    :param session: the driver's session.
    :param metadata: the table. If the table is missing, only the permissions for the ledger are tested.
    :raises TargetRefused: the error names the missing permissions.
    """
    partition = [quote(column.name) for column in metadata.columns if column.role == "partition"]
    no_rows = " AND ".join(f"{name} IN ()" for name in partition)
    ledger = f"FROM {options.ledger} WHERE query_id IN ()"
    statements = [f"SELECT log_id, epoch, digest {ledger}", f"DELETE {ledger}"]
    if no_rows:
        statements.insert(0, f"DELETE FROM {metadata.name} WHERE {no_rows}")  # noqa: S608 -- quoted names
    errors = []
    for statement in statements:
        try:
            session.execute(statement)
        except Unauthorized as error:
            errors.append(error)
        except (InvalidRequest, SyntaxException):
            continue  # the ledger's table is missing, or the server has no `IN ()`
        except ServerError:
            continue  # "Unknown CF": another start creates the table at this moment
    if errors:
        raise missing_permission(*errors, options=options) from errors[0]


_MISSING = re.compile(
    r"has no (?P<permission>\w+)(?: nor \w+)? permission on"
    r" (?:<table (?P<table>\S+)>|table (?P<masked>[^,\s]+)|<all tables in (?P<keyspace>\w+)>)"
)
"""The message of Cassandra 3.11 to 5.0, which begins with UNMASK for masked columns (`SelectStatement`)."""


def missing_permission(*errors: Unauthorized, options: CassandraOptions) -> TargetRefused:
    """Return the error for missing permissions. Its remedy has the GRANT statements."""
    role = login(options)
    name = quote(role.username) if role else "the role"
    grants = [_grant(str(error), options, name) for error in errors]
    return TargetRefused(
        f"Cassandra at {options.where} refuses statements to role {name}: {'; '.join(map(str, errors))}",
        " ".join(dict.fromkeys(grants)),
    )


def _grant(error: str, options: CassandraOptions, role: str) -> str:
    missing = _MISSING.search(error)
    if missing is None:
        return (
            f"GRANT MODIFY ON TABLE {options.data} TO {role};"
            f" GRANT SELECT ON TABLE {options.ledger} TO {role};"
            f" GRANT MODIFY ON TABLE {options.ledger} TO {role};"
        )
    resource = f"KEYSPACE {quote(missing['keyspace'] or '')}"
    if table := missing["table"] or missing["masked"]:
        resource = f"TABLE {'.'.join(map(quote, table.split('.', 1)))}"
    return f"GRANT {missing['permission']} ON {resource} TO {role};"
