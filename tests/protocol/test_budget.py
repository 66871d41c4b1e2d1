"""An epoch waits for room in the log, or is refused, whatever happens meanwhile."""

from __future__ import annotations

import os
import socket

import pytest

from tests.protocol.engine import World
from tests.protocol.publishing import Driver
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import Fenced, LogFull, NoFlusher, StoppedWaiting, TargetRefused
from wal_sink.flush.run_history import RunHistory
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import Backlog, ErrorReport, FlusherReport, Stop
from wal_sink.progress.backlog import BacklogReaders
from wal_sink.progress.heartbeat import ENDED
from wal_sink.testing.faults import Faults

STORES = ("memory", "local")
"""What is counted, and when, does not depend on the store; cheap it has to be on all of them."""

ONE = [("a", 1)]


HERE = f"{socket.gethostname()}:{os.getpid()}"


def beat(
    world: World,
    error: ErrorReport | None = None,
    flusher: str = "elsewhere:1",
    doing: str = "writing epoch 0",
) -> None:
    """Let a flusher report."""
    world.log.report(
        FlusherReport(
            flusher=flusher,
            doing=doing,
            heartbeat_us=world.clock(),
            beat=1,
            error=error,
        )
    )


def segments(world: World) -> list[int]:
    """Return the epochs of all segments in the log."""
    return [epoch for epoch, _ in world.log.segments()]


def test_an_epoch_waits_until_what_is_before_it_is_flushed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one passes, though it is larger than the budget; the second one goes on after the flush."""
    driver = Driver(world.run())
    driver.batch(ONE)
    assert driver.pauses == 0

    def meanwhile(pause: int) -> None:
        beat(world)
        assert world.log.attempts() == (Attempt(0, 1),), "nothing is published while it waits"
        if pause == 10:
            world.flush()

    assert driver.publish([("b", 2)], meanwhile) is not None
    driver.run.write_commit([[("b", 2)]])
    assert driver.pauses == 10
    assert world.flushed() == world.expected() == {"a": 1, "b": 2}
    said = [
        record.getMessage()
        for record in caplog.records
        if record.name == "wal_sink.publish.backpressure"
    ]
    assert len(said) == 3, "it waits; a minute later, it still does; it goes on"
    assert "epoch 1 waits" in said[0]
    assert "none does within" in said[0].lower()
    assert "should flush" in said[1]
    assert "waited for 100 s" in said[2]


def test_the_log_holds_the_budget_and_one_epoch(world: World) -> None:
    """As long as less than the budget waits, the next epoch passes."""
    run = world.run()
    first = Driver(run, 10**9)
    first.batch(ONE)
    size = world.log.manifest(Attempt(0, 1))
    assert size is not None
    driver = Driver(run, size[0].bytes + 1)
    driver.batch(ONE)
    assert (driver.pauses, run.next) == (0, 2)
    with pytest.raises(NoFlusher):
        driver.publish(ONE)


def test_fail_refuses_and_leaves_no_segments(world: World) -> None:
    """However often the query is started again, the disk does not fill; after a flush it goes on."""
    Driver(world.run()).batch(ONE)
    for _ in range(3):
        driver = Driver(world.run(), on_full="fail")
        with pytest.raises(LogFull, match="in 1 epoch are not flushed"):
            driver.publish([("b", 2)])
        assert driver.pauses == 0
        assert segments(world) == [0]
    world.flush()
    driver = Driver(world.run(), on_full="fail")
    driver.batch([("b", 3)])
    assert world.flushed() == {"a": 1, "b": 3}


def test_without_a_flusher_it_fails_in_the_end(world: World) -> None:
    """After a minute in which none reported; then the query can be started again."""
    driver = Driver(world.run())
    driver.batch(ONE)
    with pytest.raises(NoFlusher, match="no process has flushed for 60 s"):
        driver.publish([("b", 2)])
    assert driver.now_s == 60
    assert segments(world) == [0]
    world.flush()
    again = Driver(world.run())
    again.batch([("b", 2)])
    assert again.pauses == 0


def test_a_flusher_that_dies_meanwhile(world: World) -> None:
    """It is silent for half a minute, then none comes for one."""
    driver = Driver(world.run())
    driver.batch(ONE)

    def meanwhile(pause: int) -> None:
        if pause <= 5:
            beat(world)

    with pytest.raises(NoFlusher):
        driver.publish([("b", 2)], meanwhile)
    assert driver.now_s == 50 + 20 + 60 + 10, (
        "at 20 s after its last beat its report is seen, a look late"
    )


def test_a_flusher_on_this_host_may_be_silent_for_longer(world: World) -> None:
    """In a slow target one slice may take minutes."""
    driver = Driver(world.run())
    driver.batch(ONE)
    beat(world, flusher=HERE)
    with pytest.raises(NoFlusher, match="for 900 s"):
        driver.publish([("b", 2)])
    assert driver.now_s == 900


def test_a_flusher_that_has_ended_is_none(world: World) -> None:
    """Its process lives on, as in a notebook whose handle is closed: its silence is not waited for."""
    driver = Driver(world.run())
    driver.batch(ONE)
    beat(world, flusher=HERE, doing=ENDED)
    with pytest.raises(NoFlusher, match="for 60 s"):
        driver.publish([("b", 2)])
    assert driver.now_s == 60


def test_the_error_of_the_flusher_ends_the_wait(world: World) -> None:
    """Rule 21: one that trying again does not cure; one that passes is waited for."""
    driver = Driver(world.run())
    driver.batch(ONE)

    def meanwhile(pause: int) -> None:
        beat(
            world,
            ErrorReport(
                kind="TargetRefused",
                what="no such table",
                remedy="Make it.",
                at_us=world.clock.us,
                transient=pause < 5,
            ),
        )

    with pytest.raises(TargetRefused, match="no such table"):
        driver.publish([("b", 2)], meanwhile)
    assert driver.pauses == 5


def test_a_newer_run_fences_the_one_that_waits(world: World) -> None:
    """It publishes nothing, its segments go, and it neither waits nor stands in the way."""
    old = Driver(world.run())
    old.batch(ONE)

    def meanwhile(pause: int) -> None:
        beat(world)
        if pause == 3:
            Driver(world.run(), max_bytes=10**9).batch([("b", 3)])

    with pytest.raises(Fenced):
        old.publish([("b", 2)], meanwhile)
    assert [attempt for attempt in world.log.attempts() if attempt.epoch == 1] == [Attempt(1, 2)]
    assert segments(world) == [0, 1], "those of the newer run stay"
    assert world.flushed() == {"a": 1, "b": 3}


def test_a_run_that_is_stopped_ends_its_wait(world: World) -> None:
    """The stop is noted in the log; its segments go, and the next run publishes the epoch (rule 2)."""
    driver = Driver(world.run())
    driver.batch(ONE)

    def meanwhile(pause: int) -> None:
        beat(world)
        if pause == 3:
            world.log.create(paths.STOP, driver.run.run_id, Stop(run_id=driver.run.run_id))

    with pytest.raises(StoppedWaiting):
        driver.publish([("b", 2)], meanwhile)
    assert driver.pauses == 3
    assert segments(world) == [0]
    world.flush()
    Driver(world.run()).batch([("b", 3)])
    assert world.flushed() == {"a": 1, "b": 3}


def test_an_epoch_of_two_attempts_does_not_wait_for_the_one_after_it(world: World) -> None:
    """The event that would prove which was kept never comes; the run that waits leaves the proof.

    Otherwise the flusher waits for the epoch, and the epoch for the flusher.
    """
    Driver(world.run()).publish([("dead", 1)])
    run_history = RunHistory()
    driver = Driver(world.run(run_history=run_history))
    driver.publish([("kept", 2)])
    driver.run.write_commit([[("kept", 2)]], heard=False)
    assert "waiting" in world.flush(run_history=run_history)[-1].why  # type: ignore[union-attr]

    def meanwhile(_pause: int) -> None:
        beat(world)
        world.flush(run_history=run_history)

    assert driver.publish([("b", 2)], meanwhile) is not None
    assert driver.pauses == 1
    assert world.table() == {"kept": 2}


def test_what_is_not_checkpointed_is_not_waited_for(world: World) -> None:
    """No flusher could flush it; nor does an earlier attempt at the same epoch count."""
    Driver(world.run()).publish(ONE)
    for _ in range(2):
        driver = Driver(world.run())
        assert driver.publish(ONE) is not None
        assert driver.pauses == 0


def test_a_replay_waits_as_its_first_attempt_would(world: World) -> None:
    """Published already or not: what counts is before it."""
    driver = Driver(world.run(), 10**9)
    driver.batch(ONE)
    driver.publish([("b", 2)])
    replay = Driver(world.run())

    def meanwhile(pause: int) -> None:
        beat(world)
        if pause == 2:
            world.flush()

    assert replay.publish([("b", 3)], meanwhile) is not None
    assert replay.pauses == 2


def test_a_replay_of_what_is_flushed_needs_no_room(world: World) -> None:
    """Nothing is published for it."""
    driver = Driver(world.run(), 10**9)
    driver.batch(ONE)
    driver.batch([("b", 2)])
    world.flush()
    world.checkpoint.delete(["commits/1"])
    again = Driver(world.run())
    assert again.run.next == 1
    assert again.publish([("b", 3)]) is None
    assert again.pauses == 0


def test_counting_costs_nothing_while_a_process_publishes(world: World) -> None:
    """Twenty epochs that wait: each one costs the same operations, and none reads a manifest."""
    faults = Faults()
    driver = Driver(world.run(faults), 10**9)
    costs = []
    for number in range(20):
        before = len(faults.operations)
        driver.batch([(f"k{number}", number)])
        costs.append(faults.operations[before:])
    plain = [op for op in costs[-1] if "manifests" in op]
    assert len(costs[-1]) == len(costs[1])
    assert [op for op in plain if "list" in op] == []
    assert len([op for op in plain if "read" in op]) == 1, "the one that it has just created"


def test_what_a_rewind_brings_back_counts_again(world: World) -> None:
    """In the process that has forgotten it as flushed."""
    driver = Driver(world.run(), 10**9)
    for number in range(3):
        driver.batch([(f"k{number}", number)])
    known = before(driver.backlogs, world, 3, flushed=-1)
    assert before(driver.backlogs, world, 3, flushed=2).stored_bytes == 0
    assert before(driver.backlogs, world, 3, flushed=-1).stored_bytes == known.stored_bytes


def test_another_process_counts_the_same(world: World) -> None:
    """A process that comes anew reads what waits, once; flushed epochs no longer count."""
    first = Driver(world.run(), 10**9)
    for number in range(5):
        first.batch([(f"k{number}", number)])
    anew = BacklogReaders()
    known = before(first.backlogs, world, 5, flushed=-1)
    assert before(anew, world, 5, flushed=-1) == known
    assert known.epochs == 5
    assert before(anew, world, 5, flushed=3).epochs == 1
    nothing = before(anew, world, 5, flushed=4)
    assert (nothing.epochs, nothing.stored_bytes) == (0, 0)
    other = Driver(world.run(), 10**9, same=anew)
    other.batch([("k5", 5)])
    assert before(anew, world, 6, generation=2, flushed=4).epochs == 1


def before(
    backlogs: BacklogReaders, world: World, epoch: int, *, flushed: int, generation: int = 1
) -> Backlog:
    """Count what waits before an epoch, at no moment: all before it is checkpointed."""
    reader = backlogs.of(Checkpoint(world.checkpoint), world.log, generation)
    found = reader.before(epoch, checkpointed=epoch - 1, flushed=flushed, first_epoch=0)
    return found._replace(read_us=0)
