"""The thread that runs a flusher: how it is woken, polls and ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.flush.looping import NEVER, MakeLoop, Outage, PlayedLoop, times
from tests.protocol.engine import World
from tests.support.waiting import until
from wal_sink import errors
from wal_sink.admin.repair import refuse_beside_flusher
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.progress.flusher_report import ENDED, FlusherReport, this_process
from wal_sink.progress.status import read_status
from wal_sink.units import now_us

pytestmark = pytest.mark.usefixtures("patient")


# --- when the loop reads --------------------------------------------------------------------------


def test_loop_flushes_pending_epochs_at_its_start(world: World, make_loop: MakeLoop) -> None:
    world.run().batch([("a", 1)])
    played = make_loop().start()
    until(lambda: played.is_flushed(0))
    assert world.table() == {"a": 1}
    assert played.loop.daemon, "it must not keep the interpreter from ending"


def test_loop_flushes_when_woken(
    world: World, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal_sink.flush.loop.POLL_S", NEVER)
    run = world.run()
    played = make_loop().start()
    for epoch in range(3):
        until(played.waits)
        run.batch([("k", epoch)])
        time.sleep(0.05)
        assert not played.is_flushed(epoch)
        played.loop.wake()
        until(lambda epoch=epoch: played.is_flushed(epoch))  # type: ignore[misc]
    assert world.table() == {"k": 2}


def test_loop_finds_commits_without_events(
    world: World, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events may be late, and a crash loses them."""
    monkeypatch.setattr("wal_sink.flush.loop.POLL_S", 0.01)
    run = world.run()
    played = make_loop().start()
    for epoch in range(3):
        run.batch([("k", epoch)])
        until(lambda epoch=epoch: played.is_flushed(epoch))  # type: ignore[misc]
    assert world.table() == {"k": 2}


def test_loop_on_a_local_checkpoint_notices_new_commits(
    tmp_path: Path, make_loop_over: Callable[..., PlayedLoop]
) -> None:
    world = World(open_backend(f"{tmp_path}/checkpoint"), open_backend(f"{tmp_path}/log"))
    run = world.run()
    played = make_loop_over(world).start()
    until(played.waits)
    for epoch in range(3):
        run.batch([("k", epoch)])
        until(lambda epoch=epoch: played.is_flushed(epoch))  # type: ignore[misc]
    assert world.table() == {"k": 2}


# --- how the loop ends ----------------------------------------------------------------------------


def test_loop_of_an_ended_query_flushes_its_last_epoch(world: World, make_loop: MakeLoop) -> None:
    run = world.run()
    played = make_loop().start()
    until(played.waits)
    for epoch in range(5):
        run.batch([(f"k{epoch}", epoch)])
    played.loop.end()
    assert played.ended()
    assert world.table() == world.expected()
    assert played.is_flushed(4)


def test_loop_of_an_ended_query_outlives_an_outage(world: World, make_loop: MakeLoop) -> None:
    """The loop tries again until the outage is over, and then ends."""
    world.run().batch([("a", 1)])
    outage = Outage("write")
    played = make_loop(outage).start()
    played.loop.end()
    until(lambda: outage.failures >= 3)
    assert played.loop.is_alive()
    outage.over.set()
    assert played.ended()
    assert world.table() == {"a": 1}


def test_loop_of_a_query_that_never_published_ends(world: World, make_loop: MakeLoop) -> None:
    world.run()
    played = make_loop().start()
    played.loop.end()
    assert played.ended()
    assert "connect" not in played.faults.operations


def test_another_flusher_continues_after_a_stopped_loop(world: World, make_loop: MakeLoop) -> None:
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(50)))
    played = make_loop().start()
    until(lambda: played.is_flushed(0))
    played.loop.stop()
    assert played.ended()
    assert world.flushed() == world.expected()


@pytest.mark.parametrize("fails", [False, True])
def test_ended_loop_is_reported_while_its_process_runs(
    world: World, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """The loop ends in the middle of a pause, and its last error stays reported.

    A command need not wait until the report is old.
    """
    times(monkeypatch, first=NEVER, most=NEVER)
    world.run().batch([("a", 1)])
    outage = Outage("write")
    played = make_loop(outage if fails else None).start()
    until(lambda: played.error() is not None if fails else played.waits())
    with pytest.raises(errors.FlusherAtWork):
        refuse_beside_flusher(world.log_backend, played.name)
    played.loop.stop()
    assert played.ended()
    refuse_beside_flusher(world.log_backend, played.name)
    shown = read_status(Checkpoint(world.checkpoint), world.log_backend)
    assert (shown.doing, shown.flusher_alive) == (ENDED, False)
    error = played.error()
    assert (error and error.kind) == ("TargetUnavailable" if fails else None)
    assert outage.failures <= 2
    assert world.table() == ({} if fails else {"a": 1})


def test_ended_loop_keeps_the_report_of_another_flusher(world: World, make_loop: MakeLoop) -> None:
    """The other flusher is in another process, or belongs to another handle of this process."""
    world.run().batch([("a", 1)])
    for flusher in ("elsewhere:1", this_process()):
        played = make_loop().start()
        until(played.waits)
        other = FlusherReport(flusher=flusher, doing="writing epoch 1", heartbeat_us=now_us())
        world.log_backend.replace(paths.REPORT.path(played.name), other.to_json())
        played.loop.stop()
        assert played.ended()
        played.loop.hurry()
        assert played.report() == other


def test_loops_of_two_runs_write_each_row_once(world: World, make_loop: MakeLoop) -> None:
    """A query that is started again in the same process may overlap with its former loop."""
    run = world.run()
    loops = [make_loop().start() for _ in range(2)]
    for epoch in range(20):
        run.batch([("k", epoch), (f"k{epoch}", epoch)])
        for played in loops:
            played.loop.wake()
    for played in loops:
        played.loop.end()
        assert played.ended()
    assert world.table() == world.expected()
    assert [played.error() for played in loops] == [None, None]


def test_backlog_drains_while_new_epochs_come(
    world: World, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal_sink.flush.flusher.WINDOW_EPOCHS", 8)
    run = world.run()
    outage = Outage("connect")
    played = make_loop(outage).start()
    for epoch in range(40):
        run.batch([("k", epoch), (f"k{epoch}", epoch)])
    played.loop.wake()
    until(lambda: outage.failures >= 3)
    outage.over.set()
    while not played.is_flushed(30):
        run.batch([("k", run.next), (f"k{run.next}", run.next)])
        played.loop.wake()
    last = run.next - 1
    assert last > 40, "some came while it drained"
    played.loop.wake()
    until(lambda: played.is_flushed(last))
    assert world.table() == world.expected()
    ends = [int(name.split()[1]) for name in outage.operations if name.startswith("finish")]
    assert ends == sorted(ends)
    assert max(end - earlier for earlier, end in pairwise([-1, *ends])) <= 8
