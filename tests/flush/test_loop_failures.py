"""The thread that runs a flusher, while log or target fail: tries, errors, and reports."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tenacity

from tests.flush.looping import LIST, NEVER, SECONDS, MakeLoop, Outage, PlayedLoop, times
from tests.protocol.engine import World, flush
from tests.support.waiting import until
from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.reporter import Reporter
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.spark.query_flush import QueryFlush

pytestmark = pytest.mark.usefixtures("patient")


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["connect", "read ledger", "create ledger", "write"])
@pytest.mark.parametrize("failures", [1, 4])
def test_loop_after_a_failure_skips_no_epoch(
    world: World, make_loop: MakeLoop, operation: str, failures: int
) -> None:
    world.run().batches(*([("k", epoch), (f"k{epoch}", epoch)] for epoch in range(3)))
    outage = Outage(operation)
    played = make_loop(outage).start()
    until(lambda: outage.failures >= failures)
    assert world.table() == {}
    assert not played.is_flushed(0)
    outage.over.set()
    until(lambda: played.is_flushed(2))
    assert world.table() == world.expected()
    connects = outage.operations.count("connect")
    assert connects > failures, "table, nodes or password may have changed since"
    done = [name for name in outage.operations if name.startswith("write")]
    assert [int(name.split()[1]) for name in done] == sorted(int(n.split()[1]) for n in done)


@pytest.mark.parametrize(
    ("operation", "error", "kind", "transient"),
    [
        ("write 0", lambda: ConnectionError("no route"), "TargetUnavailable", True),
        ("write 0", lambda: RuntimeError("no such table"), "TargetRefused", False),
        ("write 0", lambda: errors.SchemaMismatch("a bug", "Change it."), "SchemaMismatch", False),
        # a bug is reported under its own name, and tried again, too
        (LIST, lambda: ZeroDivisionError("a bug"), "ZeroDivisionError", False),
    ],
)
def test_error_of_a_failing_loop_is_in_its_report(
    world: World,
    make_loop: MakeLoop,
    operation: str,
    error: Callable[[], Exception],
    kind: str,
    *,
    transient: bool,
) -> None:
    """The report has the epoch of the error, and no error after a pass has succeeded."""
    world.run().batch([("a", 1)])
    outage = Outage(operation, error)
    played = make_loop(outage).start()
    until(lambda: outage.failures >= 2)
    until(lambda: played.error() is not None)
    error_report = played.error()
    assert error_report is not None
    assert (error_report.kind, error_report.transient) == (kind, transient)
    assert str(error()).splitlines()[0] in error_report.what
    if operation != LIST:
        assert error_report.epoch == 0
        assert error_report.remedy
    if not transient:
        with pytest.raises(getattr(errors, kind, errors.WalSinkError)):
            wait_until_flushed(Checkpoint(world.checkpoint), world.log_backend, SECONDS)
    outage.over.set()
    until(lambda: played.is_flushed(0))
    until(lambda: played.error() is None)


@pytest.fixture
def failed_write(
    world: World, make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> tuple[PlayedLoop, Outage]:
    """Return a loop that pauses after its first write has failed, until a caller hurries it."""
    times(monkeypatch, first=NEVER, most=NEVER)
    world.run().batch([("a", 1)], [("b", 2)])
    outage = Outage("write")
    played = make_loop(outage).start()
    until(lambda: played.error() is not None)
    return played, outage


def halt_in_the_next_try(played: PlayedLoop, outage: Outage) -> None:
    """Hurry the loop, and let its next write wait for the end of the outage."""
    outage.halts.set()
    played.loop.hurry()
    until(lambda: outage.failures >= 2)


def test_reported_error_stays_until_the_failed_step_succeeds(
    world: World, failed_write: tuple[PlayedLoop, Outage]
) -> None:
    """A caller that hurries the flush does not clear the error."""
    played, outage = failed_write
    halt_in_the_next_try(played, outage)
    with pytest.raises(errors.FlushTimeout, match="last error: "):
        wait_until_flushed(
            Checkpoint(world.checkpoint),
            world.log_backend,
            0.1,
            has_tried=lambda _: played.loop.has_tried(),
        )
    assert played.error() is not None
    outage.over.set()
    until(lambda: played.is_flushed(0))
    until(lambda: played.error() is None)


def test_interrupted_step_does_not_clear_the_error(
    failed_write: tuple[PlayedLoop, Outage], caplog: pytest.LogCaptureFixture
) -> None:
    """The loop is stopped after the first failure, in the middle of the next try."""
    played, outage = failed_write
    halt_in_the_next_try(played, outage)
    played.loop.stop()
    outage.over.set()
    assert played.ended()
    assert played.error() is not None
    assert "works again" not in caplog.text
    assert not played.is_flushed(0)


def test_waiter_gets_the_error_of_an_idle_loop(world: World, make_loop: MakeLoop) -> None:
    """Nothing is pending. The waiter asks for one more pass, which fails."""
    world.run().flushed_batches([("a", 1)])
    outage = Outage("read ledger", lambda: errors.TargetRefused("no such table", "Restore it."))
    played = make_loop(outage).start()
    played.loop.hurry()
    with pytest.raises(errors.TargetRefused, match="no such table"):
        wait_until_flushed(
            Checkpoint(world.checkpoint),
            world.log_backend,
            SECONDS,
            has_tried=lambda _: played.loop.has_tried(),
        )
    outage.over.set()
    played.loop.hurry()
    checkpoint = Checkpoint(world.checkpoint)
    tried = wait_until_flushed(
        checkpoint, world.log_backend, SECONDS, has_tried=lambda _: played.loop.has_tried()
    )
    assert tried.epoch == 0


def test_waiter_for_one_target_ignores_another_target(world: World, make_loop: MakeLoop) -> None:
    """Given another target that does not answer."""
    world.run().flushed_batches([("a", 1)])
    stalls = Outage("list ")
    stalls.halts.set()
    loops = [make_loop().start().loop, make_loop(stalls, "other").start().loop]
    until(lambda: stalls.failures > 0)
    checkpoint, store = Checkpoint(world.checkpoint), world.log_backend
    query = QueryFlush(world.query_id, "run", lambda: (checkpoint, store), loops)
    query.hurry()
    waited = wait_until_flushed(checkpoint, store, SECONDS, has_tried=query.has_tried)
    assert waited.seconds < SECONDS / 2
    assert not query.has_tried("other")
    stalls.over.set()


def test_query_flushed_elsewhere_is_done_if_nothing_is_pending(world: World) -> None:
    """Otherwise a driver with `flush=False` would keep each query that it has started."""
    world.run().batch([("a", 1)])
    place = Checkpoint(world.checkpoint), world.log_backend
    others = QueryFlush(world.query_id, "run", lambda: place)
    others.run_has_ended = True
    assert not others.is_done()
    flush(world.flusher())
    assert others.is_done()
    others.run_has_ended = False
    assert not others.is_done()


def test_loop_that_ends_by_a_bug_logs_it(
    world: World,
    make_loop: MakeLoop,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Given an error outside of a pass, which is not tried again."""
    world.run()
    played = make_loop()

    def rest() -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(played.loop, "_wait", rest)
    played.start()
    assert played.ended()
    (record,) = [record for record in caplog.records if "Report this as a bug" in record.message]
    assert record.exc_info


# --- long outages ---------------------------------------------------------------------------------


def test_retry_pauses_of_a_loop_are_random_and_bounded(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries that fail together do not try again at the same time."""
    monkeypatch.undo()
    tries = make_loop().loop._tries
    state = tenacity.RetryCallState(tries, None, (), {})

    def waits(attempt: int) -> list[float]:
        state.attempt_number = attempt
        return [tries.wait(state) for _ in range(50)]

    assert 0 <= min(waits(1)) < max(waits(1)) <= 0.5
    late = waits(10_000)
    assert max(late) <= 10
    assert len(set(late)) == 50


class Ticks:
    """A clock that a test sets."""

    s = 0.0

    def __call__(self) -> float:
        return self.s


def test_long_outage_logs_one_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each error class is logged at once, then once a minute, and the end of the outage once."""
    clock = Ticks()
    monkeypatch.setattr("wal_sink.flush.reporter.time.monotonic", clock)
    reporter = Reporter(None, "memory")
    away, refused = errors.TargetUnavailable("no route"), errors.TargetRefused("no table")
    for tried in range(1, 1_001):
        reporter.failed(away, tried=tried, wait_s=1)
        clock.s += 1
    assert len(caplog.records) == 17
    assert "960 tries" not in caplog.text
    assert "961 tries in 960 s" in caplog.text
    reporter.failed(refused, tried=1_001, wait_s=1)
    reporter.failed(ZeroDivisionError("a bug"), tried=1_002, wait_s=1)
    assert [bool(record.exc_info) for record in caplog.records[17:]] == [False, True]
    reporter.succeeded()
    reporter.succeeded()
    assert [record.getMessage() for record in caplog.records[19:]] == [
        "the flush works again, after 1000 s of failures"
    ]
