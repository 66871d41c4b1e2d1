"""The budget of the log: an epoch waits for space, or is refused (`wal.maxBytes`, `wal.onFull`)."""

from __future__ import annotations

import logging
import os
import socket

import pytest

from tests.protocol.engine import World
from tests.protocol.publishing import Driver
from wal_sink.errors import Fenced, LogFull, StoppedWaiting, TargetRefused
from wal_sink.model import paths
from wal_sink.progress.flusher_report import ENDED, ErrorReport, FlusherReport
from wal_sink.publish import publisher
from wal_sink.telemetry import OncePerMinute

STORES = ("memory", "local")
"""The budget does not depend on the store."""

ONE = [("a", 1)]
HERE = f"{socket.gethostname()}:{os.getpid()}"


@pytest.fixture(autouse=True)
def _warn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each test get the warnings that a process logs once a minute."""
    monkeypatch.setattr(publisher, "_NO_FLUSHER", OncePerMinute())


def report(
    world: World,
    error: ErrorReport | None = None,
    flusher: str = "elsewhere:1",
    doing: str = "writing epoch 0",
    stopping: str = "",
) -> None:
    """Write the report of a flusher."""
    text = FlusherReport(
        flusher=flusher,
        doing=doing,
        heartbeat_us=world.clock(),
        error=error,
        stopping=stopping,
    )
    world.log_backend.replace(paths.REPORT.path("memory"), text.to_json())


def epochs_of_segments(world: World) -> list[int]:
    return [int(path.split("/")[1]) for path in world.log_backend.list("segments/")]


def test_epoch_over_the_budget_waits_for_the_flush(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """An epoch larger than the budget passes if nothing is pending."""
    driver = Driver(world.run())
    driver.batch(ONE)
    assert driver.pauses == 0

    def meanwhile(pause: int) -> None:
        report(world)
        assert world.state.last.epoch == 0, "nothing is published while it waits"
        if pause == 10:
            world.flush()

    driver.batch([("b", 2)], meanwhile)
    assert driver.pauses == 10
    assert world.flushed() == world.expected() == {"a": 1, "b": 2}
    lines = [
        record.getMessage()
        for record in caplog.records
        if record.name == "wal_sink.publish.publisher"
    ]
    assert any("epoch 1 waits for space" in line and "wal.maxBytes is 1" in line for line in lines)
    assert "the log has space again. Epoch 1 continues" in lines[-1]


def test_log_exceeds_its_budget_by_at_most_one_epoch(world: World) -> None:
    """An epoch passes while less than the budget is pending."""
    run = world.run()
    Driver(run, 10**9).batch(ONE)
    driver = Driver(run, world.state.last.sums.bytes + 1, "fail")
    driver.batch(ONE)
    assert (driver.pauses, run.next) == (0, 2)
    with pytest.raises(LogFull):
        driver.publish(ONE)


def test_query_that_fails_on_full_log_leaves_no_segment(world: World) -> None:
    """Given a query that is started again and again, the disk does not fill."""
    Driver(world.run()).batch(ONE)
    for _ in range(3):
        driver = Driver(world.run(), on_full="fail")
        with pytest.raises(LogFull, match="No process has flushed") as caught:
            driver.publish([("b", 2)])
        assert "wal-sink status" in caught.value.remedy
        assert driver.pauses == 0
        assert epochs_of_segments(world) == [0]
    world.flush()
    Driver(world.run(), on_full="fail").batch([("b", 3)])
    assert world.flushed() == {"a": 1, "b": 3}


def test_wait_for_space_ends_by_a_permanent_error(world: World) -> None:
    driver = Driver(world.run())
    driver.batch(ONE)

    def meanwhile(pause: int) -> None:
        error = ErrorReport(
            kind="TargetRefused",
            what="no such table",
            remedy="Make it.",
            epoch=0,
            at_us=world.clock.us,
            transient=pause < 5,
        )
        report(world, error)

    with pytest.raises(TargetRefused, match="no such table"):
        driver.publish([("b", 2)], meanwhile)
    assert driver.pauses == 5
    assert epochs_of_segments(world) == [0]


def test_stopped_run_ends_its_wait_for_space(world: World) -> None:
    """The flusher's report says that Spark was told to stop the run."""
    driver = Driver(world.run())
    driver.batch(ONE)

    def meanwhile(pause: int) -> None:
        report(world, stopping=driver.run.run_id if pause == 3 else "")

    with pytest.raises(StoppedWaiting):
        driver.publish([("b", 2)], meanwhile)
    assert driver.pauses == 3
    assert epochs_of_segments(world) == [0]
    world.flush()
    Driver(world.run()).batch([("b", 3)])
    assert world.flushed() == {"a": 1, "b": 3}


def test_run_that_waits_is_fenced_by_a_newer_one(world: World) -> None:
    old = Driver(world.run())
    old.batch(ONE)

    def meanwhile(pause: int) -> None:
        if pause == 3:
            Driver(world.run(), max_bytes=10**9).batch([("b", 3)])

    with pytest.raises(Fenced):
        old.publish([("b", 2)], meanwhile)
    assert epochs_of_segments(world) == [0, 1], "those of the newer run stay"
    assert world.flushed() == {"a": 1, "b": 3}


def test_budget_does_not_count_attempts_of_dead_runs(world: World) -> None:
    """No flusher could flush them."""
    Driver(world.run()).publish(ONE)
    for _ in range(3):
        driver = Driver(world.run())
        assert driver.publish(ONE) is not None
        assert driver.pauses == 0


def test_replay_waits_for_space_without_counting_its_first_attempt(world: World) -> None:
    """The budget counts only the epochs before the replayed one."""
    driver = Driver(world.run(), 10**9)
    driver.batch(ONE)
    driver.publish([("b", 2)])
    replay = Driver(world.run())

    def meanwhile(pause: int) -> None:
        if pause == 2:
            world.flush()

    assert replay.publish([("b", 3)], meanwhile) is not None
    assert replay.pauses == 2


def test_replay_of_a_flushed_epoch_needs_no_space(world: World) -> None:
    driver = Driver(world.run(), 10**9)
    driver.batch(ONE)
    driver.batch([("b", 2)])
    world.flush()
    world.checkpoint.delete(["commits/1"])
    again = Driver(world.run())
    assert again.publish([("b", 3)]) is None
    assert again.pauses == 0


@pytest.mark.parametrize("flusher", ["none", "silent", "ended", "alive"])
def test_query_without_a_flusher_logs_a_warning(
    world: World, caplog: pytest.LogCaptureFixture, flusher: str
) -> None:
    """Given epochs that have been pending for half a minute."""
    driver = Driver(world.run(), 10**9)
    driver.batch(ONE)
    driver.batch([("b", 2)])
    assert "no process flushes this query" not in caplog.text, "a flusher may be about to start"
    if flusher in ("silent", "ended"):
        report(world, flusher=HERE, doing=ENDED if flusher == "ended" else "writing epoch 0")
    world.clock.us += 60_000_000
    if flusher == "alive":
        report(world)
    for number in range(3):
        driver.batch([("c", number)])
    warned = [r for r in caplog.records if "no process flushes this query" in r.getMessage()]
    assert len(warned) == (0 if flusher == "alive" else 1), "once a minute"
    for record in warned:
        assert record.levelno == logging.WARNING
        assert f"wal-sink flush {world.checkpoint.url} --follow" in record.getMessage()
