"""The contract suites of a target on a real node, and the write mode `update`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from wal_sink.demo.cassandra import Node
from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, Session, Target
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.testing.contracts import CellDeletesContract, RefusalsContract, TargetContract
from wal_sink.testing.contracts.ledger import Stored, Table, new_query
from wal_sink.testing.contracts.operations import COLUMN, OPERATIONS, Change
from wal_sink.testing.contracts.rows import BASE_US, SCHEMA, Record, arrow_batch, deliver
from wal_sink.testing.contracts.sessions import write
from wal_sink.units import now_us

pytestmark = pytest.mark.cassandra


@pytest.fixture(scope="module")
def keyspace(cassandra: Node) -> str:
    """Return one keyspace for all tests: changes of the schema would take most of the time."""
    name = f"contract_{uuid.uuid4().hex}"
    cassandra.create_keyspace(name)
    return name


def new_table(node: Node, keyspace: str) -> str:
    """Create a table with the key of the contracts; return its name."""
    name = f"cells_{uuid.uuid4().hex[:16]}"
    node.execute(
        f"CREATE TABLE {keyspace}.{name} (k text, n int, v bigint, t text, d double, PRIMARY KEY (k, n))"
    )
    return name


class TestCassandra(RefusalsContract, TargetContract):
    """The contracts of idempotent sessions and refusals."""

    most_kills = 8
    long_text = "x" * 70_000
    """A secondary index takes 64 KiB at most."""

    @pytest.fixture
    def target(self, cassandra: Node, keyspace: str) -> CassandraTarget:
        table = new_table(cassandra, keyspace)
        self.node, self.table = cassandra, f"{keyspace}.{table}"
        return target_of(cassandra, keyspace, table=table)

    def records(self, target: Target) -> list[Stored]:
        return self.node.execute(f"SELECT k, n, v, t, d FROM {self.table}")

    def refuse_long(self, target: Target) -> None:
        self.node.execute(f"CREATE INDEX IF NOT EXISTS ON {self.table} (t)")

    def accept_long(self, target: Target) -> None:
        self.node.execute(f"DROP INDEX IF EXISTS {self.table}_t_idx")


class TestCassandraDeletes(CellDeletesContract):
    """The contract of deletes, and deletes of ranges."""

    @pytest.fixture
    def target(self, cassandra: Node, keyspace: str) -> CassandraTarget:
        table = new_table(cassandra, keyspace)
        self.node, self.table = cassandra, f"{keyspace}.{table}"
        more = {"operationColumn": COLUMN, "operations": OPERATIONS}
        return target_of(cassandra, keyspace, table=table, **more)

    records = TestCassandra.records

    def test_delete_without_last_key_column_deletes_a_range(
        self, target: Target, plan: Plan, session: Session
    ) -> None:
        """The delete takes the older rows of the partition. Later rows stay."""
        earlier: list[Change] = [("c", k, n, n, k) for k in ("a", "b") for n in range(5)]
        changes: list[Change] = [
            ("c", "a", 7, 7, "older"),
            ("d", "a", None, None, None),
            ("c", "a", 3, None, "newer"),
            ("d", "b", 4, None, None),
        ]
        rows = self.slice(target, plan, changes, us=BASE_US + 100)
        deliver(session, plan, self.slice(target, plan, earlier))
        deliver(session, plan, rows)
        expected: Table = {("b", n): (n, "b") for n in range(4)} | {("a", 3): (None, "newer")}
        assert self.rows(target) == expected
        write(session, plan, rows)
        write(session, plan, self.slice(target, plan, earlier))
        assert self.rows(target) == expected, "written again, and late"


class TestCassandraUpdates:
    """The write mode `update`."""

    def test_update_without_values_creates_no_row(self, cassandra: Node, keyspace: str) -> None:
        """The result is the same if rows are written again, or late."""
        table = new_table(cassandra, keyspace)
        options = {"cassandra.writeMode": "update"}
        target = target_of(cassandra, keyspace, table=table, **options)
        plan = target.plan(SCHEMA, plan_key(SCHEMA, target.name, target.shape))

        def rows_of(records: Sequence[Record], us: int) -> RowSlice:
            return RowSlice(0, target.check(arrow_batch(records, SCHEMA), plan), us)

        first = rows_of([("a", 1, 10, None), ("b", 1, None, None)], BASE_US)
        later = rows_of([("a", 1, None, "x"), ("c", 2, 3, "y")], BASE_US + 10)
        newest = rows_of([("c", 2, 4, None)], BASE_US + 20)
        with target.connect(new_query()) as session:
            for rows in (first, later, newest, newest, first, later):
                write(session, plan, rows)
        stored = cassandra.execute(f"SELECT k, n, v, t FROM {keyspace}.{table}")
        assert {(row.k, row.n): (row.v, row.t) for row in stored} == {
            ("a", 1): (10, "x"),
            ("c", 2): (4, "y"),
        }

    def test_static_columns_alone_are_updated(self, cassandra: Node, keyspace: str) -> None:
        """The DataFrame has no clustering columns."""
        table = f"{keyspace}.t"
        cassandra.execute(
            f"CREATE TABLE {table} (a int, b text, n int, s text static, v int, PRIMARY KEY ((a, b), n))"
        )
        more = {"cassandra.writeMode": "update", "cassandra.ttl": "9000"}
        target = target_of(cassandra, keyspace, **more)
        schema = pa.schema([("b", pa.string()), ("s", pa.string()), ("a", pa.int32())])
        rows = pa.record_batch(
            [["x", "y"], ["one", "two"], pa.array([1, 2], pa.int32())], schema=schema
        )
        plan = target.plan(schema, "key")
        with target.connect(new_query()) as session:
            session.write(plan, RowSlice(0, target.check(rows, plan), now_us()))
            session.drain()
        result = cassandra.execute(f"SELECT a, b, n, s, TTL(s) AS ttl_s FROM {table}")
        assert {(r.a, r.b, r.n, r.s) for r in result} == {
            (1, "x", None, "one"),
            (2, "y", None, "two"),
        }
        assert all(8_000 < r.ttl_s <= 9_000 for r in result)
        with pytest.raises(SchemaMismatch, match="beside the whole key"):
            target.plan(schema.append(pa.field("n", pa.int32())), "key")
