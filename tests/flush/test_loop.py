"""The thread that runs a flusher: how it is woken, polls and ends."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from state_backends import open_backend
from tests.flush.looping import NEVER, MakeLoop, Outage, PlayedLoop, times
from tests.protocol.engine import World
from tests.support.waiting import until
from wal_sink import errors
from wal_sink.admin.repair import refuse_beside_flusher
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.progress.flusher_report import ENDED
from wal_sink.progress.status import read_status

pytestmark = pytest.mark.usefixtures("patient")


# --- when the loop reads --------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["by an event", "by polling", "in a local folder"])
def test_loop_flushes_new_commits(
    tmp_path: Path,
    make_loop_over: Callable[..., PlayedLoop],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    """Events may be late, and a crash loses them."""
    monkeypatch.setattr("wal_sink.flush.loop.POLL_S", 0.01 if how == "by polling" else NEVER)
    root = str(tmp_path) if how == "in a local folder" else f"memory://{uuid.uuid4().hex}"
    world = World(open_backend(f"{root}/checkpoint"), open_backend(f"{root}/log"))
    run, played = world.run(), make_loop_over(world).start()
    assert played.loop.daemon, "it must not keep the interpreter from ending"
    for epoch in range(3):
        until(played.waits)
        run.batch([("k", epoch)])
        if how == "by an event":
            time.sleep(0.05)
            assert not played.is_flushed(epoch)
            played.loop.wake()
        until(lambda epoch=epoch: played.is_flushed(epoch))  # type: ignore[misc]
    assert world.table() == {"k": 2}


# --- how the loop ends ----------------------------------------------------------------------------


def test_loop_of_an_ended_query_outlives_an_outage(world: World, make_loop: MakeLoop) -> None:
    """The loop tries again until the outage is over, flushes the last epoch, and then ends."""
    run, outage = world.run(), Outage("write")
    played = make_loop(outage).start()
    until(played.waits)
    run.batches([("a", 0)], [("a", 1)])
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
