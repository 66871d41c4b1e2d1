"""Encoded rows on a real node: the same as by the driver's own classes, and without a warning."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cassandra.cluster import Cluster

from tests.cassandra.asyncio_driver import Asyncio
from tests.support.cassandra import NodeTable
from wal_sink.demo.cassandra import Node
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra.batches import Batches
from wal_sink.targets.cassandra.driver.connection import Connection, _profiles
from wal_sink.targets.cassandra.driver.internals import WideConnection
from wal_sink.targets.cassandra.driver.requests_in_flight import RequestPipeline, SentGroup
from wal_sink.targets.cassandra.session import CassandraSession
from wal_sink.targets.cassandra.statements import driver_statement

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000
COUNT = 3_000
VERSIONS = [4, 5]


class FramesTable(NodeTable):
    """A table, with sessions over connections of a protocol version and an event loop."""

    def slice(self, batch: pa.RecordBatch) -> tuple[Plan, RowSlice]:
        target = self.target()
        plan = target.plan(batch.schema, "k")
        return plan, RowSlice(0, target.check(batch, plan), US)

    @contextmanager
    def session(
        self, version: int = 5, loop: type[Any] = WideConnection
    ) -> Iterator[CassandraSession]:
        options = self.target().options
        cluster = Cluster(
            [self.node.host],
            port=self.node.port,
            protocol_version=version,
            compression=False,
            connection_class=loop,
            execution_profiles=_profiles(options),
        )
        session = cluster.connect()
        with Connection(cluster, session, "datacenter1") as connection:
            yield CassandraSession(connection, options, "q")

    def texts(self, columns: str) -> list[str]:
        return sorted(str(tuple(row)) for row in self.select(columns))


COLUMNS = "k int, n int, a bigint, b double, c text, s set<int>, PRIMARY KEY (k, n)"
WRITTEN = "k, n, a, b, c, s, writetime(a), writetime(c)"


@pytest.fixture
def table(cassandra: Node, shared: str) -> FramesTable:
    return FramesTable(cassandra, shared, COLUMNS)


def some_rows(keys: Any) -> pa.RecordBatch:
    """Return rows with these partition keys."""
    count = len(keys)
    return pa.record_batch(
        {
            "k": pa.array(keys, pa.int32()),
            "n": pa.array(range(count), pa.int32()),
            "a": pa.array([None if i % 7 == 0 else i * i for i in range(count)], pa.int64()),
            "b": pa.array([i / 3 for i in range(count)]),
            "c": pa.array([None if i % 5 == 0 else f"é{i}" * (i % 4) for i in range(count)]),
            "s": pa.array(
                [[i, i + 1] if i % 3 else None for i in range(count)], pa.list_(pa.int32())
            ),
        }
    )


MIXED = np.where(np.arange(COUNT) % 3 == 0, 7, np.arange(COUNT) % 500)
"""The keys of a large partition between small ones."""


class Pushes:
    """Counts pushes without a failure, and acknowledged requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = self.requests = 0
        await_group = RequestPipeline.await_group

        def counted(pipeline: RequestPipeline) -> SentGroup:
            sent = await_group(pipeline)
            self.number += not sent.failed
            self.requests += sent.acknowledged
            return sent

        monkeypatch.setattr(RequestPipeline, "await_group", counted)


@pytest.mark.parametrize("loop", [WideConnection, Asyncio])
@pytest.mark.parametrize("version", VERSIONS)
def test_rows_equal_those_of_the_drivers_own_classes(
    table: FramesTable, version: int, loop: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, rows = table.slice(some_rows(MIXED))
    with table.session(version, loop) as session:
        (pool,) = session._connection.session.get_pools()
        assert isinstance(pool._connection, loop)
        by_push = Pushes(monkeypatch)
        session.write(plan, rows)
        session.drain()
        assert by_push.requests > 2 * by_push.number
        assert pool._connection.in_flight == 0
    by_encoding = table.texts(WRITTEN)
    assert len(by_encoding) == COUNT
    table.node.execute(f"TRUNCATE {table.name}")
    monkeypatch.setattr(RequestPipeline, "send", lambda *_: False)
    with table.session(version, loop) as session:
        session.write(plan, rows)
        session.drain()
    assert table.texts(WRITTEN) == by_encoding


@pytest.mark.parametrize("version", VERSIONS)
def test_statement_forgotten_by_the_server_is_prepared_again(
    table: FramesTable, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A new column evicts the statement from the server."""
    plan, rows = table.slice(some_rows(MIXED))
    with table.session(version) as session:
        session.write(plan, rows._replace(batch=rows.batch.slice(0, 10)))
        session.drain()
        table.node.execute(f"ALTER TABLE {table.name} ADD late int")
        with caplog.at_level(logging.DEBUG, "cassandra.cluster"):
            session.write(plan, rows)
            session.drain()
    assert "Re-preparing unrecognized prepared statement" in caplog.text
    assert len(table.texts("k, n")) == COUNT


def warnings(session: CassandraSession, plan: Plan, rows: RowSlice) -> set[str]:
    """Send each request by itself, and return the server's warnings."""
    texts: set[str] = set()
    requests = session.prepare(plan)
    requests.buffer.add(rows)
    for request in requests.take():
        future = session._connection.session.execute_async(driver_statement(request))
        future.result()
        texts.update(future.warnings or ())
    return texts


@pytest.mark.parametrize(
    "keys",
    [MIXED, np.arange(COUNT), np.arange(COUNT) // 300, np.arange(COUNT) // 4, np.zeros(COUNT)],
    ids=["mixed", "scattered", "grouped", "small partitions", "one partition"],
)
def test_batches_cause_no_warning_of_the_server(table: FramesTable, keys: Any) -> None:
    plan, rows = table.slice(some_rows(keys))
    with table.session() as session:
        assert warnings(session, plan, rows) == set()


@pytest.mark.parametrize(
    ("columns", "kind", "value"),
    [
        (", ".join(f"c{i} int" for i in range(30)), pa.int32(), 1),
        ("c0 set<tinyint>", pa.list_(pa.int8()), list(range(50))),
        ("c0 map<text, text>", pa.map_(pa.string(), pa.string()), [(str(i), "") for i in range(9)]),
        ("c0 text", pa.string(), "x" * 500),
        ("c0 text", pa.string(), None),
    ],
    ids=["many columns", "set", "map", "text", "null"],
)
def test_batches_of_heavy_rows_cause_no_warning(
    cassandra: Node, shared: str, columns: str, kind: pa.DataType, value: Any
) -> None:
    """The server counts 20 bytes for each cell, and each element of a collection is a cell."""
    table = FramesTable(cassandra, shared, f"k int PRIMARY KEY, {columns}")
    names = [f"c{i}" for i in range(columns.count("c"))] if "int," in columns else ["c0"]
    values = {name: pa.array([value] * 100, kind) for name in names}
    plan, rows = table.slice(pa.record_batch({"k": pa.array(range(100), pa.int32()), **values}))
    with table.session() as session:
        assert warnings(session, plan, rows) == set()


def test_larger_batches_cause_warnings_of_the_server(
    table: FramesTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above would see a warning."""
    plan, rows = table.slice(some_rows(range(COUNT)))

    def of_twenty(*_: object) -> Batches:
        return Batches(None, np.arange(0, COUNT + 1, 100))

    monkeypatch.setattr("wal_sink.targets.cassandra.batches.divide", of_twenty)
    with table.session() as session:
        text = " ".join(warnings(session, plan, rows))
    assert "exceeding specified threshold of 5120" in text
    assert "Unlogged batch covering 100 partitions" in text
