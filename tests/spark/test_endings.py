"""However an application ends: what is checkpointed is flushed, or waits and is said in one line."""

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
from pyspark.sql import SparkSession

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.driver import Driver
from tests.spark.remains import none_left, remains
from tests.spark.tables import Table, stream, writer
from tests.support.programs import ran
from tests.support.waiting import until
from wal_sink import status
from wal_sink.demo.servers.cassandra import EmbeddedCassandra
from wal_sink.wal.location import locate
from wal_sink.wal.states import newest

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(600)]

EPOCHS = 3
LEFT = f"{EPOCHS} epochs of query"
ALL = list(range(EPOCHS * ROWS_PER_FILE))


class Application:
    """A query of `EPOCHS` epochs whose target is closed; each start of it may end in another way."""

    def __init__(self, cassandra: EmbeddedCassandra, keyspace: str, folder: Path) -> None:
        self.table = Table(cassandra, keyspace)
        self.folder = folder
        self.barrier = folder / "barrier"
        self.drivers: list[Driver] = []
        self.config: dict[str, Any] = {
            "sink": "wal_sink",
            "source": write_source(folder / "source", EPOCHS),
            "checkpoint": str(folder / "checkpoint"),
            "barrier": str(self.barrier),
            "epoch": EPOCHS - 1,
            **self.table.config,
        }

    def start(self, ending: str, *, closed: bool, **config: Any) -> Driver:
        """Start it; return when its epochs are checkpointed, and it waits for its end."""
        if closed:
            self.barrier.touch()
        folder = self.folder / ending
        report = str(folder / "report")
        driver = Driver(
            folder,
            module="tests.spark.ending",
            ending=ending,
            report=report,
            **self.config,
            **config,
        )
        self.drivers.append(driver)
        driver.reach_marker()
        return driver

    def pending(self) -> int:
        """How many epochs wait."""
        return status(self.config["checkpoint"]).pending_epochs

    def remains(self, ending: str) -> list[str]:
        """What was there of the sink and the driver as it ended; all of it must be gone."""
        return list(json.loads((self.folder / ending / "report").read_text()))


@pytest.fixture
def application(
    cassandra: EmbeddedCassandra, keyspace: str, tmp_path: Path
) -> Iterator[Application]:
    """Return one; what a failing test leaves of it is killed."""
    application = Application(cassandra, keyspace, tmp_path)
    yield application
    for driver in application.drivers:
        if driver.process.poll() is None:
            driver.kill()


def test_stop_in_the_block_flushes_what_is_checkpointed(
    spark: SparkSession, cassandra: EmbeddedCassandra, keyspace: str, tmp_path: Path
) -> None:
    """In mid-stream; no thread and no connection stays, and the cell can be run again, and again."""
    table = Table(cassandra, keyspace)
    source = write_source(tmp_path / "source", 30, rows=10)
    checkpoint = str(tmp_path / "checkpoint")
    open_before = remains(cassandra.port)
    for last in (2, 5):
        with wal_sink.register(spark):
            query = writer(stream(spark, source), table, checkpoint)
            query.start()
            until(lambda last=last: last_commit(checkpoint) >= last, 240)  # type: ignore[misc]
            query.start().stop()  # starting it, Spark stops the first
        progress = status(checkpoint)
        assert progress.flushed == progress.checkpointed >= last
        ids = table.ids()
        assert ids == list(range(len(ids)))
        assert len(ids) == flushed_rows(checkpoint)
        until(
            lambda: remains(cassandra.port) <= open_before
        )  # leaving the block waits 5 s for threads


def last_commit(checkpoint: str) -> int:
    """Return the highest checkpointed epoch."""
    return locate(checkpoint).open_checkpoint().last_commit()


def flushed_rows(checkpoint: str) -> int:
    """Return how many rows the log says are in the target."""
    location = locate(checkpoint)
    state = newest(location.open_log(location.open_checkpoint().query_id()))
    assert state is not None
    return state.targets[0].mark.sums.rows


def test_script_without_close_says_what_is_pending(application: Application) -> None:
    """Without `with` and `close()`, while the query runs: one line says what waits; the exit code is its own.

    Each next start says what was left. It stops Spark without `close()` and runs its cell again in
    a new session: closing the new handle flushes everything, and then the old flusher ends, too.
    """
    says_what_waits(application, "exits", code=7, times=1)
    again = application.start("notebook", closed=True)
    again.finish()
    assert again.log().count(LEFT) == again.log().count("were left in") == 2
    assert "Traceback" not in again.log()
    assert application.table.ids() == ALL
    assert application.remains("notebook") == []
    assert none_left(again.process.pid)


def says_what_waits(application: Application, ending: str, code: int, times: int) -> None:
    """See that a script starts no work at its exit, and says what waits; at its start, too, if it did."""
    script = application.start(ending, closed=True)
    script.finish(code)
    assert script.log().count("start the query again") == 1
    assert script.log().count(LEFT) == times
    # An event that Spark delivers at that very moment makes the JVM print; Python's side is quiet.
    for noise in ("Traceback", "requests failed"):
        assert noise not in script.log()
    assert application.pending() == EPOCHS
    assert none_left(script.process.pid)


@pytest.mark.test_all
def test_next_start_after_sigterm_says_what_is_pending(application: Application) -> None:
    """Killed, it cannot say anything: the next start does; and again as the script ends after its query."""
    killed = application.start("block", closed=True)
    os.kill(killed.process.pid, signal.SIGTERM)
    killed.finish(-signal.SIGTERM)
    assert none_left(killed.process.pid)
    assert application.pending() == EPOCHS
    says_what_waits(application, "ends", code=0, times=2)


def test_ctrl_c_flushes_and_a_second_one_leaves(application: Application) -> None:
    """SIGINT reaches Python, its workers and the JVM; each time one line says what becomes of the epochs."""
    driver = application.start("block", closed=True)
    time.sleep(1)  # from the marker into awaitTermination()
    os.killpg(driver.process.pid, signal.SIGINT)
    until(lambda: f"flushing {EPOCHS} epochs" in driver.log())
    assert driver.process.poll() is None
    os.killpg(driver.process.pid, signal.SIGINT)
    second = time.monotonic()
    driver.finish(-signal.SIGINT)
    assert time.monotonic() - second < 30, "`close` would wait for 60 s"
    assert driver.log().count(LEFT) == driver.log().count("flushing") == 1
    assert "in close" not in driver.log(), "no traceback shows the sink"
    assert application.pending() == EPOCHS
    assert application.remains("block") == []
    assert none_left(driver.process.pid)


def test_interrupted_call_of_the_jvm_is_no_lost_jvm() -> None:
    """Spark's handler uses the connection that it interrupts, and py4j may raise an OSError in its place."""
    done = ran([sys.executable, "-m", "tests.spark.interrupted"], timeout=200)
    assert done.returncode == 0, done.stderr
    came, sent = map(int, done.stdout.split(" of "))
    assert came == sent > 0, done.stderr


@pytest.mark.test_all
def test_ctrl_c_once_goes_through_when_everything_is_flushed(application: Application) -> None:
    """The flush goes on as soon as the target answers, as after the SIGTERM of the next test."""
    driver = application.start("block", closed=True)
    time.sleep(1)
    os.killpg(driver.process.pid, signal.SIGINT)
    until(lambda: f"flushing {EPOCHS} epochs" in driver.log())
    application.barrier.unlink()
    driver.finish(-signal.SIGINT)
    assert LEFT not in driver.log(), driver.log()
    assert "its end failed" not in driver.log(), driver.log()
    assert application.table.ids() == ALL
    assert application.remains("block") == []
    assert none_left(driver.process.pid)


@pytest.mark.test_all
def test_sigterm_that_raises_system_exit_neither_hangs_nor_loses(application: Application) -> None:
    """It arrives inside `awaitTermination`: what the sink and the application ask Spark then is answered."""
    driver = application.start("block", closed=True, exit_on_term=True)
    time.sleep(1)
    os.kill(driver.process.pid, signal.SIGTERM)
    until(lambda: f"flushing {EPOCHS} epochs" in driver.log())
    application.barrier.unlink()
    driver.finish(143)
    assert "Traceback" not in driver.log()
    assert application.table.ids() == ALL
    assert application.remains("block") == []
    assert none_left(driver.process.pid)
