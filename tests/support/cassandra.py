"""Targets over tables of a Cassandra node."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa

from wal_sink.demo.cassandra import Node
from wal_sink.model.plan import Plan
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraOptions, CassandraTarget


def raw_options(node: Node, keyspace: str, table: str = "t", **more: str) -> dict[str, str]:
    """Return the options of a target; the table need not exist."""
    return {
        "cassandra.contactPoints": node.host,
        "cassandra.port": str(node.port),
        "keyspace": keyspace,
        "table": table,
        **more,
    }


def options_of(node: Node, keyspace: str, table: str = "t", **more: str) -> CassandraOptions:
    """Return the parsed options of a target."""
    return parse(raw_options(node, keyspace, table, **more), CassandraOptions)


def target_of(node: Node, keyspace: str, table: str = "t", **more: str) -> CassandraTarget:
    """Return a target."""
    return CassandraTarget(options_of(node, keyspace, table, **more))


class NodeTable:
    """A table of a node, and the targets that write to it.

    :param columns: of the CREATE TABLE, key included; empty to create no table yet.
    """

    def __init__(self, node: Node, keyspace: str, columns: str = "", table: str = "") -> None:
        self.node, self.keyspace = node, keyspace
        self.table = table or f"t_{secrets.token_hex(4)}"
        self.name = f'"{keyspace}"."{self.table}"'
        if columns:
            self.create(columns)

    def create(self, columns: str) -> None:
        """Create the table."""
        self.node.execute(f"CREATE TABLE {self.name} ({columns})")

    def target(self, **more: str) -> CassandraTarget:
        """Return a target of the table; `more` has further options, by their full names."""
        return target_of(self.node, self.keyspace, self.table, **more)

    def write(self, *batches: tuple[int, pa.RecordBatch], **more: str) -> Plan:
        """Plan, check and write batches of one schema, as planner, task and flusher do.

        :param batches: the write timestamp of the first row, and rows.
        """
        target = self.target(**more)
        plan = target.plan(batches[0][1].schema, secrets.token_hex(8))
        with target.connect(secrets.token_hex(8)) as session:
            for us, batch in batches:
                session.write(plan, RowSlice(0, target.check(batch, plan), us))
            session.drain()
        return plan

    def select(self, what: str = "*") -> list[Any]:
        """Read all rows."""
        return self.node.execute(f"SELECT {what} FROM {self.name}")
