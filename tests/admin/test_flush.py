"""The flusher that `wal-sink flush` hosts, over a target in memory: when it ends, and how."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator

import pytest

from state_backends import open_backend
from tests.protocol.engine import World, in_memory
from wal_sink import errors
from wal_sink.admin import flush
from wal_sink.admin.flush import FlushDone, never
from wal_sink.admin.query import Query
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


def drain(world: World, faults: Faults | None = None, wait: flush.Wait = never) -> FlushDone:
    """Flush what is checkpointed now."""
    (done,) = flush.drain([world.flusher(faults).pipeline], wait=wait)
    return done


def test_query_that_goes_on_does_not_keep_the_command(world: World) -> None:
    """What is checkpointed at the start is flushed; then it ends, although more has come."""
    batches = world.run().batches([("k", 0)])

    class Busy(Faults):
        """Each write takes as long as the next batch."""

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


def test_flush_error_that_a_try_cures_is_not_fatal(world: World) -> None:
    """And is no longer reported then."""
    world.run().batch([("a", 1)], [("b", 2)])
    faults = Faults(at=1, error=lambda: ConnectionError("busy"), matching="write")
    done = drain(world, faults)
    assert (done.epochs, done.rows, done.pending_epochs) == (1, 2, 0)
    assert faults.injected is not None
    assert world.table() == {"a": 1, "b": 2}
    report = read_report(world.store, "memory")
    assert report is not None
    assert report.error is None


def test_stopped_command_says_how_much_is_pending(world: World) -> None:
    """It says how much waits; the next flusher finishes what was begun."""
    world.run().batch([("a", 1)], [("b", 2)])
    down = Faults(at=0, error=lambda: ConnectionError("busy"), matching="write")
    with pytest.raises(errors.NotDrained, match="1 epoch is pending"):
        drain(world, down, lambda _seconds: down.injected is not None)
    assert world.table() == {}
    drain(world)
    assert world.table() == world.expected()


@pytest.mark.parametrize("fails", [False, True])
def test_ended_command_is_not_a_live_flusher(world: World, *, fails: bool) -> None:
    """Though its process runs on; `set-mark` is not refused."""
    world.run().batch([("a", 1)])
    faults = Faults(at=0, error=RuntimeError, matching="write") if fails else None
    with pytest.raises(errors.TargetRefused) if fails else contextlib.nullcontext():
        drain(world, faults)
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
        drain(world)


def test_crash_is_no_interruption(world: World) -> None:
    """What is not an `Exception`, such as a panic of delta-rs, ends it as what it is, though in a thread."""
    world.run().batch([("a", 1)])
    with pytest.raises(Crash):
        drain(world, Faults(at=0, matching="write"))


def test_copied_checkpoint_is_refused_before_a_flusher(world: World) -> None:
    """A `commit()` of the original that waits for room would take its report for its own flusher's."""
    world.run().batch([("a", 1)])
    elsewhere = open_backend(f"memory://{uuid.uuid4().hex}/copy")
    for path in world.checkpoint.list():
        elsewhere.create(path, world.checkpoint.read(path))
    query = Query(world.query_id, Checkpoint(elsewhere), world.store)
    with pytest.raises(errors.WrongOwner, match="Two copies would write"):
        query.own_state()
