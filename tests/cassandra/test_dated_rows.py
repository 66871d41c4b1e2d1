"""Rows that the server dates, `cassandra.ifNotExists`, beside rows that the log dates: over a real node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from state_backends import open_backend
from tests.protocol.engine import Rows, World
from wal_sink.errors import TargetUnavailable
from wal_sink.options import parse
from wal_sink.targets.base import Target
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.testing.servers.cassandra import Node

pytestmark = pytest.mark.cassandra

ABSENT = {"cassandra.ifNotExists": "true"}
DELETES = {"operationColumn": "op"}
SECOND = 1_000_000

Make = Callable[[dict[str, str]], Target]


class _Changes(World):
    """A world in which a value of None is a delete, where the target has deletes."""

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them."""
        batch = super().frame(rows)
        if not self.deletes:
            return batch
        words = ["delete" if value is None else "upsert" for _, value in rows]
        return batch.append_column("op", pa.array(words, pa.string()))

    deletes = False


@pytest.fixture
def make(cassandra: Node, keyspace: str) -> Make:
    """Return a function of options that makes targets over one empty table."""
    cassandra.execute(f"CREATE TABLE {keyspace}.t (k text PRIMARY KEY, v bigint)")

    def target(options: dict[str, str]) -> Target:
        raw = {
            "cassandra.contactPoints": cassandra.host,
            "cassandra.port": str(cassandra.port),
            "keyspace": keyspace,
            "table": "t",
            **options,
        }
        return CassandraTarget(parse(raw, CassandraOptions))

    return target


@pytest.fixture
def world(make: Make, tmp_path: Path) -> _Changes:
    """A query whose hosts have the node's time."""
    checkpoint, log = (open_backend(str(tmp_path / name)) for name in ("checkpoint", "log"))
    world = _Changes(checkpoint, log, make(ABSENT))
    world.clock.us = time.time_ns() // 1_000
    return world


def table(cassandra: Node, keyspace: str) -> dict[str, int]:
    """What is in the table."""
    return {row.k: row.v for row in cassandra.execute(f"SELECT k, v FROM {keyspace}.t")}


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("behind_s", [0, 20])
def test_rule_14_a_row_after_one_that_the_server_has_dated_is_seen(
    world: _Changes, make: Make, cassandra: Node, keyspace: str, behind_s: int, *, flushed: bool
) -> None:
    """The option is taken away while its epoch waits; or after it, and the driver's clock is behind."""
    world.clock.us -= behind_s * SECOND
    world.run().batch([("a", 1), ("b", 1)])
    if flushed:
        world.flush()
    world.target = make({})
    world.run().batch([("a", 2)])
    world.flush()
    assert table(cassandra, keyspace) == {"a": 2, "b": 1}


def test_rule_14_a_row_that_the_server_dates_after_a_delete_is_seen(
    world: _Changes, make: Make, cassandra: Node, keyspace: str
) -> None:
    """The option is set after deletes that a driver whose clock is ahead has dated: the flush waits."""
    world.clock.us += 20 * SECOND
    world.target, world.deletes = make(DELETES), True
    world.run().batch([("a", 1)])
    world.run().batch([("a", None)])
    world.flush()
    world.target, world.deletes = make(ABSENT), False
    world.run().batch([("a", 3)])
    with pytest.raises(TargetUnavailable, match="dates the rows of epoch 2 itself"):
        world.flush()
    assert table(cassandra, keyspace) == {}
