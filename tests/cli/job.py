"""A query in a folder over a real Cassandra, and what a shell knows of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from state_backends import open_backend
from tests.cli.shell import Done, run
from tests.protocol.engine import World
from tests.protocol.operators import edit
from tests.support.cassandra import raw_options
from wal_sink import errors
from wal_sink.model import paths
from wal_sink.model.records import Claim
from wal_sink.options import parse
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.options import CassandraOptions
from wal_sink.testing.servers.cassandra import EmbeddedCassandra


class Job(NamedTuple):
    """A query in a folder, and what a shell knows of it."""

    world: World
    node: EmbeddedCassandra
    keyspace: str
    folder: Path

    def flush(self, error: type[errors.WalSinkError] | None = None) -> None:
        """Flush; `error` is the one that stops the flush."""
        if error is None:
            self.world.flush()
            return
        with pytest.raises(error):
            self.world.flush()

    def table(self) -> dict[str, int]:
        found = self.node.execute(f"SELECT k, v FROM {self.keyspace}.t")
        return {row.k: row.v for row in found}

    def command(
        self, *arguments: object, checkpoint: str = "checkpoint", answer: str | None = None
    ) -> Done:
        """Run `wal-sink <verb> <checkpoint> …` as a shell does; without an answer, stdin is closed."""
        verb, *others = arguments
        return run(self.folder, verb, checkpoint, *others, answer=answer)


def target(node: EmbeddedCassandra, keyspace: str, **more: str) -> tuple[CassandraTarget, Mapping]:  # type: ignore[type-arg]
    raw = raw_options(node, keyspace, **more)
    return CassandraTarget(parse(raw, CassandraOptions)), raw


@pytest.fixture
def job(cassandra: EmbeddedCassandra, keyspace: str, tmp_path: Path) -> Job:
    """Two epochs are flushed and three wait; the log is where it is by default."""
    cassandra.execute(f"CREATE TABLE {keyspace}.t (k text PRIMARY KEY, v bigint)")
    made, options = target(cassandra, keyspace)
    checkpoint = open_backend(str(tmp_path / "checkpoint"))
    world = World(checkpoint, checkpoint, made)
    world.log_backend = open_backend(str(tmp_path / "checkpoint" / "wal_sink" / world.query_id))
    world.clock.us = time.time_ns() // 1_000
    batches = world.run()
    for epoch in range(5):
        batches.batch([(f"a{epoch}", epoch)], [(f"b{epoch}", epoch)])
        if epoch == 1:
            world.flush()
    # As a run of Spark leaves it: the engine has no options.
    claim = Claim(
        run_id=batches.run_id, options={**options, "wal.compression": "lz4"}, early=False, epoch=0
    )
    edit(world.log_backend, paths.CLAIM.path(1), claim.to_json())
    return Job(world, cassandra, keyspace, tmp_path)


EVERYTHING = {f"{name}{epoch}": epoch for epoch in range(5) for name in "ab"}
