"""The protocol over a real node, with `tests.protocol.engine` in Spark's place."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from state_backends import open_backend
from tests.protocol.engine import Rows, World
from tests.support.cassandra import target_of
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import TargetRefused, TargetUnavailable
from wal_sink.testing.faults import Faults
from wal_sink.wal.refused import refused_us

pytestmark = pytest.mark.cassandra

TOO_LONG = 70_000
"""Bytes of a text that a secondary index refuses."""

ROWS = [(f"k{i}", i) for i in range(10)]


class NodeWorld(World):
    """A query that writes to a table of the node, some with another column."""

    column = ""
    """A column that rows have beside those of the engine: `l` or `t`."""

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows with that column."""
        frame = super().frame(rows)
        if self.column == "l":
            lists = pa.array([[v, v] for _, v in rows], pa.list_(pa.int64()))
            return frame.append_column("l", lists)
        if self.column == "t":
            texts = pa.array(["x" * (TOO_LONG if v < 0 else 1) for _, v in rows], pa.string())
            return frame.append_column("t", texts)
        return frame

    def dies_halfway(self) -> None:
        """Flush until half of the rows of the next window are written."""
        faults = Faults(at=1, error=lambda: TargetUnavailable("lost"), matching="write ")
        with pytest.raises(TargetUnavailable):
            self.flush(faults)
        assert faults.injected


@pytest.fixture
def world(cassandra: Node, keyspace: str, tmp_path: Path) -> Iterator[NodeWorld]:
    """A new query with a table of its own."""
    cassandra.execute(
        f"CREATE TABLE {keyspace}.t (k text PRIMARY KEY, v bigint, l list<bigint>, t text)"
    )
    checkpoint, log = (open_backend(str(tmp_path / name)) for name in ("checkpoint", "log"))
    world = NodeWorld(checkpoint, log, target_of(cassandra, keyspace))
    world.clock.us = time.time_ns() // 1_000
    yield world
    world.end_sessions()


def write_times(cassandra: Node, keyspace: str) -> dict[str, int]:
    """The write timestamp of each row."""
    rows = cassandra.execute(f"SELECT k, writetime(v) AS us FROM {keyspace}.t")
    return {row.k: row.us for row in rows}


def test_flush_that_died_is_repeated_with_the_same_timestamps(
    world: NodeWorld, cassandra: Node, keyspace: str
) -> None:
    """Half of the rows are there; the next flusher writes all of them, over themselves."""
    world.run().batch(ROWS)
    world.dies_halfway()
    earlier = write_times(cassandra, keyspace)
    assert 0 < len(earlier) < 10
    world.clock.us += 60_000_000
    world.flush()
    after = write_times(cassandra, keyspace)
    assert earlier.items() <= after.items()
    assert sorted(after.values()) == list(range(min(after.values()), min(after.values()) + 10))


def test_lists_of_a_flush_that_died_get_later_timestamps(
    world: NodeWorld, cassandra: Node, keyspace: str
) -> None:
    """Elements of a list that is sent twice with one timestamp come twice; each sending is claimed first."""
    world.column = "l"
    run = world.run()
    assert run.plan.sent_once
    run.batch(ROWS)
    world.dies_halfway()
    earlier = write_times(cassandra, keyspace)
    assert 0 < len(earlier) < 10
    with world.target.connect(world.query_id) as session:
        row = session.read()
    assert row is not None
    assert (row.epoch, row.sending) == (-1, 1)
    world.flush()
    run.batch([("k0", 100)])
    world.flush()
    rows = cassandra.execute(f"SELECT k, v, l FROM {keyspace}.t")
    assert {row.k: (row.v, row.l) for row in rows} == {
        k: (v, [v, v]) for k, v in dict([*ROWS, ("k0", 100)]).items()
    }
    after = write_times(cassandra, keyspace)
    assert all(after[k] >= us + len(ROWS) for k, us in earlier.items())


def test_refused_row_alone_in_its_window_is_quarantined(
    world: NodeWorld, cassandra: Node, keyspace: str
) -> None:
    """The flush goes on at once: no other epoch has to come."""
    cassandra.execute(f"CREATE INDEX ON {keyspace}.t (t)")
    world.column, world.on_invalid_row = "t", "quarantine"
    run = world.run()
    run.batch([("bad", -1)])
    world.flush()
    assert world.mark() == 0
    assert list(refused_us(world.store, world.target.name, -1)) == [0]
    run.batch([("a", 1)])
    world.flush()
    rows = cassandra.execute(f"SELECT k, v FROM {keyspace}.t")
    assert {row.k: row.v for row in rows} == {"a": 1}
    assert world.mark() == 1


def test_row_that_the_node_refuses_stops_the_flush(
    world: NodeWorld, cassandra: Node, keyspace: str
) -> None:
    """Without quarantine; when the index is gone, the flush goes on."""
    cassandra.execute(f"CREATE INDEX refusing ON {keyspace}.t (t)")
    world.column = "t"
    world.run().batch([("a", 1), ("bad", -1), ("b", 2)])
    with pytest.raises(TargetRefused, match=r"row with k='bad' .*Cannot index value of size"):
        world.flush()
    assert world.mark() == -1
    cassandra.execute(f"DROP INDEX {keyspace}.refusing")
    world.flush()
    rows = cassandra.execute(f"SELECT k, v FROM {keyspace}.t")
    assert {row.k: row.v for row in rows} == {"a": 1, "bad": -1, "b": 2}
