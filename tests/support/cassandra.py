"""Targets over tables of a Cassandra node."""

from __future__ import annotations

from wal_sink.demo.servers.cassandra import Node
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget


def raw_options(node: Node, keyspace: str, table: str = "t", **more: str) -> dict[str, str]:
    """Return the options of a target over a table, which need not be there yet."""
    return {
        "cassandra.contactPoints": node.host,
        "cassandra.port": str(node.port),
        "keyspace": keyspace,
        "table": table,
        **more,
    }


def options_of(node: Node, keyspace: str, table: str = "t", **more: str) -> CassandraOptions:
    """Return the same, parsed."""
    return parse(raw_options(node, keyspace, table, **more), CassandraOptions)


def target_of(node: Node, keyspace: str, table: str = "t", **more: str) -> CassandraTarget:
    """Return a target with these options."""
    return CassandraTarget(options_of(node, keyspace, table, **more))
