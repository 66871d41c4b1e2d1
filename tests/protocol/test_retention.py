"""`wal.retention`: how long a flushed epoch stays in the log (rule `trim`)."""

from __future__ import annotations

import pytest

from tests.protocol.engine import World
from wal_sink.configuration import configure, retention_of
from wal_sink.protocol.retention import Retention

pytestmark = pytest.mark.rule("trim")

SECOND = 1_000_000
ANY_SIZE = 1 << 60
STORES = ("memory", "local")


def epochs(world: World) -> list[int]:
    """Return the epochs whose manifests are in the log."""
    return [int(path[10:30]) for path in world.log_backend.list("manifests/")]


def test_retention_defaults_to_ten_minutes_and_tenth_of_budget(tmp_path: object) -> None:
    options = {"checkpointLocation": f"{tmp_path}", "target": "sqlite_target:SqliteTarget"}
    options |= {"sqlite.path": "x", "table": "t"}
    assert retention_of(configure(options).sink) == Retention(
        us=600 * SECOND, bytes=(10 << 30) // 10
    )
    options |= {"wal.retention": "1h", "wal.maxBytes": "1g"}
    assert retention_of(configure(options).sink) == Retention(
        us=3_600 * SECOND, bytes=(1 << 30) // 10
    )


def test_flushed_epoch_is_trimmed_after_its_retention(world: World) -> None:
    """A later pass of any flusher deletes it, without a later epoch."""
    world.retention = Retention(us=10 * SECOND, bytes=ANY_SIZE)
    run = world.run().batches([("a", 0)])
    world.clock.us += 2 * SECOND
    world.flush()
    world.clock.us += 5 * SECOND
    run.flushed_batches([("b", 1)])
    assert epochs(world) == [0, 1]
    world.clock.us += 6 * SECOND
    world.flush()
    assert (epochs(world), world.state.trimmed) == ([1], 0)
    world.clock.us += 5 * SECOND
    world.flush()
    assert epochs(world) == []
    assert world.log_backend.list("segments/") == []
    assert world.table() == {"a": 0, "b": 1}


def test_flushed_epochs_are_kept_up_to_their_bytes(world: World) -> None:
    """An epoch that is larger does not stay."""
    run = world.run().flushed_batches([("a", 0)])
    size = world.state.last.sums.bytes
    world.retention = Retention(us=10**9 * SECOND, bytes=2 * size + 10)
    for number in range(6):
        run.flushed_batches([("a", number)])
    assert len(epochs(world)) in (2, 3)
    world.retention = Retention(us=10**9 * SECOND, bytes=1)
    run.flushed_batches([("a", 9)])
    world.flush()
    assert epochs(world) == [7], "no bytes are kept but the mark's"


def test_mark_of_a_clock_ahead_only_delays_the_trim(world: World) -> None:
    """The clock of the flusher's host was an hour ahead when it set the mark."""
    world.retention = Retention(us=10 * SECOND, bytes=ANY_SIZE)
    run = world.run()
    world.clock.us += 3_600 * SECOND
    run.flushed_batches([("a", 0)])
    world.clock.us -= 3_600 * SECOND
    run.flushed_batches([("b", 1)])
    world.clock.us += 5 * SECOND
    world.flush()
    assert epochs(world) == [0, 1]
    world.clock.us += 6 * SECOND
    world.flush()
    assert epochs(world) == []
