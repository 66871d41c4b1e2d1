"""Rows that are encoded beforehand, on a real node: the same as by the driver's own classes."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cassandra.cluster import Cluster
from cassandra.io.asyncioreactor import AsyncioConnection

from tests.cassandra.asyncio_driver import Asyncio
from tests.support.cassandra import options_of
from wal_sink.demo.servers.cassandra import Node
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.driver.connection import Connection, _profiles
from wal_sink.targets.cassandra.driver.internals import WideConnection
from wal_sink.targets.cassandra.driver.pipeline import RequestPipeline, Sent
from wal_sink.targets.cassandra.session import CassandraSession
from wal_sink.targets.cassandra.write.batches import Batches, requests
from wal_sink.targets.cassandra.write.statements import bound

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000
COUNT = 3_000
VERSIONS = [4, 5]


class Table:
    """A table, and what it takes to write to it by a session with settings of one's own."""

    def __init__(self, node: Node, keyspace: str, columns: str) -> None:
        self.node = node
        self.keyspace = keyspace
        self.table = "t_" + uuid.uuid4().hex[:8]
        node.execute(f"CREATE TABLE {keyspace}.{self.table} ({columns})")
        self.options = options_of(node, keyspace, self.table)

    def slice(self, batch: pa.RecordBatch, us: int = US) -> tuple[Plan, RowSlice]:
        target = CassandraTarget(self.options)
        plan = target.plan(batch.schema, "k")
        return plan, RowSlice(0, target.check(batch, plan), us)

    @contextmanager
    def session(
        self, version: int = 5, reactor: type = WideConnection
    ) -> Iterator[CassandraSession]:
        cluster = Cluster(
            [self.node.host],
            port=self.node.port,
            protocol_version=version,
            compression=False,
            connection_class=reactor,
            execution_profiles=_profiles(self.options),
        )
        session = cluster.connect()
        with Connection(cluster, session, "datacenter1") as connection:
            yield CassandraSession(connection, self.options, "q")

    def rows(self, what: str) -> list[str]:
        rows = self.node.execute(f"SELECT {what} FROM {self.keyspace}.{self.table}")
        return sorted(str(tuple(row)) for row in rows)


COLUMNS = "k int, n int, a bigint, b double, c text, s set<int>, PRIMARY KEY (k, n)"
WRITTEN = "k, n, a, b, c, s, writetime(a), writetime(c)"


@pytest.fixture
def table(cassandra: Node, keyspace: str) -> Table:
    """A table with a partition key, a clustering column, and nulls."""
    return Table(cassandra, keyspace, COLUMNS)


def some_rows(keys: Any) -> pa.RecordBatch:
    """Rows with these partition keys."""
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
"""A large partition between small ones."""


class Pushes:
    """Counts what goes by pushes and is acknowledged."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = self.requests = 0
        take = RequestPipeline.take

        def counted(pipeline: RequestPipeline) -> Sent:
            sent = take(pipeline)
            self.number += not sent.failed
            self.requests += sent.acknowledged
            return sent

        monkeypatch.setattr(RequestPipeline, "take", counted)


@pytest.mark.parametrize("version", VERSIONS)
def test_same_rows_as_by_the_drivers_own_classes(
    table: Table, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and write times, of grouped and scattered rows; in both protocol versions."""
    plan, rows = table.slice(some_rows(MIXED))
    with table.session(version) as session:
        by_push = Pushes(monkeypatch)
        session.write(plan, rows)
        session.drain()
        assert by_push.requests > 2 * by_push.number
    by_encoding = table.rows(WRITTEN)
    assert len(by_encoding) == COUNT
    table.node.execute(f"TRUNCATE {table.keyspace}.{table.table}")
    monkeypatch.setattr(RequestPipeline, "send", lambda *_: False)
    with table.session(version) as session:
        session.write(plan, rows)
        session.drain()
    assert table.rows(WRITTEN) == by_encoding


@pytest.mark.parametrize("version", VERSIONS)
def test_drivers_event_loop_of_asyncio(
    table: Table, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests share its pushes, and their answers are read many at once."""
    plan, rows = table.slice(some_rows(MIXED))
    with table.session(version, reactor=Asyncio) as session:
        (pool,) = session._connection.session.get_pools()
        assert isinstance(pool._connection, AsyncioConnection)
        by_push = Pushes(monkeypatch)
        session.write(plan, rows)
        session.drain()
        assert by_push.requests > 2 * by_push.number
        assert pool._connection.in_flight == 0
    assert len(table.rows("k, n")) == COUNT


@pytest.mark.parametrize("version", VERSIONS)
def test_statement_that_the_server_has_forgotten_is_prepared_again(
    table: Table, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A new column evicts it; the driver meets that in the answer to a batch, and goes on."""
    plan, rows = table.slice(some_rows(MIXED))
    with table.session(version) as session:
        session.write(plan, rows._replace(batch=rows.batch.slice(0, 10)))
        session.drain()
        table.node.execute(f"ALTER TABLE {table.keyspace}.{table.table} ADD late int")
        with caplog.at_level(logging.DEBUG, "cassandra.cluster"):
            session.write(plan, rows)
            session.drain()
    assert "Re-preparing unrecognized prepared statement" in caplog.text
    assert len(table.rows("k, n")) == COUNT


# --- what the server warns of ----------------------------------------------------------------


def warnings(session: CassandraSession, plan: Plan, rows: RowSlice) -> set[str]:
    """Send each request by itself, and return what the server says about it."""
    texts: set[str] = set()
    prepared = session.prepare(plan)
    prepared.buffer.add(rows)
    (timestamped,) = prepared.buffer.take()
    for request in requests(prepared, timestamped):
        future = session._connection.session.execute_async(bound(request))
        future.result()
        texts.update(future.warnings or ())
    return texts


@pytest.mark.parametrize(
    "keys",
    [MIXED, np.arange(COUNT), np.arange(COUNT) // 300, np.arange(COUNT) // 4, np.zeros(COUNT)],
    ids=["mixed", "scattered", "grouped", "small partitions", "one partition"],
)
def test_server_warns_of_no_batch(table: Table, keys: Any) -> None:
    """Whatever the data's shape."""
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
def test_server_gives_no_warning_of_heavy_rows(
    cassandra: Node, keyspace: str, columns: str, kind: pa.DataType, value: Any
) -> None:
    """It counts 20 bytes for a cell, and an element of a collection is one."""
    table = Table(cassandra, keyspace, f"k int PRIMARY KEY, {columns}")
    names = [f"c{i}" for i in range(columns.count("c"))] if "int," in columns else ["c0"]
    values = {name: pa.array([value] * 100, kind) for name in names}
    plan, rows = table.slice(pa.record_batch({"k": pa.array(range(100), pa.int32()), **values}))
    with table.session() as session:
        assert warnings(session, plan, rows) == set()


def test_server_would_warn_of_more(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eleven partitions are too many, and so are twenty of 300 bytes: the tests above see it."""
    plan, rows = table.slice(some_rows(range(COUNT)))

    def of_twenty(*_: object) -> Batches:
        return Batches(None, np.arange(0, COUNT + 1, 100))

    monkeypatch.setattr("wal_sink.targets.cassandra.write.batches.divide", of_twenty)
    with table.session() as session:
        text = " ".join(warnings(session, plan, rows))
    assert "exceeding specified threshold of 5120" in text
    assert "Unlogged batch covering 100 partitions" in text
