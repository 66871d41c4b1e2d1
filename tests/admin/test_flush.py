"""Flushers in a process without Spark, over a target in memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from tests.protocol.engine import World, in_memory
from tests.protocol.operators import TargetBackup
from wal_sink import errors
from wal_sink.admin import flush
from wal_sink.admin.flush import FlushDone
from wal_sink.admin.repair import refuse_beside_flusher
from wal_sink.model import paths
from wal_sink.progress.flusher_report import read_report
from wal_sink.protocol.retention import Retention
from wal_sink.testing.faults import Crash, Faults
from wal_sink.testing.memory_target import MemorySession


@pytest.fixture
def world() -> World:
    """Return a new query."""
    return World(*in_memory())


def drain(world: World, faults: Faults | None = None, wait: flush.Wait | None = None) -> FlushDone:
    """Flush the epochs that are checkpointed now."""
    pipelines = [world.flusher(faults).pipeline]
    (done,) = flush.drain(pipelines, wait=wait or threading.Event().wait)
    return done


def test_flush_ends_though_the_query_continues(world: World) -> None:
    """During each write, the query completes another epoch."""
    batches = world.run().batches([("k", 0)])

    class Busy(Faults):
        """Completes an epoch during each write."""

        @contextlib.contextmanager
        def around(self, name: str) -> Iterator[None]:
            if name.startswith("write") and batches.next < 20:
                batches.batch([("k", batches.next)])
            yield

    done = drain(world, Busy())
    assert done.reason.startswith("everything ")
    assert done.flushed >= 0
    assert batches.next < 10
    last = drain(world)
    assert last.reason == "everything checkpointed is flushed"
    assert world.table() == {"k": batches.next - 1}


def test_flush_retries_and_clears_a_transient_error(world: World) -> None:
    world.run().batch([("a", 1)], [("b", 2)])
    faults = Faults(at=1, error=lambda: ConnectionError("busy"), matching="write")
    done = drain(world, faults)
    assert (done.epochs, done.rows, done.pending_epochs) == (1, 2, 0)
    assert faults.injected is not None
    assert world.table() == {"a": 1, "b": 2}
    report = read_report(world.log_backend, "memory")
    assert report is not None
    assert report.error is None


def test_flush_to_restored_target_survives_a_log_outage(world: World) -> None:
    """Each listing of the states fails once, except the first listing and that for the outcome."""
    world.retention = Retention(us=1 << 60, bytes=1 << 60)
    run = world.run()
    run.batch([("a", 1)])
    drain(world)
    backup, listing = TargetBackup(world), f"list {paths.STATE.folder}"
    run.batch([("b", 2)])
    drain(world)
    backup.restore()
    whole = Faults(matching=listing)
    drain(world, whole)
    for at in range(1, len(whole.operations) - 1):
        backup.restore()
        faults = Faults(at=at, error=lambda: ConnectionError("busy"), matching=listing)
        drain(world, faults)
        assert faults.injected
        assert world.table() == world.expected()


def test_interrupted_flush_reports_the_pending_epochs(world: World) -> None:
    """The next flusher completes the window."""
    world.run().batch([("a", 1)], [("b", 2)])
    down = Faults(at=0, error=lambda: ConnectionError("busy"), matching="write")
    with pytest.raises(errors.NotDrained, match="1 epoch is pending"):
        drain(world, down, lambda _seconds: down.injected is not None)
    assert world.table() == {}
    drain(world)
    assert world.table() == world.expected()


@pytest.mark.parametrize("fails", [False, True])
def test_flusher_that_ended_does_not_count_as_alive(world: World, *, fails: bool) -> None:
    """The flusher's process still runs."""
    world.run().batch([("a", 1)])
    faults = Faults(at=0, error=RuntimeError, matching="write") if fails else None
    with pytest.raises(errors.TargetRefused) if fails else contextlib.nullcontext():
        drain(world, faults)
    report = read_report(world.log_backend, "memory")
    assert report is not None
    assert (report.doing, report.error is not None) == ("ended", fails)
    refuse_beside_flusher(world.log_backend, "memory")


def test_log_error_is_raised_although_closing_fails_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may raise when it closes a connection after an outage."""
    world.run().batch([("a", 1)])
    world.log_backend.delete(world.log_backend.list(paths.MANIFEST.folder))

    def close(_: MemorySession) -> None:
        raise ConnectionError

    monkeypatch.setattr(MemorySession, "close", close)
    with pytest.raises(errors.MissingManifest):
        drain(world)


def test_drain_raises_the_crash_of_its_thread(world: World) -> None:
    """The thread ends by an error that is not an `Exception`, such as a panic of delta-rs."""
    world.run().batch([("a", 1)])
    with pytest.raises(Crash):
        drain(world, Faults(at=0, matching="write"))
