"""The counts and the backlog of a query, over the real flusher with faults in its log and its target."""

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
from wal_sink.metrics.prometheus import BacklogReader, Metrics
from wal_sink.testing.faults import AnswerLost, Faults, FaultyBackend


def checkpoint_epochs(world: World, count: int = 3) -> None:
    """Checkpoint epochs of two rows each."""
    run = world.run()
    for epoch in range(count):
        run.batch([(f"a{epoch}", epoch)], [(f"b{epoch}", epoch)])


# --- counts ---------------------------------------------------------------------------------------


def test_flushed_epochs_are_counted(world: World) -> None:
    checkpoint_epochs(world)
    size = world.state.last.sums.bytes
    watched = Watched(world)
    assert watched.value("wal_sink_flushed_rows_total") == 0
    assert watched.flush() == []
    assert watched.value("wal_sink_flushed_rows_total") == 6
    assert watched.value("wal_sink_flushed_epochs_total") == 3
    assert watched.value("wal_sink_flushed_bytes_total") == size > 0
    assert watched.value("wal_sink_flush_seconds_count") == 1, "one for each window"
    assert watched.value("wal_sink_commit_to_visible_seconds_count") == 3, "one for each epoch"
    assert 0 < (watched.value("wal_sink_commit_to_visible_seconds_sum") or 0) < 60


@pytest.mark.parametrize("when", ["before", "after"])
def test_retried_step_is_counted_once(when: Literal["before", "after"]) -> None:
    """Each operation of a flush fails in turn, with and without its effect."""
    at, hit = 0, 0
    while True:
        world = new_world()
        checkpoint_epochs(world)
        faults = Faults(at, when, AnswerLost)
        watched = Watched(world, faults)
        failed = watched.flush()
        assert world.table() == world.expected()
        assert watched.value("wal_sink_flushed_rows_total") == 6, faults.injected
        assert watched.value("wal_sink_flushed_epochs_total") == 3, faults.injected
        samples = [s for family in watched.metrics.registry.collect() for s in family.samples]
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
    """So the sum over all processes is the number of rows in the table."""
    checkpoint_epochs(world)
    quick = Watched(world)

    class Overtaken(Faults):
        """Another flusher finishes everything right before this one moves the ledger row."""

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


def test_errors_are_counted_by_kind(world: World) -> None:
    """`wal_sink_flush_stopped` is 1 after an error that does not pass by itself, until the next success."""
    checkpoint_epochs(world, 1)
    world.target.refuses = lambda _: "too long"  # type: ignore[attr-defined]
    watched = Watched(world)
    assert watched.value("wal_sink_flush_stopped") == 0
    assert len(watched.flush(tries=4)) == 3, "the first pass makes the ledger row"
    assert watched.value("wal_sink_flush_errors_total", kind="TargetRefused") == 3
    assert watched.value("wal_sink_flush_stopped") == 1
    world.target.refuses = lambda _: ""  # type: ignore[attr-defined]
    assert watched.flush() == []
    assert watched.value("wal_sink_flush_stopped") == 0
    watched.reporter.failed(ZeroDivisionError())
    assert watched.value("wal_sink_flush_errors_total", kind="bug") == 1
    watched.reporter.succeeded()
    down = Watched(world, Faults(at=0, error=ConnectionError, matching="connect"))
    assert down.value("wal_sink_flush_errors_total", kind="TargetUnavailable") == 0
    down.flush()
    assert down.value("wal_sink_flush_stopped") == 0, "an outage passes by itself"


# --- the backlog ----------------------------------------------------------------------------------


def test_pending_epochs_are_counted_while_the_target_is_down(world: World) -> None:
    checkpoint_epochs(world)
    watched = Watched(world)
    assert watched.value("wal_sink_pending_epochs") == 3
    assert watched.value("wal_sink_pending_rows") == 6
    assert watched.value("wal_sink_pending_bytes") == world.state.last.sums.bytes
    assert watched.value("wal_sink_checkpointed_epoch") == 2
    assert watched.value("wal_sink_flushed_epoch") == -1
    first_s = watched.value("wal_sink_oldest_pending_seconds") or 0
    time.sleep(0.02)
    assert 0 < first_s < (watched.value("wal_sink_oldest_pending_seconds") or 0) < 60
    watched.flush()
    for name in ("pending_epochs", "pending_rows", "oldest_pending_seconds"):
        assert watched.value(f"wal_sink_{name}") == 0
    assert watched.value("wal_sink_flushed_epoch") == 2


def reader(world: World, faults: Faults) -> BacklogReader:
    """Return the reader of a query's backlog."""
    store = FaultyBackend(world.log_backend, faults)
    (name,) = world.targets
    return BacklogReader(Checkpoint(world.checkpoint), store, name)


class Gone(Faults):
    """No operation succeeds."""

    def around(self, name: str):  # type: ignore[no-untyped-def]
        raise OSError(name)


def test_pending_count_stays_while_log_cannot_be_read(world: World) -> None:
    """Otherwise an alert would end while the disk is gone."""
    checkpoint_epochs(world)
    assert reader(world, Gone()).read() is None
    backlog = reader(world, Faults())
    first = backlog.read()
    assert first is not None
    backlog._store = FaultyBackend(world.log_backend, Gone())
    assert backlog.read() == first, "with the time of the first read"
    assert first.backlog.oldest_seconds(first.read_us + 60_000_000) >= 60


def test_scrape_reads_one_manifest_of_a_long_backlog(world: World) -> None:
    """The state has running sums of rows and bytes. The manifest has the time of the oldest epoch."""
    checkpoint_epochs(world, 20)
    faults = Faults(matching="manifests")
    read = reader(world, faults).read()
    assert read is not None
    assert (read.backlog.epochs, read.backlog.rows) == (20, 40)
    listing, reading = faults.operations
    assert listing == "list manifests/"
    assert reading.startswith("read manifests/00000000000000000000-")


def test_hanging_store_blocks_only_one_scrape(world: World) -> None:
    entered, leave = threading.Event(), threading.Event()

    class Hanging(Faults):
        def around(self, name: str):  # type: ignore[no-untyped-def]
            entered.set()
            leave.wait(10)
            return super().around(name)

    checkpoint_epochs(world, 1)
    backlog = reader(world, Hanging())
    first = threading.Thread(target=backlog.read)
    first.start()
    assert entered.wait(10)
    assert backlog.read() is None, "the second scrape waits"
    leave.set()
    first.join(10)
    read = backlog.read()
    assert read is not None
    assert read.backlog.epochs == 1


# --- queries that have ended ----------------------------------------------------------------------


def test_series_stay_while_epochs_are_pending(world: World) -> None:
    """The series of a drained query stay for `KEEP_S`."""
    now_s = [time.time()]
    watched = Watched(world, metrics=Metrics(lambda: now_s[0]))
    checkpoint_epochs(world, 1)
    watched.query_metrics.started()
    assert watched.value("wal_sink_flushers") == 1
    watched.query_metrics.ended()
    for _ in range(3):
        now_s[0] += prometheus.KEEP_S + 1
        assert watched.value("wal_sink_pending_epochs") == 1
        assert watched.value("wal_sink_flushers") == 0
    assert (watched.value("wal_sink_oldest_pending_seconds") or 0) > prometheus.KEEP_S
    watched.flush()
    watched.reporter.failed(ZeroDivisionError())
    assert watched.value("wal_sink_pending_epochs") == 0
    now_s[0] += prometheus.KEEP_S - 1
    assert watched.value("wal_sink_flushed_rows_total") == 2
    assert watched.value("wal_sink_pending_epochs") == 0
    now_s[0] += 2
    assert not [family.name for family in watched.metrics.registry.collect() if family.samples]


def test_query_that_starts_again_keeps_its_counts(world: World) -> None:
    now_s = [time.time()]
    watched = Watched(world, metrics=Metrics(lambda: now_s[0]))
    checkpoint_epochs(world, 1)
    watched.flush()
    assert watched.value("wal_sink_pending_epochs") == 0
    now_s[0] += prometheus.KEEP_S - 1
    again = Watched(world, metrics=watched.metrics)
    assert again.query_metrics is watched.query_metrics
    now_s[0] += 10
    assert again.value("wal_sink_pending_epochs") == 0
    again.query_metrics.started()
    now_s[0] += 2 * prometheus.KEEP_S
    assert again.value("wal_sink_pending_epochs") == 0, "the series of a running query are gone"
    world.run().batches([("c", 1)])
    again.flush()
    assert again.value("wal_sink_flushed_rows_total") == 3


# --- times and log records ------------------------------------------------------------------------


def test_commit_time_is_read_from_its_file(tmp_path: Path) -> None:
    """If there is no such file, the time is that of the epoch's publication."""
    (tmp_path / "commits").mkdir()
    file = tmp_path / "commits" / "7"
    file.write_text("v1\n{}")
    written = file.stat().st_mtime_ns // 1_000
    url = tmp_path.as_uri()
    assert committed_us(url, 7, written - 90_000) == written
    assert committed_us(url, 8, 5) == 5
    assert committed_us("s3://bucket/checkpoint", 7, 5) == 5


def test_log_lines_of_a_flush_have_query_and_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query and epoch are in the text, and are attributes of the record."""
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_FIRST_S", 0.002)
    caplog.set_level(logging.INFO, "wal_sink")
    world = World(open_backend(str(tmp_path / "checkpoint")), open_backend(str(tmp_path / "log")))
    checkpoint_epochs(world, 2)
    watched = Watched(world, Faults(at=1, error=ConnectionError, matching="write"))
    caplog.clear()
    loop = FlushLoop(watched.flusher)
    loop.end()
    loop.start()
    loop.join(30)
    assert watched.value("wal_sink_flushers") == 0
    records = [r for r in caplog.records if r.threadName == loop.name]
    texts = [r.getMessage() for r in records]
    assert [t for t in texts if not t.startswith(f"query {world.query_id}")] == []
    assert {getattr(r, "query_id", None) for r in records} == {world.query_id}
    place = f"query {world.query_id}, epoch"
    assert any(t.startswith(f"{place} 0: the flush failed, 1 try in ") for t in texts), texts
    (flushed,) = [r for r in records if ": flushed " in r.getMessage()]
    assert flushed.getMessage().endswith(": flushed 4 rows of epochs 0 to 1")
    assert getattr(flushed, "epoch", None) == 1
