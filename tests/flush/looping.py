"""A flush loop over a played query, with outages that a test begins and ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.protocol.engine import World, in_memory
from tests.support.waiting import until
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.reporter import Reporter
from wal_sink.model import paths
from wal_sink.progress.flusher_report import ErrorReport, FlusherReport, read_report
from wal_sink.testing.faults import Faults, FaultyBackend, FaultyTarget
from wal_sink.wal.store import newest

SECONDS = 10.0
"""A test that waits for longer fails."""

NEVER = 3_600.0
LIST = f"list {paths.STATE.folder}"


class Outage(Faults):
    """Every operation whose name contains `matching` fails without effect until the outage is over.

    While the outage `halts`, such an operation waits for the end of the outage instead.
    """

    def __init__(self, matching: str, error: Callable[[], BaseException] = ConnectionError) -> None:
        super().__init__()
        self._where = matching
        self._what = error
        self.failures = 0
        self.halts, self.over = threading.Event(), threading.Event()

    @contextmanager
    def around(self, name: str) -> Iterator[None]:
        self.operations.append(name)
        if self._where in name and not self.over.is_set():
            self.failures += 1
            if not self.halts.is_set():
                raise self._what()
            assert self.over.wait(2 * SECONDS)
        yield


class PlayedLoop:
    """A flush loop over a query, as `register` makes it."""

    def __init__(self, world: World, faults: Faults, target: str = "") -> None:
        self.world = world
        self.faults = faults
        (name,) = world.targets
        self.name = target or name
        pipeline = Pipeline(
            world.query_id,
            FaultyBackend(world.log_backend, faults),
            Checkpoint(world.checkpoint),
            FaultyTarget(world.target, faults),
            target_name=self.name,
            several=False,
            retention=world.retention,
        )
        reporter = Reporter(world.log_backend, self.name)
        self.loop = FlushLoop(Flusher(pipeline, reporter, clock_us=world.clock))

    def start(self) -> PlayedLoop:
        self.loop.start()
        return self

    def is_flushed(self, epoch: int) -> bool:
        state = newest(self.world.log_backend)
        target = state.target(self.name) if state is not None else None
        return target is not None and target.mark.epoch >= epoch

    def error(self) -> ErrorReport | None:
        report = self.report()
        return report.error if report else None

    def report(self) -> FlusherReport | None:
        return read_report(self.world.log_backend, self.name)

    def waits(self) -> bool:
        """Return True if the loop has nothing to flush."""
        report = self.report()
        return report is not None and report.doing.startswith(("no run", "nothing", "waiting"))

    def ended(self) -> bool:
        self.loop.join(SECONDS)
        return not self.loop.is_alive()


@pytest.fixture
def world() -> World:
    """A new query."""
    return World(*in_memory())


@pytest.fixture
def make_loop(world: World, make_loop_over: Callable[..., PlayedLoop]) -> Callable[..., PlayedLoop]:
    """Make loops over `world`."""
    return lambda faults=None, target="": make_loop_over(world, faults, target)


@pytest.fixture
def make_loop_over() -> Iterator[Callable[..., PlayedLoop]]:
    """Make loops over any query. They are stopped after the test, and no thread stays."""
    made: list[PlayedLoop] = []

    def make(world: World, faults: Faults | None = None, target: str = "") -> PlayedLoop:
        made.append(PlayedLoop(world, faults or Faults(), target))
        return made[-1]

    yield make
    for item in made:
        if item.loop.ident is not None:
            item.loop.stop()
            assert item.ended()
    until(lambda: not any(t.name.startswith("wal_sink-") for t in threading.enumerate()))


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the loop never poll, so that it acts only when it is woken or tries again."""
    monkeypatch.setattr("wal_sink.flush.loop.POLL_S", NEVER)
    times(monkeypatch, first=0.002, most=0.01)


def times(monkeypatch: pytest.MonkeyPatch, first: float, most: float) -> None:
    """Set the pauses of the loop between tries."""
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_FIRST_S", first)
    monkeypatch.setattr("wal_sink.flush.loop._RETRY_MOST_S", most)


MakeLoop = Callable[..., PlayedLoop]
