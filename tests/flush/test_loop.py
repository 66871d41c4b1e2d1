"""The thread that keeps a flusher going, over a real flusher: woken, polling, failing, ending."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tenacity

from state_backends import open_backend
from tests.protocol.engine import World, in_memory
from tests.support.waiting import until
from wal_sink import errors
from wal_sink.admin.repair import refuse_flusher
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.report import FailureLog, Reporter
from wal_sink.model import paths
from wal_sink.progress.report import ENDED, ErrorReport, FlusherReport, read_report, this_process
from wal_sink.progress.status import read_status
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.spark.query import QueryFlush
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget
from wal_sink.wal.states import newest
from wal_sink.wal.store import LogStore

SECONDS = 10.0
"""Longer than anything takes here; a test that waits so long fails."""

NEVER = 3_600.0
LIST = f"list {paths.STATE.folder}"


class Outage(Faults):
    """Every operation whose name contains `matching` fails before it takes effect, until it is over.

    While it `halts`, such an operation waits for the end instead.
    """

    def __init__(self, matching: str, error: Callable[[], BaseException] = ConnectionError) -> None:
        super().__init__()
        self._where = matching
        self._what = error
        self.failures = 0
        self.halts, self.over = threading.Event(), threading.Event()

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        """Surround one operation."""
        self.operations.append(name)
        if self._where in name and not self.over.is_set():
            self.failures += 1
            if not self.halts.is_set():
                raise self._what()
            assert self.over.wait(2 * SECONDS)
        yield


class Flushing:
    """A loop over a world, as `register` makes it."""

    def __init__(self, world: World, faults: Faults, target: str = "") -> None:
        self.world = world
        self.faults = faults
        (name,) = world.targets
        self.name = target or name
        pipeline = Pipeline(
            world.query_id,
            LogStore(FaultyBackend(world.log_backend, faults)),
            Checkpoint(world.checkpoint),
            FaultyTarget(world.target, faults),
            target_name=self.name,
            several=False,
            retention=world.retention,
        )
        reporter = Reporter(world.store, self.name)
        self.loop = FlushLoop(Flusher(pipeline, reporter, clock_us=world.clock))

    def start(self) -> Flushing:
        self.loop.start()
        return self

    def is_flushed(self, epoch: int) -> bool:
        state = newest(self.world.store)
        target = state.target(self.name) if state is not None else None
        return target is not None and target.mark.epoch >= epoch

    def error(self) -> ErrorReport | None:
        report = self.report()
        return report.error if report else None

    def report(self) -> FlusherReport | None:
        return read_report(self.world.store, self.name)

    def waits(self) -> bool:
        """Return True if it has done all that there is."""
        report = self.report()
        return report is not None and report.doing.startswith(("no run", "nothing", "everything"))

    def ended(self) -> bool:
        self.loop.join(SECONDS)
        return not self.loop.is_alive()


@pytest.fixture
def world() -> World:
    """A new query."""
    return World(*in_memory())


@pytest.fixture
def flushing(world: World, flushing_in: Callable[..., Flushing]) -> Callable[..., Flushing]:
    """Make loops over `world`."""
    return lambda faults=None, target="": flushing_in(world, faults, target)


@pytest.fixture
def flushing_in() -> Iterator[Callable[..., Flushing]]:
    """Make loops over any world; they are stopped after the test, and no thread is left."""
    made: list[Flushing] = []

    def make(world: World, faults: Faults | None = None, target: str = "") -> Flushing:
        made.append(Flushing(world, faults or Faults(), target))
        return made[-1]

    yield make
    for each in made:
        if each.loop.ident is not None:
            each.loop.stop()
            assert each.ended()
    # A sync that was begun early for the next epoch is not waited for: it ends by itself.
    until(lambda: not any(t.name.startswith("wal_sink-") for t in threading.enumerate()))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing happens by time alone, unless a test says so."""
    monkeypatch.setattr("wal_sink.flush.loop.POLL_S", NEVER)
    times(monkeypatch, first=0.002, most=0.01)


def times(monkeypatch: pytest.MonkeyPatch, first: float, most: float) -> None:
    """Set how long the loop waits between tries; it waits a random part of it."""
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_FIRST_S", first)
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_MOST_S", most)


Flushings = Callable[..., Flushing]


# --- when it reads --------------------------------------------------------------------------------


def test_loop_flushes_pending_epochs_at_its_start(world: World, flushing: Flushings) -> None:
    """What an earlier process has left; no event is needed."""
    world.run().batch([("a", 1)])
    it = flushing().start()
    until(lambda: it.is_flushed(0))
    assert world.table() == {"a": 1}
    assert it.loop.daemon, "it must not keep the interpreter from ending"


def test_loop_flushes_when_woken(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not before: it rests until it is woken."""
    monkeypatch.setattr("wal_sink.flush.loop.POLL_S", NEVER)
    run = world.run()
    it = flushing().start()
    for epoch in range(3):
        until(it.waits)
        run.batch([("k", epoch)])
        time.sleep(0.05)
        assert not it.is_flushed(epoch)
        it.loop.wake()
        until(lambda epoch=epoch: it.is_flushed(epoch))  # type: ignore[misc]
    assert world.table() == {"k": 2}


def test_loop_finds_commits_without_events(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events are lost in a crash, and late otherwise: the checkpoint is looked at all the same."""
    monkeypatch.setattr("wal_sink.flush.loop.POLL_S", 0.01)
    run = world.run()
    it = flushing().start()
    for epoch in range(3):
        run.batch([("k", epoch)])
        until(lambda epoch=epoch: it.is_flushed(epoch))  # type: ignore[misc]
    assert world.table() == {"k": 2}


def test_loop_on_a_local_checkpoint_notices_new_commits(
    tmp_path: Path, flushing_in: Callable[..., Flushing]
) -> None:
    """A new file in `commits/` is enough."""
    world = World(open_backend(f"{tmp_path}/checkpoint"), open_backend(f"{tmp_path}/log"))
    run = world.run()
    it = flushing_in(world).start()
    until(it.waits)
    for epoch in range(3):
        run.batch([("k", epoch)])
        until(lambda epoch=epoch: it.is_flushed(epoch))  # type: ignore[misc]
    assert world.table() == {"k": 2}


def test_epoch_is_synced_before_spark_has_checkpointed_it(
    tmp_path: Path, flushing_in: Callable[..., Flushing], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As soon as something is written to `commits/`; the epoch waits for its commit all the same."""
    folder, synced, fsync = tmp_path / "checkpoint", set[int](), os.fsync
    world = World(open_backend(str(folder)), open_backend(f"{tmp_path}/log"))
    run = world.run().batches([("k", 0)])

    def note(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    monkeypatch.setattr(os, "fsync", note)
    it = flushing_in(world).start()
    until(it.waits)
    until(lambda: it.is_flushed(0))
    synced.clear()  # what was told of before may still wake it, once the epoch is planned
    run.publish([("k", 1)])
    planned = (folder / "offsets" / "1").stat().st_ino
    (folder / "commits" / ".1.tmp").write_text("v1")
    until(lambda: planned in synced)
    assert not it.is_flushed(1)


# --- when it fails --------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["connect", "read ledger", "create ledger", "write"])
@pytest.mark.parametrize("failures", [1, 4])
def test_loop_after_a_failure_skips_no_epoch(
    world: World, flushing: Flushings, operation: str, failures: int
) -> None:
    """Flink's hole: what failed is done before anything later, however often it fails (rule `stop`)."""
    world.run().batches(*([("k", epoch), (f"k{epoch}", epoch)] for epoch in range(3)))
    outage = Outage(operation)
    it = flushing(outage).start()
    until(lambda: outage.failures >= failures)
    assert world.table() == {}
    assert not it.is_flushed(0)
    outage.over.set()
    until(lambda: it.is_flushed(2))
    assert world.table() == world.expected()
    done = [name for name in outage.operations if name.startswith("write")]
    assert [int(name.split()[1]) for name in done] == sorted(int(n.split()[1]) for n in done)


@pytest.mark.parametrize(
    ("operation", "error", "kind", "transient"),
    [
        ("write 0", lambda: ConnectionError("no route"), "TargetUnavailable", True),
        ("write 0", lambda: RuntimeError("no such table"), "TargetRefused", False),
        ("write 0", lambda: errors.SchemaMismatch("a bug", "Change it."), "SchemaMismatch", False),
        # of no known kind: it is reported as one, and tried again like the others
        (LIST, lambda: ZeroDivisionError("a bug"), "ZeroDivisionError", False),
    ],
)
def test_error_of_a_failing_loop_is_in_its_report(
    world: World,
    flushing: Flushings,
    operation: str,
    error: Callable[[], Exception],
    kind: str,
    *,
    transient: bool,
) -> None:
    """It is in the report, with the epoch it is about, and gone when the pass has succeeded."""
    world.run().batch([("a", 1)])
    outage = Outage(operation, error)
    it = flushing(outage).start()
    until(lambda: outage.failures >= 2)
    until(lambda: it.error() is not None)
    found = it.error()
    assert found is not None
    assert (found.kind, found.transient) == (kind, transient)
    assert str(error()).splitlines()[0] in found.what
    if operation != LIST:
        assert found.epoch == 0
        assert found.remedy
    if not transient:
        with pytest.raises(getattr(errors, kind, errors.WalSinkError)):
            wait_until_flushed(Checkpoint(world.checkpoint), world.store, SECONDS)
    outage.over.set()
    until(lambda: it.is_flushed(0))
    until(lambda: it.error() is None)


@pytest.mark.parametrize("error", [lambda: ConnectionError("x"), lambda: RuntimeError("x")])
def test_after_a_failure_it_connects_again(
    world: World, flushing: Flushings, error: Callable[[], Exception]
) -> None:
    """The table may have been mended since, the nodes moved, the password changed."""
    world.run().batch([("a", 1)])
    outage = Outage("finish", error)
    it = flushing(outage).start()
    until(lambda: outage.failures >= 3)
    outage.over.set()
    until(lambda: it.is_flushed(0))
    assert outage.operations.count("connect") >= 3


def test_loop_that_rests_after_failures_can_be_hurried(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller waits: it tries now, not when the pause after many failures is over."""
    times(monkeypatch, first=NEVER, most=NEVER)
    world.run().batch([("a", 1)])
    outage = Outage("write")
    it = flushing(outage).start()
    until(lambda: it.error() is not None)
    outage.over.set()
    until(lambda: hurried(it))
    assert world.table() == {"a": 1}


def hurried(it: Flushing) -> bool:
    it.loop.hurry()
    time.sleep(0.05)
    return it.is_flushed(0)


def test_error_stays_until_the_failed_step_succeeds(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that hurries the flush clears no error: where the time is over first, `status` has it."""
    times(monkeypatch, first=NEVER, most=NEVER)
    world.run().batch([("a", 1)])
    outage = Outage("write")
    it = flushing(outage).start()
    until(lambda: it.error() is not None)
    outage.halts.set()
    it.loop.hurry()
    until(lambda: outage.failures >= 2)
    with pytest.raises(errors.FlushTimeout, match="last error: "):
        wait_until_flushed(
            Checkpoint(world.checkpoint), world.store, 0.1, has_tried=lambda _: it.loop.has_tried()
        )
    assert it.error() is not None
    outage.over.set()
    until(lambda: it.is_flushed(0))
    until(lambda: it.error() is None)


def test_a_step_that_is_interrupted_ends_no_error(
    world: World,
    flushing: Flushings,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The block of a job ends just after the first failure, and stops the next try in its middle."""
    times(monkeypatch, first=NEVER, most=NEVER)
    world.run().batch([("a", 1)], [("b", 2)])
    outage = Outage("write")
    it = flushing(outage).start()
    until(lambda: it.error() is not None)
    outage.halts.set()
    it.loop.hurry()
    until(lambda: outage.failures >= 2)
    it.loop.stop()
    outage.over.set()
    assert it.ended()
    assert it.error() is not None
    assert "works again" not in caplog.text
    assert not it.is_flushed(0)


def test_caller_gets_the_error_of_an_idle_loop(world: World, flushing: Flushings) -> None:
    """Without waiting for it, all would be flushed, and the error comes a moment later."""
    world.run().flushed_batches([("a", 1)])
    outage = Outage("read ledger", lambda: errors.TargetRefused("no such table", "Restore it."))
    it = flushing(outage).start()
    it.loop.hurry()
    with pytest.raises(errors.TargetRefused, match="no such table"):
        wait_until_flushed(
            Checkpoint(world.checkpoint),
            world.store,
            SECONDS,
            has_tried=lambda _: it.loop.has_tried(),
        )
    outage.over.set()
    it.loop.hurry()
    checkpoint = Checkpoint(world.checkpoint)
    tried = wait_until_flushed(
        checkpoint, world.store, SECONDS, has_tried=lambda _: it.loop.has_tried()
    )
    assert tried.epoch == 0


def test_waiter_for_one_target_ignores_another_target(world: World, flushing: Flushings) -> None:
    """That may take long, as where the other one does not answer."""
    world.run().flushed_batches([("a", 1)])
    stalls = Outage("list ")
    stalls.halts.set()
    loops = [flushing().start().loop, flushing(stalls, "other").start().loop]
    until(lambda: stalls.failures > 0)
    checkpoint, store = Checkpoint(world.checkpoint), world.store
    names = [loop.target_name for loop in loops]
    flush = QueryFlush(world.query_id, "run", checkpoint, store, names, loops)
    flush.for_each_loop(FlushLoop.hurry)
    waited = wait_until_flushed(checkpoint, store, SECONDS, has_tried=flush.has_tried)
    assert waited.seconds < SECONDS / 2
    assert not flush.has_tried("other")
    stalls.over.set()


# --- how it ends ----------------------------------------------------------------------------------


def test_at_the_end_it_finishes_what_is_checkpointed(world: World, flushing: Flushings) -> None:
    """The query has terminated: its last epoch is flushed, then the thread is gone."""
    run = world.run()
    it = flushing().start()
    until(it.waits)
    for epoch in range(5):
        run.batch([(f"k{epoch}", epoch)])
    it.loop.end()
    assert it.ended()
    assert world.table() == world.expected()
    assert it.is_flushed(4)


def test_at_the_end_it_waits_for_the_target(world: World, flushing: Flushings) -> None:
    """An outage at the end loses nothing: it goes on trying, then ends."""
    world.run().batch([("a", 1)])
    outage = Outage("write")
    it = flushing(outage).start()
    it.loop.end()
    until(lambda: outage.failures >= 3)
    assert it.loop.is_alive()
    outage.over.set()
    assert it.ended()
    assert world.table() == {"a": 1}


def test_a_query_that_never_published_ends_too(world: World, flushing: Flushings) -> None:
    """There is nothing to wait for, and the target is not asked."""
    world.run()
    it = flushing().start()
    it.loop.end()
    assert it.ended()
    assert "connect" not in it.faults.operations


def test_stopped_loop_leaves_pending_epochs(world: World, flushing: Flushings) -> None:
    """After the step under way; another flusher goes on from there."""
    world.run().batches(*([(f"k{epoch}", epoch)] for epoch in range(50)))
    it = flushing().start()
    until(lambda: it.is_flushed(0))
    it.loop.stop()
    assert it.ended()
    assert world.flushed() == world.expected()


@pytest.mark.parametrize("fails", [False, True])
def test_ended_loop_is_reported_while_its_process_runs(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch, *, fails: bool
) -> None:
    """It stops while it rests or fails, without waiting for the next poll or try; an error is still told.

    A command need not wait until the last report is old.
    """
    times(monkeypatch, first=NEVER, most=NEVER)
    world.run().batch([("a", 1)])
    outage = Outage("write")
    it = flushing(outage if fails else None).start()
    until(lambda: it.error() is not None if fails else it.waits())
    with pytest.raises(errors.FlusherAtWork):
        refuse_flusher(world.store, it.name)
    it.loop.stop()
    assert it.ended()
    refuse_flusher(world.store, it.name)
    shown = read_status(Checkpoint(world.checkpoint), world.store)
    assert (shown.doing, shown.flusher_alive) == (ENDED, False)
    error = it.error()
    assert (error and error.kind) == ("TargetUnavailable" if fails else None)
    assert outage.failures <= 2
    assert world.table() == ({} if fails else {"a": 1})


def test_ended_loop_keeps_the_report_of_another_flusher(world: World, flushing: Flushings) -> None:
    """Of another process, or of another handle in this one; nor is it hurried any more."""
    world.run().batch([("a", 1)])
    for flusher in ("elsewhere:1", this_process()):
        it = flushing().start()
        until(it.waits)
        other = FlusherReport(flusher=flusher, doing="writing epoch 1", heartbeat_us=now_us())
        world.store.replace(paths.REPORT.path(it.name), other.to_json())
        it.loop.stop()
        assert it.ended()
        it.loop.hurry()
        assert it.report() == other


def test_two_loops_do_no_harm(world: World, flushing: Flushings) -> None:
    """A query that starts again in the same process overlaps with its own past."""
    run = world.run()
    loops = [flushing().start() for _ in range(2)]
    for epoch in range(20):
        run.batch([("k", epoch), (f"k{epoch}", epoch)])
        for it in loops:
            it.loop.wake()
    for it in loops:
        it.loop.end()
        assert it.ended()
    assert world.table() == world.expected()
    assert [it.error() for it in loops] == [None, None]


def test_loop_that_ends_by_a_bug_logs_it(
    world: World,
    flushing: Flushings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Outside of a step nothing is tried again; nobody else tells what ended the thread of a query."""
    world.run()
    it = flushing()

    def rest() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(it.loop, "_wait", rest)
    it.start()
    assert it.ended()
    (record,) = [each for each in caplog.records if "Report this as a bug" in each.message]
    assert record.exc_info


# --- long outages ---------------------------------------------------------------------------------


def test_pauses_are_random_and_bounded(
    flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that fail together do not come back in step, and none waits longer than ten seconds."""
    monkeypatch.undo()
    tries = flushing().loop._tries
    state = tenacity.RetryCallState(tries, None, (), {})

    def waits(attempt: int) -> list[float]:
        state.attempt_number = attempt
        return [tries.wait(state) for _ in range(50)]

    assert 0 <= min(waits(1)) < max(waits(1)) <= 0.5
    late = waits(10_000)
    assert max(late) <= 10
    assert len(set(late)) == 50


def test_a_backlog_drains_while_new_epochs_come(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query goes on through the outage and after it: windows are bounded, and all is flushed in order."""
    monkeypatch.setattr("wal_sink.flush.flusher.WINDOW_EPOCHS", 8)
    run = world.run()
    outage = Outage("connect")
    it = flushing(outage).start()
    for epoch in range(40):
        run.batch([("k", epoch), (f"k{epoch}", epoch)])
    it.loop.wake()
    until(lambda: outage.failures >= 3)
    outage.over.set()
    while not it.is_flushed(30):
        run.batch([("k", run.next), (f"k{run.next}", run.next)])
        it.loop.wake()
    last = run.next - 1
    assert last > 40, "some came while it drained"
    it.loop.wake()
    until(lambda: it.is_flushed(last))
    assert world.table() == world.expected()
    ends = [int(name.split()[1]) for name in outage.operations if name.startswith("finish")]
    assert ends == sorted(ends)
    assert max(end - before for before, end in pairwise([-1, *ends])) <= 8


def test_each_step_counts_its_own_tries(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under an overloaded target every window may fail once: a drain would end with the longest pauses."""
    monkeypatch.setattr("wal_sink.flush.flusher.WINDOW_EPOCHS", 1)
    world.run().batches(*([("k", epoch)] for epoch in range(6)))

    class Shaky(Outage):
        @contextmanager
        def around(self, name: str) -> Iterator[None]:
            self.operations.append(name)
            if name.startswith("write") and self.operations.count(name) == 1:
                self.failures += 1
                raise ConnectionError
            yield

    it = flushing(Shaky("write"))
    counts: list[int] = []
    failed = it.loop._reporter.failed

    def note(error: BaseException, **about: Any) -> None:
        counts.append(about["tried"])
        failed(error, **about)

    monkeypatch.setattr(it.loop._reporter, "failed", note)
    it.start()
    until(lambda: it.is_flushed(5))
    assert counts == [1] * 6


def test_waiting_loop_reports_its_next_try(
    world: World, flushing: Flushings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who looks meanwhile reads what it waits for, how often it has tried, and when the next try is."""
    times(monkeypatch, first=NEVER, most=NEVER)
    world.run().batch([("a", 1)])
    it = flushing(Outage("write 0")).start()
    until(lambda: it.error() is not None)
    report = it.report()
    assert report is not None
    assert re.fullmatch(r"trying again at epoch 0: 1 try, the next in \d+ s", report.doing)


class Ticks:
    """A clock that is set."""

    s = 0.0

    def __call__(self) -> float:
        return self.s


def test_a_long_outage_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Each kind of error at once, then one line a minute, and one when it is over."""
    clock = Ticks()
    failures = FailureLog(clock)
    away, refused = errors.TargetUnavailable("no route"), errors.TargetRefused("no table")
    for tried in range(1, 1_001):
        failures.met(away, tried=tried)
        clock.s += 1
    assert len(caplog.records) == 17
    assert "960 tries" not in caplog.text
    assert "961 tries in 960 s" in caplog.text
    failures.met(refused, tried=1_001)
    failures.met(ZeroDivisionError("a bug"), tried=1_002)
    assert [bool(record.exc_info) for record in caplog.records[17:]] == [False, True]
    failures.over()
    failures.over()
    assert [record.getMessage() for record in caplog.records[19:]] == [
        "the flush works again, after 1000 s of failures"
    ]
