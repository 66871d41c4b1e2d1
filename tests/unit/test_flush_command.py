"""The flusher that `wal-sink flush` hosts, over a target in memory: when it ends, and how."""

from __future__ import annotations

import contextlib
import time
import uuid
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from wal_sink.admin.flusher_at_work import refuse_flusher
from wal_sink.flush.run_history import RunHistory
from wal_sink.model.records import FlusherReport

from state_backends import open_backend
from tests.protocol.engine import World, in_memory
from tests.protocol.operators import query
from wal_sink import errors
from wal_sink.admin.flush import FlushCommand
from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.testing.faults import Crash, Faults, FaultyTarget
from wal_sink.testing.memory_target import MemorySession


@pytest.fixture
def world() -> World:
    """A new query."""
    return World(*in_memory())


def own(world: World, faults: Faults | None = None) -> FlushCommand:
    return FlushCommand(query(world), FaultyTarget(world.target, faults or Faults()))


def test_a_query_that_goes_on_does_not_keep_it(world: World) -> None:
    """What is checkpointed at the start is flushed; then it ends, although more has come."""
    batches = world.run().batches([("k", 0)])
    flusher = own(world)

    def busy(_done: int, _total: int) -> None:
        batches.batch([("k", batches.next)])

    done = flusher.drain(busy)
    assert done.why == "everything that was checkpointed at the start is flushed"
    assert done.flushed >= 0
    assert batches.next < 10
    last = own(world).drain()
    assert last.why == "everything checkpointed is flushed"
    assert world.table() == {"k": batches.next - 1}


@pytest.mark.parametrize("ahead_h", [-8_760, 0, 8_760])
def test_an_unproven_choice_is_left_to_the_query_that_lives(
    world: World, monkeypatch: pytest.MonkeyPatch, ahead_h: int
) -> None:
    """Rule 11: its process sees the events that prove it, and publishes the next epoch.

    It lives while its report changes, however wrong its clock is.
    """
    monkeypatch.setattr("wal_sink.progress.heartbeat.SILENT_S", 3.0)
    world.run().publish([("dead", 1)])
    run = world.run(run_history=RunHistory())
    run.publish([("kept", 2)])
    run.write_commit([[("kept", 2)]], heard=False)
    heartbeat_us = time.time_ns() // 1_000 + ahead_h * 3_600_000_000
    report = FlusherReport(
        flusher="elsewhere:1", doing="nothing", heartbeat_us=heartbeat_us, beat=0
    )
    world.log.report(report)
    with ThreadPoolExecutor(1) as pool:
        drained = pool.submit(own(world).drain)
        for beat in range(1, 100):
            world.log.report(msgspec.structs.replace(report, beat=beat))
            if drained.done():
                break
            time.sleep(0.2)
        done = drained.result()
    assert "waiting" in done.why
    assert (done.pending_epochs, world.table()) == (1, {})
    started = time.monotonic()
    assert own(world).drain().pending_epochs == 0
    assert time.monotonic() - started >= 3, "it has looked whether the report changes"
    assert world.table() == {"kept": 2}


def test_what_trying_again_cures_is_tried_again(world: World) -> None:
    """And is no longer reported then."""
    world.run().batch([("a", 1)], [("b", 2)])
    faults = Faults(at=1, error=lambda: ConnectionError("busy"), matching="write")
    done = own(world, faults).drain()
    assert (done.epochs, done.rows, done.pending_epochs) == (1, 2, 0)
    assert len(faults.operations) == 6  # two of them before it failed, then all four again
    report = world.log.last_report()
    assert report is not None
    assert report.error is None


def test_stopped_before_the_end(world: World) -> None:
    """It says how much waits; the next flusher finishes what was begun."""
    world.run().batch([("a", 1)], [("b", 2)])
    flusher = own(world)
    with pytest.raises(errors.NotDrained, match="1 wait"):
        flusher.drain(lambda _done, _total: flusher.stop())
    assert world.table() == {}
    own(world).drain()
    assert world.table() == world.expected()


@pytest.mark.parametrize("fails", [False, True])
def test_when_it_has_ended_it_is_not_alive(world: World, *, fails: bool) -> None:
    """Though its process lives on; `rewind` and the like are not refused."""
    world.run().batch([("a", 1)])
    faults = Faults(at=0, error=RuntimeError, matching="write") if fails else None
    with pytest.raises(errors.TargetRefused) if fails else contextlib.nullcontext():
        own(world, faults).drain()
    report = world.log.last_report()
    assert report is not None
    assert (report.doing, report.error is not None) == ("ended", fails)
    refuse_flusher(world.log, time.time_ns() // 1_000, unless_stopped=False)


def test_an_error_is_raised_though_the_connection_cannot_be_closed(
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


def test_a_crash_is_no_interruption(world: World) -> None:
    """What is no `Exception`, such as a panic of delta-rs, ends it as what it is, though in a thread."""
    world.run().batch([("a", 1)])
    with pytest.raises(Crash):
        own(world, Faults(at=0, matching="write")).drain()


def test_before_anything_is_published(world: World) -> None:
    """There is nothing to do, and that is no error."""
    world.run()
    done = own(world).drain()
    assert (done.flushed, done.epochs, done.why) == (-1, 0, "nothing is checkpointed yet")


def test_a_copied_checkpoint_reports_nothing_in_the_log_of_the_original(world: World) -> None:
    """There a `commit()` of the original that waits for room would take the report for its own flusher's."""
    world.run().batch([("a", 1)])
    elsewhere = open_backend(f"memory://{uuid.uuid4().hex}/copy")
    for path in world.checkpoint.list():
        elsewhere.create(path, world.checkpoint.read(path))
    before = {path: world.log_backend.read(path) for path in world.log_backend.list()}
    with pytest.raises(errors.WrongOwner, match="copied checkpoint"):
        FlushCommand(Query(world.query_id, Checkpoint(elsewhere), world.log), world.target)
    assert {path: world.log_backend.read(path) for path in world.log_backend.list()} == before
