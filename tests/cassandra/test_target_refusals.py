"""Rows that the server refuses or fails at, for an index of the table or want of space."""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import options_of
from tests.support.cql_driver import request_of
from wal_sink.demo.servers.cassandra import EmbeddedCassandra, Node
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.flush_metrics import FlushMetrics
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, RowsRefused
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.driver.pipeline import RequestPipeline
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
                session.write(plan, RowSlice(0, batch, us))
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


TOO_LONG = "x" * 70_000
"""A text that an index cannot take: the server says so, and refuses the request."""
ANGLE = "({}) USING 'sai'"


def test_rows_that_an_index_cannot_take_are_named(table: Table) -> None:
    """Among their neighbours, each by its timestamp; without the index they are written."""
    table.create("c text", "(c)")
    values = [f"v{i}" for i in range(1_000)]
    plan = table.plan(rows(values, pa.string()))
    values[618] = TOO_LONG
    with pytest.raises(RowsRefused) as refused:
        table.write(plan, rows(values, pa.string()))
    (row,) = refused.value.rows
    assert row.us == US + 618
    assert "Cassandra refuses the row with id=618 of" in row.error.what
    assert "Cannot index value" in row.error.what
    values[40] = TOO_LONG
    with pytest.raises(RowsRefused) as refused:
        table.write(plan, rows(values, pa.string()), us=(later := US + 10_000))
    assert {row.us - later for row in refused.value.rows} == {40, 618}
    assert table.ids() == set(range(1_000)) - {618}  # 40 has its former value
    table.node.execute(f"DROP INDEX {table.name}_c_idx")
    table.write(plan, rows(values, pa.string()), us=later)
    assert table.ids() == set(range(1_000))


def test_row_in_a_request_of_its_own_is_named(table: Table) -> None:
    """No neighbour was taken: a row that was acknowledged before is sent again, to compare."""
    table.create("c text", "(c)")
    batch = rows(["y" * 60_000] * 4 + [TOO_LONG], pa.string())
    with pytest.raises(RowsRefused, match=r"refuses the row with id=4 of"):
        table.write(table.plan(batch), batch)
    assert table.ids() == {0, 1, 2, 3}


def test_row_without_others_is_named(table: Table) -> None:
    """It is refused twice, and there is no row to compare; many such rows stop the flush."""
    table.create("c text", "(c)")
    batch = rows([TOO_LONG], pa.string())
    plan = table.plan(batch)
    with pytest.raises(RowsRefused, match=r"refuses the row with id=0 of"):
        table.write(plan, batch)
    with pytest.raises(TargetRefused, match=r"refuses the row with id="):
        table.write(plan, rows([TOO_LONG] * 101, pa.string()))
    assert table.ids() == set()


def test_row_that_replicas_fail_at_is_an_outage(table: Table) -> None:
    """They answer UNKNOWN, as they do with a full disk; the error says what else it may be."""
    table.create("c vector<float, 2>", ANGLE.format("c"))
    batch = rows([[1.0, 1.0]] * 9 + [[0.0, 0.0]], FLOATS)
    with pytest.raises(TargetUnavailable, match="did not acknowledge") as outage:
        table.write(table.plan(batch), batch)
    assert "DROP INDEX" in outage.value.remedy


@contextmanager
def consumer(cdc: Path) -> Iterator[None]:
    """Run a slow consumer of a node's CDC files: its space comes back in small steps."""
    over = threading.Event()

    def consume() -> None:
        while not over.wait(0.4):
            for file in sorted(cdc.glob("*.log"))[:1]:
                file.unlink()

    thread = threading.Thread(target=consume)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_full_cdc_space_blames_no_row(caplog: pytest.LogCaptureFixture) -> None:
    """The server refuses writes, and a few fit from time to time: every row is written in the end."""
    settings = {
        "cdc_enabled": True,
        "cdc_total_space": "2MiB",
        "commitlog_segment_size": "1MiB",
    }
    with EmbeddedCassandra(settings=settings) as node, consumer(node.folder / "cdc_raw"):
        node.create_keyspace("ks")
        node.execute("CREATE TABLE ks.t (id int PRIMARY KEY, c text) WITH cdc = true")
        target = CassandraTarget(options_of(node, "ks"))
        batch = rows([secrets.token_hex(10_000) for _ in range(300)], pa.string())
        plan = target.plan(batch.schema, "k")
        written = False
        while not written:  # as the flusher does after an outage
            with target.connect("q") as session, contextlib.suppress(TargetUnavailable):
                session.write(plan, RowSlice(0, batch, US))
                session.drain()
                written = True
        assert len(node.execute("SELECT id FROM ks.t")) == 300
    assert "WriteFailure" in caplog.text


def test_request_whose_parts_are_taken(table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """A batch of several partitions above `batch_size_fail_threshold`, 50 KiB: no row is to blame."""
    table.create("c text")
    with connect(table.options) as connection:
        insert = connection.session.prepare(f"INSERT INTO {table.name} (id, c) VALUES (?, ?)")
        insert.is_idempotent = True
        metrics = FlushMetrics()
        pipeline = RequestPipeline(connection.session, "datacenter1", Concurrency(), 10, metrics)
        sender = Sender(connection.session, pipeline, metrics, timeout_s=60)
        sender.send([request_of(*(insert.bind([i, "x" * 8_000]) for i in range(10)))])
        assert sender.drain() == []
    assert table.ids() == set(range(10))
    assert "refused 10 rows in one request and took them in several" in caplog.text
