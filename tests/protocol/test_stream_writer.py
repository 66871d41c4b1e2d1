"""Spark's writer, called as Spark calls it, without a JVM: commit, and abort after it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.protocol.engine import Run, World
from wal_sink.configuration import Configuration
from wal_sink.errors import WalSinkError
from wal_sink.options import SinkOptions
from wal_sink.spark.data_source import Message, WalSinkStreamWriter
from wal_sink.testing.cell_store import CellStoreOptions
from wal_sink.wal.location import locate


@pytest.fixture
def started(tmp_path: Path) -> tuple[Run, WalSinkStreamWriter]:
    """Start a run, and give the writer of its first micro-batch."""
    location = locate(str(tmp_path))
    world = World(location.open_checkpoint()._backend, location.open_log("query").backend)
    world.query_id = "query"
    run = world.run()
    run.write_offsets()
    configuration = Configuration(
        SinkOptions(checkpoint=str(tmp_path)), CellStoreOptions(keys="k"), world.store, location
    )
    return run, WalSinkStreamWriter(configuration, run.plan)


def test_rule_7_abort_after_an_effective_commit_deletes_nothing(
    started: tuple[Run, WalSinkStreamWriter],
) -> None:
    """Spark calls it with all messages when `commit` raised, though its manifest may exist."""
    run, writer = started
    messages = [Message(appended) for appended in run.tasks([("a", 1)], [("b", 2)])]
    writer.commit(messages, 0)
    writer.abort(messages, 0)
    run.write_commit([[("a", 1)], [("b", 2)]])
    run.world.flush()
    assert run.world.table() == run.world.expected() == {"a": 1, "b": 2}


def test_a_lost_message_is_not_passed_over(started: tuple[Run, WalSinkStreamWriter]) -> None:
    """Its rows would be missing from the manifest."""
    run, writer = started
    (appended,) = run.tasks([("a", 1)])
    with pytest.raises(WalSinkError, match="2 messages, 1 of them"):
        writer.commit([Message(appended), None], 0)
    assert run.world.log.attempts() == ()
