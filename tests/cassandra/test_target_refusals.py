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
from wal_sink.errors import TargetUnavailable
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.connection import connect
from wal_sink.targets.cassandra.sender import Sender
from wal_sink.telemetry import FlushMetrics

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000


@pytest.fixture
def table(cassandra: Node, shared: str) -> NodeTable:
    return NodeTable(cassandra, shared)


def rows(values: list[Any], kind: pa.DataType | None = None) -> pa.RecordBatch:
    ids = pa.array(range(len(values)), pa.int32())
    return pa.record_batch({"id": ids, "c": pa.array(values, kind or pa.string())})


def ids(table: NodeTable) -> set[int]:
    return {row.id for row in table.select("id")}


def test_row_at_which_replicas_fail_is_an_outage(table: NodeTable) -> None:
    """A replica answers UNKNOWN, as for a full disk."""
    table.create("id int PRIMARY KEY, c vector<float, 2>")
    table.node.execute(f"CREATE INDEX ON {table.name} (c) USING 'sai'")
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
