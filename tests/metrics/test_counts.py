"""What is counted, and what waits: over the real flusher, with faults in its log and its target."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from state_backends import open_backend
from tests.metrics.watched import Watched, new_world
from tests.protocol.engine import World
from wal_sink.checkpoint.checkpoint import Checkpoint, committed_us
from wal_sink.flush.loop import FlushLoop
from wal_sink.metrics import prometheus
from wal_sink.metrics.prometheus import Metrics
from wal_sink.progress.backlog import BacklogReader
from wal_sink.testing.faults import AnswerLost, Faults, FaultyBackend
from wal_sink.wal.store import LogStore


@pytest.fixture
def world() -> Iterator[World]:
    """A new query, in memory."""
    made = new_world()
    yield made
    made.forget()


def batches(world: World, count: int = 3) -> None:
    """Checkpoint epochs of two rows each."""
    run = world.run()
    for epoch in range(count):
        run.batch([(f"a{epoch}", epoch)], [(f"b{epoch}", epoch)])


def bytes_in(world: World) -> int:
    """Bytes of all segments in the log."""
    return world.state.last.sums.bytes


# --- what is done ---------------------------------------------------------------------------------


def test_flushed_epoch_is_counted(world: World) -> None:
    batches(world)
    size = bytes_in(world)
    it = Watched(world)
    assert it.value("wal_sink_flushed_rows_total") == 0
    assert it.flush() == []
    assert it.value("wal_sink_flushed_rows_total") == 6
    assert it.value("wal_sink_flushed_epochs_total") == 3
    assert it.value("wal_sink_flushed_bytes_total") == size > 0
    assert it.value("wal_sink_flush_seconds_count") == 1, "one window"
    assert it.value("wal_sink_commit_to_visible_seconds_count") == 3, "each epoch"
    visible = it.value("wal_sink_commit_to_visible_seconds_sum")
    assert visible is not None
    assert 0 < visible < 60


@pytest.mark.parametrize("when", ["before", "after"])
def test_whatever_is_tried_again_counts_once(when: Literal["before", "after"]) -> None:
    """An error at each operation of a flush in turn, with and without its effect; then it goes on."""
    at, hit = 0, 0
    while True:
        world = new_world()
        batches(world)
        faults = Faults(at, when, AnswerLost)
        it = Watched(world, faults)
        failed = it.flush()
        assert world.table() == world.expected()
        assert it.value("wal_sink_flushed_rows_total") == 6, faults.injected
        assert it.value("wal_sink_flushed_epochs_total") == 3, faults.injected
        samples = [s for family in it.metrics.registry.collect() for s in family.samples]
        errors = [s.value for s in samples if s.name == "wal_sink_flush_errors_total"]
        assert sum(errors) == len(failed)
        world.forget()
        if faults.injected is None:
            break
        hit += bool(failed)
        at += 1
    assert at > 50
    assert hit > 10


def test_window_finished_by_another_flusher_is_not_counted(world: World) -> None:
    """The sum over all processes is what is in the table."""
    batches(world)
    quick = Watched(world)

    class Overtaken(Faults):
        """Another flusher finishes everything when this one is about to."""

        @contextlib.contextmanager
        def around(self, name: str) -> Iterator[None]:
            if name.startswith("finish") and "2" in name and not self.operations:
                self.operations.append(name)
                assert quick.flush() == []
            yield

    overtaken = Overtaken()
    slow = Watched(world, overtaken)
    assert slow.flush() == []
    assert overtaken.operations == ["finish 2"]
    assert quick.value("wal_sink_flushed_rows_total") == 6
    assert slow.value("wal_sink_flushed_rows_total") == 0


def test_errors_by_kind_and_whether_the_flush_stopped(world: World) -> None:
    batches(world, 1)
    world.target.refuses = lambda _: "too long"  # type: ignore[attr-defined]
    it = Watched(world)
    assert it.value("wal_sink_line_stopped") == 0
    assert len(it.flush(tries=4)) == 3, "the first pass makes the ledger row"
    assert it.value("wal_sink_flush_errors_total", kind="TargetRefused") == 3
    assert it.value("wal_sink_line_stopped") == 1
    world.target.refuses = lambda _: ""  # type: ignore[attr-defined]
    assert it.flush() == []
    assert it.value("wal_sink_line_stopped") == 0
    it.reporter.failed(ZeroDivisionError())
    assert it.value("wal_sink_flush_errors_total", kind="bug") == 1, "kinds are bounded"
    it.reporter.succeeded()
    down = Watched(world, Faults(at=0, error=ConnectionError, matching="connect"))
    assert down.value("wal_sink_flush_errors_total", kind="TargetUnavailable") == 0
    down.flush()
    assert down.value("wal_sink_line_stopped") == 0, "an outage is over by itself"


# --- what is pending -----------------------------------------------------------------------------------


def test_pending_epochs_are_counted_while_the_target_is_down(world: World) -> None:
    batches(world)
    it = Watched(world)
    assert it.value("wal_sink_pending_epochs") == 3
    assert it.value("wal_sink_pending_rows") == 6
    assert it.value("wal_sink_pending_bytes") == bytes_in(world)
    assert it.value("wal_sink_checkpointed_epoch") == 2
    assert it.value("wal_sink_flushed_epoch") == -1
    first = it.value("wal_sink_oldest_pending_seconds")
    time.sleep(0.02)
    second = it.value("wal_sink_oldest_pending_seconds")
    assert first is not None
    assert second is not None
    assert 0 < first < second < 60
    it.flush()
    assert it.value("wal_sink_pending_epochs") == 0
    assert it.value("wal_sink_pending_rows") == 0
    assert it.value("wal_sink_oldest_pending_seconds") == 0
    assert it.value("wal_sink_flushed_epoch") == 2


def reader(world: World, faults: Faults) -> BacklogReader:
    store = LogStore(FaultyBackend(world.log_backend, faults))
    (name,) = world.targets
    return BacklogReader(Checkpoint(world.checkpoint), store, name)


def test_pending_epochs_stay_while_the_log_cannot_be_read(world: World) -> None:
    """The alert must not end because the disk is gone, too."""
    batches(world)
    assert reader(world, Gone()).read() is None
    backlog = reader(world, Faults())
    first = backlog.read()
    assert first is not None
    backlog._store = LogStore(FaultyBackend(world.log_backend, Gone()))
    assert backlog.read() == first, "with the time at which it was read"
    assert first.backlog.oldest_seconds(first.read_us + 60_000_000) >= 60


class Gone(Faults):
    """Nothing can be read."""

    def __init__(self) -> None:
        super().__init__(at=0, error=OSError)

    def around(self, name: str):  # type: ignore[no-untyped-def]
        raise OSError(name)


def test_pending_epochs_are_counted_without_manifests(world: World) -> None:
    """A manifest that is lost, or damaged, changes nothing: the state has running sums."""
    batches(world, 20)
    faults = Faults(matching="manifests")
    read = reader(world, faults).read()
    assert read is not None
    assert (read.backlog.epochs, read.backlog.rows) == (20, 40)
    assert faults.operations == []


def test_store_that_hangs_blocks_one_scrape(world: World) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Hanging(Faults):
        def around(self, name: str):  # type: ignore[no-untyped-def]
            entered.set()
            leave.wait(10)
            return super().around(name)

    batches(world, 1)
    backlog = reader(world, Hanging())
    first = threading.Thread(target=backlog.read)
    first.start()
    assert entered.wait(10)
    assert backlog.read() is None, "at once"
    leave.set()
    first.join(10)
    read = backlog.read()
    assert read is not None
    assert read.backlog.epochs == 1


# --- queries that have ended ----------------------------------------------------------------------


def test_series_stay_while_anything_waits_and_go_afterwards(world: World) -> None:
    """A query that ended with pending epochs goes on to alert; the series of a drained one go."""
    now_s = [time.time()]
    it = Watched(world, metrics=Metrics(lambda: now_s[0]))
    batches(world, 1)
    it.query_metrics.started()
    assert it.value("wal_sink_flushers") == 1
    it.query_metrics.ended()
    for _ in range(3):
        now_s[0] += prometheus.KEEP_S + 1
        assert it.value("wal_sink_pending_epochs") == 1
        assert it.value("wal_sink_flushers") == 0
    assert (it.value("wal_sink_oldest_pending_seconds") or 0) > prometheus.KEEP_S
    it.flush()
    it.reporter.failed(ZeroDivisionError())
    assert it.value("wal_sink_pending_epochs") == 0
    now_s[0] += prometheus.KEEP_S - 1
    assert it.value("wal_sink_flushed_rows_total") == 2, "the last counts are to be seen"
    assert it.value("wal_sink_pending_epochs") == 0
    now_s[0] += 2
    assert not [family.name for family in it.metrics.registry.collect() if family.samples]


def test_query_that_starts_again_goes_on_counting(world: World) -> None:
    now_s = [time.time()]
    it = Watched(world, metrics=Metrics(lambda: now_s[0]))
    batches(world, 1)
    it.flush()
    assert it.value("wal_sink_pending_epochs") == 0
    now_s[0] += prometheus.KEEP_S - 1
    again = Watched(world, metrics=it.metrics)
    assert again.query_metrics is it.query_metrics
    now_s[0] += 10
    assert again.value("wal_sink_pending_epochs") == 0
    again.query_metrics.started()
    now_s[0] += 2 * prometheus.KEEP_S
    assert again.value("wal_sink_pending_epochs") == 0, "it is alive"
    world.run().batches([("c", 1)])
    again.flush()
    assert again.value("wal_sink_flushed_rows_total") == 3


# --- the rest -------------------------------------------------------------------------------------


def test_scrape_shows_the_time_of_the_last_commit(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    file = tmp_path / "commits" / "7"
    file.write_text("v1\n{}")
    written = file.stat().st_mtime_ns // 1_000
    url = tmp_path.as_uri()
    assert committed_us(url, 7, written - 90_000) == written
    assert committed_us(url, 8, 5) == 5, "purged"
    assert committed_us("s3://bucket/checkpoint", 7, 5) == 5


def test_every_line_of_a_flush_says_query_and_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors and what is flushed: in the text, and as attributes."""
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_FIRST_S", 0.002)
    caplog.set_level(logging.INFO, "wal_sink")
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    batches(world, 2)
    it = Watched(world, Faults(at=1, error=ConnectionError, matching="write"))
    caplog.clear()
    loop = FlushLoop(it.flusher)
    loop.end()
    loop.start()
    loop.join(30)
    assert it.value("wal_sink_flushers") == 0
    records = [r for r in caplog.records if r.threadName == loop.name]
    texts = [r.getMessage() for r in records]
    assert [t for t in texts if not t.startswith(f"query {world.query_id}")] == []
    assert {getattr(r, "query_id", None) for r in records} == {world.query_id}
    place = f"query {world.query_id}, epoch"
    assert any(t.startswith(f"{place} 0: the flush failed, 1 try in ") for t in texts), texts
    (flushed,) = [r for r in records if ": flushed " in r.getMessage()]
    assert flushed.getMessage().endswith(": flushed 4 rows of epochs 0 to 1")
    assert getattr(flushed, "epoch", None) == 1
