"""The ends of an application: checkpointed epochs are flushed, or a log line says that they are pending."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wal_sink
from tests.spark.application import Application
from tests.spark.conftest import ROWS_PER_FILE, Shop, write_source
from tests.spark.remains import none_left, remains
from tests.spark.tables import Table, last_commit, state_of
from tests.support.programs import ran
from tests.support.waiting import until
from wal_sink.demo.local_spark import Driver

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(600)]

EPOCHS = 3
LEFT = f"{EPOCHS} epochs of query"
ALL = list(range(EPOCHS * ROWS_PER_FILE))


class Ending:
    """An application of `EPOCHS` epochs whose target is unavailable; each start has another ending."""

    def __init__(self, table: Table, folder: Path) -> None:
        self.table = table
        self.barrier, self._marker, self._report = (
            folder / name for name in ("barrier", "marker", "report")
        )
        self.checkpoint = str(folder / "checkpoint")
        self._drivers: list[Driver] = []
        config: dict[str, Any] = {
            "source": write_source(folder / "source", EPOCHS),
            "checkpoint": self.checkpoint,
            "barrier": str(self.barrier),
            "marker": str(self._marker),
            "report": str(self._report),
            "epoch": EPOCHS - 1,
            **table.config,
        }
        self._application = Application(folder, "tests.spark.ending", config)

    def start(self, ending: str) -> Driver:
        """Start the application; return when its epochs are checkpointed."""
        self.barrier.touch()
        self._marker.unlink(missing_ok=True)
        driver = self._application.start(ending=ending)
        self._drivers.append(driver)
        driver.reach(self._marker.exists)
        return driver

    def kill(self) -> None:
        """Kill what is still running after a test that failed."""
        for driver in self._drivers:
            if driver.process.poll() is None:
                driver.kill()

    def is_flushed(self, driver: Driver) -> bool:
        """Return True if all rows are in the table, once, and the last start has left nothing behind."""
        return self.table.ids() == ALL and self.left_nothing(driver)

    def left_nothing(self, driver: Driver) -> bool:
        """Return True if a start has left no thread, no connection and no process behind."""
        return json.loads(self._report.read_text()) == [] and none_left(driver.process.pid)

    def pending(self) -> int:
        """Return how many epochs are pending."""
        return wal_sink.status(self.checkpoint).pending_epochs


@pytest.fixture
def ending(table: Table, tmp_path: Path) -> Iterator[Ending]:
    """Return an application that has not started."""
    ending = Ending(table, tmp_path)
    yield ending
    ending.kill()


def test_query_stopped_in_block_is_flushed_to_its_checkpoint(
    shop: Shop,
) -> None:
    """The query is stopped in mid-stream, twice. No thread and no connection is left."""
    shop.add_files(30, rows=10)
    port = shop.table.cassandra.port
    open_before = remains(port)
    for last in (2, 5):
        with wal_sink.register(shop.spark):
            query = shop.writer()
            query.start()
            until(lambda last=last: last_commit(shop.checkpoint) >= last, 240)  # type: ignore[misc]
            query.start().stop()  # the second start makes Spark stop the first run
        progress = wal_sink.status(shop.checkpoint)
        assert progress.flushed == progress.checkpointed >= last
        rows = shop.table.assert_no_gap()
        assert rows == state_of(shop.checkpoint).targets[0].mark.sums.rows
        until(lambda: remains(port) <= open_before)  # a thread may end after the block


def test_script_without_close_logs_pending_epochs(ending: Ending) -> None:
    """The script exits while the query runs. Each next start logs what was left.

    The next start stops Spark without `close()`, and runs its cell again in a new session. Closing the new
    handle flushes everything, and the old flusher ends, too.
    """
    ends_and_logs_pending(ending, "exits", code=7, times=1)
    again = ending.start("notebook")
    again.finish()
    assert again.log().count(LEFT) == again.log().count("from an earlier run") == 2
    assert "Traceback" not in again.log()
    assert ending.is_flushed(again)


def ends_and_logs_pending(ending: Ending, name: str, code: int, times: int) -> None:
    """Check that a script flushes nothing at its exit, and logs what is pending.

    :param times: how often it logs the pending epochs: at the exit, and at the start if it left some before.
    """
    script = ending.start(name)
    script.finish(code)
    assert script.log().count("start the query again") == 1
    assert script.log().count(LEFT) == times
    # The JVM may print about an event that it delivers at that moment; Python prints nothing.
    for noise in ("Traceback", "requests failed"):
        assert noise not in script.log()
    assert ending.pending() == EPOCHS
    assert none_left(script.process.pid)


@pytest.mark.test_all
def test_start_after_sigterm_logs_pending_epochs(ending: Ending) -> None:
    """The killed process cannot log. The next start logs what was left, and again at its own exit."""
    killed = ending.start("block")
    os.kill(killed.process.pid, signal.SIGTERM)
    killed.finish(-signal.SIGTERM)
    assert none_left(killed.process.pid)
    assert ending.pending() == EPOCHS
    ends_and_logs_pending(ending, "ends", code=0, times=2)


def interrupted(ending: Ending, name: str, *, sigterm: bool = False) -> Driver:
    """Start an application, and interrupt it while it waits for its query; return when it flushes."""
    driver = ending.start(name)
    time.sleep(1)  # from the marker to awaitTermination()
    if sigterm:
        os.kill(driver.process.pid, signal.SIGTERM)
    else:
        os.killpg(driver.process.pid, signal.SIGINT)  # also reaches the workers and the JVM
    until(lambda: f"flushing {EPOCHS} epochs" in driver.log())
    return driver


def test_second_ctrl_c_ends_the_flush(ending: Ending) -> None:
    """The first Ctrl-C flushes, and a log line says so. After the second, a line has the pending epochs."""
    driver = interrupted(ending, "block")
    assert driver.process.poll() is None
    os.killpg(driver.process.pid, signal.SIGINT)
    second_s = time.monotonic()
    driver.finish(-signal.SIGINT)
    assert time.monotonic() - second_s < 30, "`close` would wait for 60 s"
    assert driver.log().count(LEFT) == driver.log().count("flushing") == 1
    assert "in close" not in driver.log(), "a traceback shows the sink"
    assert ending.pending() == EPOCHS
    assert ending.left_nothing(driver)


@pytest.mark.test_all
@pytest.mark.parametrize(
    ("name", "sigterm", "code"),
    [("block", False, -signal.SIGINT), ("block_exits_on_sigterm", True, 143)],
)
def test_interrupted_block_ends_when_everything_is_flushed(
    ending: Ending, name: str, sigterm: bool, code: int
) -> None:
    """SIGTERM that raises SystemExit arrives inside `awaitTermination`: later calls to Spark are answered."""
    driver = interrupted(ending, name, sigterm=sigterm)
    ending.barrier.unlink()
    driver.finish(code)
    for unwanted in (LEFT, "its end failed", *(["Traceback"] if sigterm else [])):
        assert unwanted not in driver.log(), driver.log()
    assert ending.is_flushed(driver)


def test_interrupted_call_of_the_jvm_raises_keyboard_interrupt() -> None:
    """Spark's handler uses the connection that it interrupts, and py4j may raise an OSError in its place."""
    done = ran([sys.executable, "-m", "tests.spark.interrupted"], timeout=200)
    assert done.returncode == 0, done.stderr
    came, sent = map(int, done.stdout.split(" of "))
    assert came == sent > 0, done.stderr
