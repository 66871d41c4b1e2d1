"""`read_status` and `wait_until_flushed` over a real log, without Spark and without a target."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import msgspec
import pytest

import wal_sink
from tests.protocol.engine import NOW_US, World, in_memory
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CheckpointNotVisible, FlushTimeout, NoFlusher, WalSinkError
from wal_sink.model import paths
from wal_sink.progress.flusher_report import ErrorReport, FlusherReport
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.testing.faults import Faults, FaultyBackend

SECONDS = 10.0
"""A test that waits for longer fails."""


@pytest.fixture
def world() -> World:
    """A new query, which only the test flushes."""
    return World(*in_memory())


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often; a wait with a timeout needs no flusher, which may start within the timeout."""
    monkeypatch.setattr("wal_sink.progress.wait._POLL_S", 0.002)
    monkeypatch.setattr("wal_sink.progress.wait._PATIENCE_S", 0.0)


def status(world: World) -> Status:
    return read_status(Checkpoint(world.checkpoint), world.log_backend)


def wait(world: World, timeout: float | None = SECONDS) -> Flushed:
    return wait_until_flushed(Checkpoint(world.checkpoint), world.log_backend, timeout)


def report(world: World, error: ErrorReport | None = None, age_s: float = 0.0) -> None:
    """Leave a report as a flusher of another process does."""
    heartbeat_us = time.time_ns() // 1_000 - int(age_s * 1_000_000)
    text = FlusherReport(flusher="there:1", doing="writing", heartbeat_us=heartbeat_us, error=error)
    world.log_backend.replace(report_path(world), text.to_json())


def report_path(world: World) -> str:
    (name,) = world.targets
    return paths.REPORT.path(name)


def an_error(kind: str, *, transient: bool = False) -> ErrorReport:
    return ErrorReport(
        kind=kind, what="It broke", remedy="Mend it.", epoch=1, at_us=NOW_US, transient=transient
    )


# --- status ---------------------------------------------------------------------------------------


def test_status_of_a_wrong_checkpoint_raises(world: World) -> None:
    with pytest.raises(CheckpointNotVisible):
        status(world)


def test_repr_of_a_status_has_the_printed_lines(world: World) -> None:
    batches = world.run().flushed_batches([("a", 1)])
    batches.batch([("b", 2)], [("c", 3)])
    what = "down \x1b[31m<b>"
    report(
        world,
        ErrorReport(kind="E", what=what, remedy="Mend\nit.", epoch=1, at_us=NOW_US, transient=True),
    )
    current = status(world)
    assert re.search(r"^checkpointed +1$", repr(current), re.MULTILINE)
    assert re.search(r"^lag +1 epoch, 2 rows, ", repr(current), re.MULTILINE)
    assert re.search(r"^last error +E: down \\x1b\[31m<b>$", repr(current), re.MULTILINE)
    assert re.search(r"^what to do +Mend\n +it\.$", repr(current), re.MULTILINE)


def test_result_of_a_wait_prints_as_a_sentence() -> None:
    flushed = Flushed(epoch=4, rows=1_200, seconds=2.04)
    assert repr(flushed) == "every epoch up to 4 is flushed; waited 2.0 s for 1,200 rows"
    assert repr(Flushed(epoch=4, rows=0, seconds=0.0)) == "every epoch up to 4 is flushed"
    assert "nothing is checkpointed yet" in repr(Flushed(epoch=-1, rows=0, seconds=0.0))


def test_dir_of_the_package_lists_public_names() -> None:
    """Names that are imported on first use are listed, too."""
    assert set(dir(wal_sink)) == {*wal_sink.__all__, "__version__"}
    assert all(hasattr(wal_sink, name) for name in dir(wal_sink))


def test_pending_rows_are_those_of_the_newest_attempt(world: World) -> None:
    world.run().publish([("dead", n) for n in range(50)])
    run = world.run()
    run.batch([("a", 1), ("b", 2)], [("c", 3)])
    run.batch()
    run.batch([("d", 4)])
    pending = world.state.last.sums
    run.publish([("not yet", 5)])
    current = status(world)
    assert (current.checkpointed, current.published, current.flushed) == (2, 3, -1)
    assert (current.pending_epochs, current.pending_rows) == (3, 4)
    assert current.pending_bytes == pending.bytes > 0
    assert not current.safe_to_delete


def test_log_of_a_flushed_query_is_safe_to_delete(world: World) -> None:
    run = world.run().flushed_batches([("a", 1)], [("b", 2)])
    marked_us = world.state.targets[0].mark.at_us
    current = status(world)
    assert (current.checkpointed, current.published, current.flushed) == (1, 1, 1)
    assert (current.pending_epochs, current.pending_rows, current.oldest_pending_seconds) == (
        0,
        0,
        0.0,
    )
    assert current.safe_to_delete
    assert current.flushed_as_of is not None
    as_of = datetime.fromisoformat(current.flushed_as_of)
    assert as_of == datetime.fromtimestamp(marked_us / 1_000_000, UTC)
    run.publish([("c", 3)])
    assert not status(world).safe_to_delete


def test_epochs_before_the_first_publish_are_not_pending(world: World) -> None:
    """Given a query whose first three epochs ran without the sink."""
    for epoch in range(3):
        world.checkpoint.create(f"commits/{epoch}", b"v1\n{}")
    run = world.run()
    current = status(world)
    assert (current.checkpointed, current.published, current.pending_epochs) == (2, -1, 0)
    run.batch([("a", 1)])
    current = status(world)
    assert (
        current.checkpointed,
        current.published,
        current.pending_epochs,
        current.pending_rows,
    ) == (3, 3, 1, 1)
    assert waited_for(world, world.flush) == (3, 1)


def test_epoch_with_a_missing_manifest_is_pending(world: World) -> None:
    """The state has the sums of its rows and bytes."""
    world.run().batches([("a", 1)], [("b", 2)])
    world.log_backend.delete(world.log_backend.list(paths.MANIFEST.folder))
    current = status(world)
    assert (current.pending_epochs, current.pending_rows) == (2, 2)
    assert current.oldest_pending_seconds > 0  # since the log was created
    assert not current.safe_to_delete


def test_status_says_how_long_the_flush_lags(world: World) -> None:
    """The lag is the age of the oldest pending epoch, or 0 if the clock of its publisher was ahead."""
    run = world.run()
    world.clock.us = time.time_ns() // 1_000 - 90_000_000
    run.batch([("a", 1)])
    assert 90 <= status(world).oldest_pending_seconds < 90 + SECONDS
    world.clock.us += 60_000_000
    world.flush()
    assert status(world).oldest_pending_seconds == 0.0
    world.clock.us += 10_000_000
    run.batch([("b", 2)])
    world.clock.us += 10_000_000
    run.batch([("c", 3)])
    assert 20 <= status(world).oldest_pending_seconds < 20 + SECONDS
    world.flush()
    world.clock.us = time.time_ns() // 1_000 + 3_600_000_000
    run.batch([("d", 4)])
    assert status(world).oldest_pending_seconds == 0.0


# --- await_flushed --------------------------------------------------------------------------------


@contextmanager
def waiting(world: World, timeout: float | None = SECONDS) -> Iterator[Future[Flushed]]:
    """Call `wait_until_flushed` in a thread, and enter the block when the call waits."""
    current = Faults(matching="report-")
    store = FaultyBackend(world.log_backend, current)
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(wait_until_flushed, Checkpoint(world.checkpoint), store, timeout)
        deadline = time.monotonic() + SECONDS
        while not current.operations:
            assert not future.done()
            assert time.monotonic() < deadline
            time.sleep(0.001)
        yield future


def waited_for(world: World, meanwhile: Callable[[], object]) -> tuple[int, int]:
    """Return the epoch and rows that `wait_until_flushed` returns if `meanwhile` happens during the wait."""
    with waiting(world) as future:
        assert not future.done()
        meanwhile()
        flushed = future.result(SECONDS)
    assert flushed.seconds > 0
    return flushed.epoch, flushed.rows


@pytest.mark.parametrize("timeout", [None, 0.0, SECONDS])
def test_await_flushed_without_pending_epochs_returns_at_once(
    world: World, timeout: float | None
) -> None:
    run = world.run()
    assert (wait(world, timeout).epoch, wait(world, timeout).rows) == (-1, 0)
    run.publish([("a", 1)])
    assert (wait(world, timeout).epoch, wait(world, timeout).rows) == (-1, 0)
    run.write_commit([[("a", 1)]])
    world.flush()
    assert (wait(world, timeout).epoch, wait(world, timeout).rows) == (0, 0)


def test_wait_counts_only_rows_of_the_awaited_epochs(world: World) -> None:
    """Rows that were flushed before, and rows of dead attempts, do not count."""
    run = world.run().flushed_batches([("before", 1)])
    run.publish([("dead", n) for n in range(50)])
    run = world.run().batches([("a", 1), ("b", 2)])
    run.batch()
    run.batch([("c", 3)], [("d", 4)])
    assert waited_for(world, world.flush) == (3, 4)


@pytest.mark.usefixtures("one_by_one")
def test_await_flushed_waits_only_for_epochs_before_the_call(world: World) -> None:
    """Given a query that continues, the wait ends."""
    run = world.run().batches([("a", 1)], [("b", 2), ("c", 3)])

    def later() -> None:
        run.batch([("later", n) for n in range(9)])
        flusher = world.flusher()
        while status(world).flushed < 1:
            flusher.run_once()

    assert waited_for(world, later) == (1, 3)
    assert status(world).pending_epochs == 1


def test_wait_does_not_count_rows_of_later_epochs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given later epochs that are flushed before the next read of the state."""
    monkeypatch.setattr("wal_sink.progress.wait._POLL_S", 0.3)
    run = world.run().batches([("a", 1)])

    def later() -> None:
        run.flushed_batches([("later", n) for n in range(9)])

    assert waited_for(world, later) == (0, 1)


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_wait_past_its_timeout_raises(world: World, timeout: float) -> None:
    """The error has the number of pending epochs and the flusher's last error."""
    world.run().batches([("a", 1)], [("b", 2)])
    with pytest.raises(FlushTimeout, match=r"2 epochs of memory:.* are not flushed") as caught:
        wait(world, timeout)
    assert "last error" not in str(caught.value)
    assert "Nothing is lost" in caught.value.remedy
    report(world, an_error("TargetUnavailable", transient=True))
    with pytest.raises(FlushTimeout, match="last error: TargetUnavailable: It broke"):
        wait(world, timeout)


# --- no flusher -----------------------------------------------------------------------------------


@pytest.mark.parametrize("age_s", [None, 3_600.0, -3_600.0 * 24 * 365 * 10])
def test_await_flushed_without_a_flusher_raises(
    world: World, monkeypatch: pytest.MonkeyPatch, age_s: float | None
) -> None:
    """`await_flushed` waits for a moment first, since a flusher may be about to start."""
    monkeypatch.setattr("wal_sink.progress.wait._PATIENCE_S", 0.1)
    world.run().batch([("a", 1)])
    if age_s is not None:
        report(world, age_s=age_s)
    started = time.monotonic()
    with pytest.raises(NoFlusher, match=r"1 epoch of .* is pending") as caught:
        wait(world, None)
    assert time.monotonic() - started >= 0.1
    assert "register" in caught.value.remedy


def test_wait_for_flushed_epochs_ignores_a_hanging_flusher(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.run().flushed_batches([("a", 1)])
    monkeypatch.setattr("wal_sink.progress.wait._PATIENCE_S", 0.1)
    asked = iter(range(1_000))

    def has_tried(_target: str) -> bool:
        return next(asked) > 100

    assert flushed_by(world, has_tried) == 0
    assert next(asked) < 100


def test_wait_continues_while_a_flusher_reports(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given reports whose times are hours off."""
    monkeypatch.setattr("wal_sink.progress.wait._PATIENCE_S", 0.3)
    world.run().batch([("a", 1)])
    report(world)
    with waiting(world, None) as future:
        for beat in range(20):
            time.sleep(0.05)
            report(world, age_s=(-1) ** beat * 3_600.0 * beat)
            assert not future.done()
        world.flush()
        assert future.result(SECONDS).rows == 1


# --- errors of the flusher ------------------------------------------------------------------------


def flushed_by(world: World, has_tried: Callable[[str], bool]) -> int:
    checkpoint = Checkpoint(world.checkpoint)
    return wait_until_flushed(checkpoint, world.log_backend, None, has_tried=has_tried).epoch


@pytest.mark.parametrize("timeout", [None, 0.0, SECONDS])
def test_wait_raises_the_error_that_stopped_the_flush(world: World, timeout: float | None) -> None:
    world.run().batch([("a", 1)])
    report(world, an_error("MissingManifest"))
    with pytest.raises(errors.MissingManifest) as caught:
        wait(world, timeout)
    assert (caught.value.what, caught.value.remedy) == ("It broke", "Mend it.")
    assert "Mend it." in str(caught.value)


@pytest.mark.parametrize("kind", ["KeyError", "WalSinkError", "annotations", "__name__", ""])
def test_wait_raises_unknown_error_class_as_its_base(world: World, kind: str) -> None:
    """Such an error is a bug of the flusher, or was reported by a later version."""
    world.run().batch([("a", 1)])
    report(world, an_error(kind))
    with pytest.raises(WalSinkError, match="It broke") as caught:
        wait(world)
    assert type(caught.value) is WalSinkError


def test_wait_ignores_an_error_of_a_later_epoch(world: World) -> None:
    world.run().flushed_batches([("a", 1)])
    report(world, an_error("MissingManifest"))
    assert wait(world).epoch == 0


def test_wait_raises_error_without_epoch_until_a_flush(world: World) -> None:
    """For example, the error of a target that was restored from an older backup has no epoch."""
    world.run().flushed_batches([("a", 1)])
    error = msgspec.structs.replace(an_error("LedgerBehindLog"), epoch=None, at_us=world.clock())
    report(world, error)
    with pytest.raises(errors.LedgerBehindLog):
        wait(world)
    world.run().flushed_batches([("b", 2)])
    report(world, error)
    assert wait(world).epoch == 1


def test_reported_error_ends_when_another_flusher_flushes_epoch(world: World) -> None:
    world.run().batch([("a", 1)])
    at_us = time.time_ns() // 1_000
    failed = ErrorReport(
        kind="TargetUnavailable", what="down", remedy="", epoch=0, at_us=at_us, transient=True
    )
    report(world, failed)
    assert status(world).last_error == "TargetUnavailable: down"
    world.clock.us = at_us + 1_000_000
    world.flush()
    report(world, failed)
    assert (status(world).last_error, status(world).remedy) == (None, None)
    report(world, msgspec.structs.replace(failed, epoch=1, at_us=at_us + 9_000_000))
    assert status(world).last_error == "TargetUnavailable: down"


def test_status_names_kind_and_table_of_the_newest_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for epoch, table in enumerate(["old", "new"]):
        options = {"target": "postgresql", "table": table}
        monkeypatch.setattr(type(world), "options", options)
        world.run().batch([("a", epoch)])
    assert status(world).writes_to == "postgresql, new"
