"""Lists that are not frozen, over a real node and the protocol of `tests.protocol.engine`."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest

from state_backends import open_backend
from tests.protocol.engine import Rows, World
from tests.support.cassandra import NodeTable
from wal_sink.demo.cassandra import Node
from wal_sink.errors import TargetUnavailable
from wal_sink.testing.faults import Faults

pytestmark = pytest.mark.cassandra

ROWS = [(f"k{i}", i) for i in range(10)]


class ListWorld(World):
    """A query whose rows have a list beside the columns of the engine."""

    def frame(self, rows: Rows) -> pa.RecordBatch:
        lists = pa.array([[v, v] for _, v in rows], pa.list_(pa.int64()))
        return super().frame(rows).append_column("l", lists)


def test_repeated_window_of_lists_has_later_timestamps(
    cassandra: Node, keyspace: str, tmp_path: Path
) -> None:
    """The ledger counts each sending before its rows. Equal timestamps would double the elements."""
    table = NodeTable(cassandra, keyspace, "k text PRIMARY KEY, v bigint, l list<bigint>")
    checkpoint, log = (open_backend(str(tmp_path / name)) for name in ("checkpoint", "log"))
    world = ListWorld(checkpoint, log, table.target())
    world.clock.us = time.time_ns() // 1_000

    def write_times() -> dict[str, int]:
        return {row.k: row.us for row in table.select("k, writetime(v) AS us")}

    run = world.run()
    assert run.plan.sent_once
    run.batch(ROWS)
    faults = Faults(at=1, error=lambda: TargetUnavailable("lost"), matching="write ")
    with pytest.raises(TargetUnavailable):
        world.flush(faults)
    earlier = write_times()
    assert 0 < len(earlier) < 10
    with world.target.connect(world.query_id) as session:
        row = session.read()
    assert row is not None
    assert (row.epoch, row.sending) == (-1, 1)
    world.flush()
    run.batch([("k0", 100)])
    world.flush()
    assert {row.k: (row.v, row.l) for row in table.select()} == {
        k: (v, [v, v]) for k, v in dict([*ROWS, ("k0", 100)]).items()
    }
    after = write_times()
    assert all(after[k] >= us + len(ROWS) for k, us in earlier.items())
    world.end_sessions()
