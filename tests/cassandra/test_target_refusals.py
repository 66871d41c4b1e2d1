"""Rows that the server refuses, and failures that are no refusal, on a real node."""

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

from tests.support.cassandra import NodeTable
from tests.support.cql_driver import request_of
from wal_sink.demo.cassandra import EmbeddedCassandra, Node
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.targets.base import RowsRefused
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.sender import Sender
from wal_sink.telemetry import FlushMetrics

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000
TOO_LONG = "x" * 70_000
"""A text that an index refuses."""


@pytest.fixture
def table(cassandra: Node, shared: str) -> NodeTable:
    return NodeTable(cassandra, shared)


def indexed(table: NodeTable, cql: str = "text", using: str = "") -> NodeTable:
    """Create the table with an index on its column c."""
    table.create(f"id int PRIMARY KEY, c {cql}")
    table.node.execute(f"CREATE INDEX ON {table.name} (c) {using}")
    return table


def rows(values: list[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    ids = pa.array(range(len(values)), pa.int32())
    return pa.record_batch({"id": ids, "c": pa.array(values, kind or pa.string())})


def ids(table: NodeTable) -> set[int]:
    return {row.id for row in table.select("id")}


def test_rows_that_an_index_refuses_are_named(table: NodeTable) -> None:
    """The other rows are written. Without the index all rows are."""
    indexed(table)
    values = [f"v{i}" for i in range(1_000)]
    values[618] = TOO_LONG
    with pytest.raises(RowsRefused) as refused:
        table.write((US, rows(values)))
    (row,) = refused.value.rows
    assert row.us == US + 618
    assert "Cassandra refuses the row with id=618 of" in row.error.what
    assert "Cannot index value" in row.error.what
    values[40] = TOO_LONG
    later = US + 10_000
    with pytest.raises(RowsRefused) as refused:
        table.write((later, rows(values)))
    assert {row.us - later for row in refused.value.rows} == {40, 618}
    assert ids(table) == set(range(1_000)) - {618}  # row 40 has its former value
    table.node.execute(f"DROP INDEX {table.keyspace}.{table.table}_c_idx")
    table.write((later, rows(values)))
    assert ids(table) == set(range(1_000))


def test_refused_row_alone_in_its_request_is_named(table: NodeTable) -> None:
    """No other row of its request was accepted, so an acknowledged row is sent again to compare."""
    with pytest.raises(RowsRefused, match=r"refuses the row with id=4 of"):
        indexed(table).write((US, rows(["y" * 60_000] * 4 + [TOO_LONG])))
    assert ids(table) == {0, 1, 2, 3}


def test_refused_rows_are_named_up_to_a_hundred(table: NodeTable) -> None:
    """With more rows, and none accepted, the table is at fault."""
    with pytest.raises(RowsRefused, match=r"refuses the row with id=0 of"):
        indexed(table).write((US, rows([TOO_LONG])))
    with pytest.raises(TargetRefused, match=r"refuses the row with id="):
        table.write((US, rows([TOO_LONG] * 101)))
    assert ids(table) == set()


def test_row_at_which_replicas_fail_is_an_outage(table: NodeTable) -> None:
    """A replica answers UNKNOWN, as for a full disk."""
    indexed(table, "vector<float, 2>", "USING 'sai'")
    batch = rows([[1.0, 1.0]] * 9 + [[0.0, 0.0]], pa.list_(pa.float32()))
    with pytest.raises(TargetUnavailable, match="did not acknowledge") as outage:
        table.write((US, batch))
    assert "CDC space" in outage.value.remedy
    assert "DROP INDEX" in outage.value.remedy


@contextmanager
def slow_consumer(cdc: Path) -> Iterator[None]:
    """Delete a node's CDC files one by one, so that its space comes back in small steps."""
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
    settings = {
        "cdc_enabled": True,
        "cdc_total_space": "2MiB",
        "commitlog_segment_size": "1MiB",
    }
    with EmbeddedCassandra(settings=settings) as node, slow_consumer(node.folder / "cdc_raw"):
        node.create_keyspace("ks")
        table = NodeTable(node, "ks")
        node.execute(f"CREATE TABLE {table.name} (id int PRIMARY KEY, c text) WITH cdc = true")
        batch = rows([secrets.token_hex(10_000) for _ in range(300)])
        written = False
        while not written:  # as the flusher does after an outage
            with contextlib.suppress(TargetUnavailable):
                table.write((US, batch))
                written = True
        assert ids(table) == set(range(300))
    assert "WriteFailure" in caplog.text


def test_request_accepted_in_parts_blames_no_row(
    table: NodeTable, caplog: pytest.LogCaptureFixture
) -> None:
    """The request is above `batch_size_fail_threshold`, 50 KiB, and its parts are not."""
    table.create("id int PRIMARY KEY, c text")
    with connect(table.target().options) as connection:
        insert = connection.session.prepare(f"INSERT INTO {table.name} (id, c) VALUES (?, ?)")
        sender = Sender(connection, Concurrency(), FlushMetrics(), timeout_s=10)
        sender.send([request_of(*(insert.bind([i, "x" * 8_000]) for i in range(10)))])
        assert sender.drain() == []
    assert ids(table) == set(range(10))
    assert "refused 10 rows in one request and accepted them in several" in caplog.text
