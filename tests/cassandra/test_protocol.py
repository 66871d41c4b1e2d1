"""The protocol over a real node, with `tests.protocol.engine` in Spark's place."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.protocol.engine import World
from tests.support.cassandra import target_of
from wal_sink.errors import TargetUnavailable
from wal_sink.testing.faults import Faults
from wal_sink.testing.servers.cassandra import Node

pytestmark = pytest.mark.cassandra


@pytest.fixture
def world(cassandra: Node, keyspace: str, tmp_path: Path) -> World:
    """A new query that writes to a table of the node."""
    cassandra.execute(f"CREATE TABLE {keyspace}.t (k text PRIMARY KEY, v bigint)")
    checkpoint, log = (open_backend(str(tmp_path / name)) for name in ("checkpoint", "log"))
    world = World(checkpoint, log, target_of(cassandra, keyspace))
    world.clock.us = time.time_ns() // 1_000
    return world


def table(cassandra: Node, keyspace: str) -> dict[str, int]:
    """What is in the table."""
    return {row.k: row.v for row in cassandra.execute(f"SELECT k, v FROM {keyspace}.t")}


def test_flush_that_died_is_repeated_with_the_same_timestamps(
    world: World, cassandra: Node, keyspace: str
) -> None:
    """Half of the rows are there; the next flusher writes all of them, over themselves."""
    world.run().batch([(f"k{i}", i) for i in range(10)])
    faults = Faults(at=1, error=lambda: TargetUnavailable("lost"), matching="write")
    with pytest.raises(TargetUnavailable):
        world.flush(faults)
    before = write_times(cassandra, keyspace)
    assert 0 < len(before) < 10
    world.clock.us += 60_000_000
    world.flush()
    after = write_times(cassandra, keyspace)
    assert before.items() <= after.items()
    assert sorted(after.values()) == list(range(min(after.values()), min(after.values()) + 10))


def write_times(cassandra: Node, keyspace: str) -> dict[str, int]:
    """The write timestamp of each row."""
    found = cassandra.execute(f"SELECT k, writetime(v) AS us FROM {keyspace}.t")
    return {row.k: row.us for row in found}
