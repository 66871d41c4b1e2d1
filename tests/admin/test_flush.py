"""The flusher that `wal-sink flush` hosts, over a target in memory: when it ends, and how."""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace

import pytest

from state_backends import open_backend
from tests.protocol.engine import World, in_memory
from wal_sink import errors
from wal_sink.admin.flush import FlushCommand
from wal_sink.admin.repair import refuse_flusher
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.progress.report import read_report
from wal_sink.testing.faults import Crash, Faults
from wal_sink.testing.memory_target import MemorySession


@pytest.fixture
def world() -> World:
    """A new query."""
    return World(*in_memory())


def own(world: World, faults: Faults | None = None) -> FlushCommand:
    return FlushCommand(world.flusher(faults).pipeline)


def test_query_that_goes_on_does_not_keep_the_command(world: World) -> None:
    """What is checkpointed at the start is flushed; then it ends, although more has come."""
    batches = world.run().batches([("k", 0)])
    flusher = own(world)

    def busy(_done: int, _total: int) -> None:
        batches.batch([("k", batches.next)])

    done = flusher.drain(busy)
    assert done.reason.startswith("everything ")
    assert done.flushed >= 0
    assert batches.next < 10
    last = own(world).drain()
    assert last.reason == "everything checkpointed is flushed"
    assert world.table() == {"k": batches.next - 1}


def test_flush_error_that_a_try_cures_is_not_fatal(world: World) -> None:
    """And is no longer reported then."""
    world.run().batch([("a", 1)], [("b", 2)])
    faults = Faults(at=1, error=lambda: ConnectionError("busy"), matching="write")
    done = own(world, faults).drain()
    assert (done.epochs, done.rows, done.pending_epochs) == (1, 2, 0)
    assert faults.injected is not None
    assert world.table() == {"a": 1, "b": 2}
    report = read_report(world.store, "memory")
    assert report is not None
    assert report.error is None


def test_stopped_command_says_how_much_is_pending(world: World) -> None:
    """It says how much waits; the next flusher finishes what was begun."""
    world.run().batch([("a", 1)], [("b", 2)])
    flusher = own(world)
    with pytest.raises(errors.NotDrained, match="1 epoch is pending"):
        flusher.drain(lambda _done, _total: flusher.stop())
    assert world.table() == {}
    own(world).drain()
    assert world.table() == world.expected()


@pytest.mark.parametrize("fails", [False, True])
def test_ended_command_is_not_a_live_flusher(world: World, *, fails: bool) -> None:
    """Though its process runs on; `set-mark` is not refused."""
    world.run().batch([("a", 1)])
    faults = Faults(at=0, error=RuntimeError, matching="write") if fails else None
    with pytest.raises(errors.TargetRefused) if fails else contextlib.nullcontext():
        own(world, faults).drain()
    report = read_report(world.store, "memory")
    assert report is not None
    assert (report.doing, report.error is not None) == ("ended", fails)
    refuse_flusher(world.store, "memory")


def test_error_is_raised_though_closing_fails(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may raise as it closes what an outage has cut; `flush` ends with the error of the log."""
    world.run().batch([("a", 1)])
    world.log_backend.delete(world.log_backend.list(paths.MANIFEST.folder))

    def close(_: MemorySession) -> None:
        raise ConnectionError

    monkeypatch.setattr(MemorySession, "close", close)
    with pytest.raises(errors.MissingManifest):
        own(world).drain()


def test_crash_is_no_interruption(world: World) -> None:
    """What is not an `Exception`, such as a panic of delta-rs, ends it as what it is, though in a thread."""
    world.run().batch([("a", 1)])
    with pytest.raises(Crash):
        own(world, Faults(at=0, matching="write")).drain()


def test_unpublished_query_has_nothing_to_flush(world: World) -> None:
    """There is nothing to do, and that is not an error."""
    world.run()
    done = own(world).drain()
    assert (done.flushed, done.epochs, done.reason) == (
        -1,
        0,
        "no run of the query has published yet",
    )


def test_copied_checkpoint_writes_nothing_to_the_log(world: World) -> None:
    """There a `commit()` of the original that waits for room would take the report for its own flusher's."""
    world.run().batch([("a", 1)])
    elsewhere = open_backend(f"memory://{uuid.uuid4().hex}/copy")
    for path in world.checkpoint.list():
        elsewhere.create(path, world.checkpoint.read(path))
    earlier = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    copied = world.flusher().pipeline
    with pytest.raises(errors.WrongOwner, match="Two copies would write"):
        FlushCommand(replace(copied, checkpoint=Checkpoint(elsewhere)))
    assert {path: world.log_backend.read(path) for path in world.log_backend.list()} == earlier
