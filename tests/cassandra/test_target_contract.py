"""The target contract over a real node: what CellStore promises, Cassandra keeps, and the other way round."""

from __future__ import annotations

import pytest

from wal_sink.options import parse
from wal_sink.targets.base import Target
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.testing.cassandra.node import Node
from wal_sink.testing.contracts.deletes import COLUMN, OPERATIONS, RangeDeletesContract
from wal_sink.testing.contracts.tables import Rows, TablesContract
from wal_sink.testing.contracts.target import Table, TargetContract
from wal_sink.testing.contracts.times import Make, TimesContract

pytestmark = pytest.mark.cassandra


def target_of(node: Node, keyspace: str, **more: str) -> CassandraTarget:
    raw = {
        "cassandra.contactPoints": node.host,
        "cassandra.port": str(node.port),
        "keyspace": keyspace,
        "table": "cells",
        **more,
    }
    return CassandraTarget(parse(raw, CassandraOptions))


class TestCassandra(TargetContract):
    """The real one."""

    @pytest.fixture
    def target(self, cassandra: Node, keyspace: str) -> CassandraTarget:
        cassandra.execute(
            f"CREATE TABLE {keyspace}.cells (k text, n int, v bigint, t text, PRIMARY KEY (k, n))"
        )
        self.node, self.table = cassandra, f"{keyspace}.cells"
        return target_of(cassandra, keyspace)

    def rows(self, target: Target) -> Table:
        found = self.node.execute(f"SELECT k, n, v, t FROM {self.table}")
        return {(row.k, row.n): (row.v, row.t) for row in found}


class TestCassandraDeletes(RangeDeletesContract):
    """Rows, ranges and partitions, in the same batches as upserts."""

    @pytest.fixture
    def target(self, cassandra: Node, keyspace: str) -> CassandraTarget:
        cassandra.execute(
            f"CREATE TABLE {keyspace}.cells (k text, n int, v bigint, t text, PRIMARY KEY (k, n))"
        )
        self.node, self.table = cassandra, f"{keyspace}.cells"
        return target_of(cassandra, keyspace, operationColumn=COLUMN, operations=OPERATIONS)

    rows = TestCassandra.rows


class TestCassandraTimes(TimesContract):
    """Lives, and event times."""

    @pytest.fixture
    def make(self, cassandra: Node, keyspace: str) -> Make:
        cassandra.execute(
            f"CREATE TABLE {keyspace}.cells (k text, n int, v bigint, t text, PRIMARY KEY (k, n))"
        )
        self.node, self.table = cassandra, f"{keyspace}.cells"
        return lambda options: target_of(cassandra, keyspace, **options)

    rows = TestCassandra.rows

    def lives(self, target: Target) -> dict[tuple[str, int], int | None]:
        found = self.node.execute(f"SELECT k, n, TTL(v) AS life FROM {self.table}")
        return {(row.k, row.n): row.life for row in found}


class TestCassandraTables(TablesContract):
    """Each row to two tables of other keys, or to the one that it names."""

    @pytest.fixture
    def target(self, cassandra: Node, keyspace: str) -> CassandraTarget:
        return self.new(cassandra, keyspace)

    @pytest.fixture
    def naming(self, cassandra: Node, keyspace: str) -> CassandraTarget:
        return self.new(cassandra, keyspace, tableColumn="goes")

    def new(self, node: Node, keyspace: str, **more: str) -> CassandraTarget:
        values = "k text, n int, v bigint"
        for table in (
            f"by_k ({values}, t text, PRIMARY KEY (k, n))",
            f"by_n ({values}, PRIMARY KEY (n, k))",
        ):
            node.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.{table}")
        self.node, self.keyspace = node, keyspace
        named = {"table": "", "tables": "by_k, by_n", "operationColumn": "op"}
        return target_of(node, keyspace, **named, **more)

    def rows(self, target: Target, table: str) -> Rows:
        columns = {"by_k": "k, n, v, t", "by_n": "n, k, v"}[table]
        found = self.node.execute(f"SELECT {columns} FROM {self.keyspace}.{table}")
        return {tuple(row[:2]): tuple(row[2:]) for row in found}
