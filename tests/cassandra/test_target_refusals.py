"""Rows that the server refuses, or fails at, for an index of the table."""

from __future__ import annotations

import secrets
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import options_of
from tests.support.cql_driver import binding, request_of
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import TargetUnavailable
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowsRefused, Slice
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.write.in_flight import Concurrency
from wal_sink.targets.cassandra.write.sender import Sender

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000
FLOATS = pa.list_(pa.float32())


class Table:
    """A table with indexes, and the target that writes to it."""

    def __init__(self, node: Node, keyspace: str) -> None:
        self.node = node
        self.table = f"t_{secrets.token_hex(4)}"
        self.name = f"{keyspace}.{self.table}"
        self._keyspace = keyspace
        self.options = options_of(node, keyspace, self.table)
        self.target = CassandraTarget(self.options)

    def create(self, columns: str, *indexes: str) -> None:
        self.node.execute(f"CREATE TABLE {self.name} (id int PRIMARY KEY, {columns})")
        for index in indexes:
            self.index(index)

    def index(self, index: str) -> None:
        self.node.execute(f"CREATE INDEX ON {self.name} {index}")

    def plan(self, batch: pa.RecordBatch) -> Plan:
        return self.target.plan(batch.schema, "k")

    def write(self, plan: Plan, *batches: pa.RecordBatch, us: int = US) -> None:
        """As the flusher does; rows that tasks have let pass."""
        with self.target.connect("q") as session:
            for batch in batches:
                session.write(plan, Slice(0, batch, us))
            session.drain()

    def ids(self) -> set[int]:
        return {row.id for row in self.node.execute(f"SELECT id FROM {self.name}")}


@pytest.fixture
def table(cassandra: Node, shared: str) -> Table:
    """A table of the test's own, not created yet."""
    return Table(cassandra, shared)


def rows(values: list[Any], kind: pa.DataType, first: int = 0) -> pa.RecordBatch:
    ids = pa.array(range(first, first + len(values)), pa.int32())
    return pa.record_batch({"id": ids, "c": pa.array(values, kind)})


ANGLE = "({}) USING 'sai'"


def test_row_that_replicas_fail_at_is_named(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """Replicas answer UNKNOWN, again and again: the row is found among its neighbours, and named."""
    table.create("c vector<float, 2>", ANGLE.format("c"))
    values: list[list[float]] = [[1.0, float(i)] for i in range(1_000)]
    plan = table.plan(rows(values, FLOATS))
    values[618] = [0.0, 0.0]
    with pytest.raises(RowsRefused) as refused:
        table.write(plan, rows(values, FLOATS))
    (row,) = refused.value.rows
    assert row.us == US + 618
    assert "fails to write the row with id=618 of" in row.error.what
    assert "takes other rows: WriteFailure" in row.error.what
    assert "DROP INDEX" in row.error.remedy
    assert "requests failed" in caplog.text
    values[40] = [0.0, 0.0]
    with pytest.raises(RowsRefused) as refused:
        table.write(plan, rows(values, FLOATS), us=(later := US + 10_000))
    assert {row.us - later for row in refused.value.rows} == {40, 618}
    assert table.ids() == set(range(1_000)) - {618}  # 40 has its former values
    table.node.execute(f"DROP INDEX {table.name}_c_idx")
    table.write(plan, rows(values, FLOATS), us=later)
    assert table.ids() == set(range(1_000))


def test_row_in_a_request_of_its_own(table: Table) -> None:
    """No neighbour was taken: what was acknowledged before is sent again, to compare."""
    table.create("c vector<float, 2>, blob blob", ANGLE.format("c"))
    filler = b"x" * 60_000
    batch = pa.record_batch(
        {
            "id": pa.array(range(5), pa.int32()),
            "c": pa.array([[1.0, 1.0]] * 4 + [[0.0, 0.0]], FLOATS),
            "blob": pa.array([filler] * 5, pa.binary()),
        }
    )
    plan = table.plan(batch)
    with pytest.raises(RowsRefused, match=r"row with id=4 of .* and takes other rows"):
        table.write(plan, batch)
    assert table.ids() == {0, 1, 2, 3}


def prepared(session: Any, table: Table) -> Any:
    insert = session.prepare(f"INSERT INTO {table.name} (id, c) VALUES (?, ?)")
    insert.is_idempotent = True
    return insert


def test_row_with_nothing_to_compare_it_to(table: Table) -> None:
    """It could as well be a full disk: an outage, but the text names the row."""
    table.create("c vector<float, 2>", ANGLE.format("c"))
    with connect(table.options) as connection:
        insert = prepared(connection.session, table)
        bind = binding(insert)
        sender = Sender(connection.session, Concurrency(), bind, 2, lambda row: f"{len(row)} row")
        sender.send([request_of(insert.bind([1, [0.0, 0.0]]))])
        with pytest.raises(TargetUnavailable, match=r"1 request for 2 s.*; 1 row fails by itself"):
            sender.drain()


def test_request_whose_parts_are_taken(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """A batch of several partitions above `batch_size_fail_threshold`, 50 KiB: no row is to blame."""
    table.create("c text")
    with connect(table.options) as connection:
        insert = prepared(connection.session, table)
        sender = Sender(connection.session, Concurrency(), binding(insert))
        sender.send([request_of(*(insert.bind([i, "x" * 8_000]) for i in range(10)))])
        sender.drain()
    assert table.ids() == set(range(10))
    assert "refused 10 rows in one request and took them in several" in caplog.text
