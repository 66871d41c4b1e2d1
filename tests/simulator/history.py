"""A history: random steps, then an end without faults, after which every target must have every epoch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from tests.simulator.actions import Actions
from tests.simulator.driver import Driver, FlusherThread
from tests.simulator.machine import MACHINE
from tests.simulator.process import Fault, Process
from tests.simulator.trace import Trace
from tests.simulator.world import Swarm, World
from wal_sink.progress.status import Status, read_status
from wal_sink.protocol.retention import Retention

_ROUNDS = 60
"""The maximum number of rounds in which the end must complete."""


class Outcome(NamedTuple):
    """The result of a history."""

    seed: int
    violations: tuple[str, ...]
    counts: Counter[str]


class Step(NamedTuple):
    """A possible step."""

    fault: str | None
    """The fault that the history must have drawn for this step; None for a step of every history."""
    weight: int
    act: Callable[[], None]


class History:
    """A history."""

    def __init__(self, seed: int, trace: Trace) -> None:
        MACHINE.reset(seed)
        self.chance = random.Random(seed)
        swarm = Swarm.drawn(self.chance)
        self.world = World(swarm, self.chance, trace)
        self.actions = Actions(self.world)
        self.io_fault = self.chance.choice((0.05, 0.2, 0.4))
        self.steps = self.chance.choice((15, 30, 45, 70))
        trace.say(f"=== {sorted(swarm)}, retention {self.world.retention}")
        actions = self.actions
        steps = (
            Step(None, 30, self.drive),
            Step(None, 30, self.flush),
            Step(None, 3, self.stop),
            Step(None, 4, lambda: self.world.time_passes(self.chance.choice((1, 30, 300)))),
            Step("poison rows", 3, lambda: self.drive(poison=True)),
            Step("two drivers", 4, self.second_driver),
            Step("other flushers", 4, self.other_flusher),
            Step("outages", 4, actions.outage),
            Step("full disks", 3, actions.fill_disk),
            Step("clock jumps", 3, actions.clock_jump),
            Step("power losses", 3, actions.lose_power),
            Step("restored targets", 2, actions.restore_target),
            Step("restored queries", 4, actions.save),
            Step("restored queries", 2, lambda: actions.restore_query(targets=True)),
            Step("restored logs", 3, actions.save),
            Step("restored logs", 1, lambda: actions.restore_query(targets=False)),
            Step("checkpoints set back", 3, actions.set_back),
            Step("moves", 1, actions.move),
            Step("given-up epochs", 2, actions.give_up_next),
            Step("several targets", 1, actions.give_up_target),
            Step("changed targets", 2, actions.change_targets),
        )
        self.table = [step for step in steps if step.fault is None or step.fault in swarm]

    def play(self) -> None:
        """Play the steps and the end."""
        for _ in range(self.steps):
            if self.world.checker.violations:
                return
            step = self.chance.choices(self.table, [step.weight for step in self.table])[0]
            step.act()
        self.end()

    # --- steps ---

    def drive(self, *, poison: bool = False) -> None:
        """Let a driver run a batch, or continue a stalled batch."""
        driver = self.driver()
        self._arm(driver.process)
        if driver.main.stalled:
            driver.main.resume()
        elif driver.process.alive:
            driver.batch(self.chance.randrange(4), poison=poison)
        driver.process.disarm()
        self._follow_remedy(driver.error)
        driver.error = ""

    def flush(self) -> None:
        """Let a flusher run, or continue."""
        self.driver()
        flushers = self.actions.all_flushers()
        flusher = self.chance.choice(flushers)
        self._arm(flusher.process)
        flusher.act(self.chance.choice((1, 1, 2, 5)))
        flusher.process.disarm()
        self._follow_remedy(flusher.error, flusher.name)
        flusher.error = ""

    def driver(self) -> Driver:
        """Return a running driver; start one if there is none."""
        world = self.world
        for driver in world.drivers:
            if not driver.process.alive and "two drivers" not in world.swarm:
                driver.process.kill()
        world.drivers = [driver for driver in world.drivers if _is_alive(driver)]
        if not world.drivers:
            world.drivers.append(Driver(world))
            world.happened("driver")
        return self.chance.choice(world.drivers)

    def second_driver(self) -> None:
        """Start a driver while another one runs."""
        if len(self.world.drivers) < 2:
            self.world.drivers.append(Driver(self.world))
            self.world.happened("second driver")

    def other_flusher(self) -> None:
        """Start `wal-sink flush` in its own process."""
        world = self.world
        process, name = world.process("flush"), self.chance.choice([*world.databases])
        world.flushers = [
            flusher for flusher in world.flushers if flusher.process.alive or flusher.thread.stalled
        ]
        world.flushers.append(FlusherThread(world, process, name))
        world.happened("flusher")

    def stop(self) -> None:
        """Stop a query between two batches, or kill its driver."""
        driver = self.driver()
        if self.chance.random() < 0.5:
            driver.process.kill()
        elif not driver.main.stalled:
            driver.run = None

    def _arm(self, process: Process) -> None:
        if self.chance.random() >= self.io_fault:
            return
        fault = self.chance.choice(self.world.swarm.io_faults)
        if fault is Fault.LATE and "two drivers" not in self.world.swarm:
            drivers = [driver.process for driver in self.world.drivers]
            if process in drivers:
                fault = (
                    Fault.CRASH_BEFORE
                )  # a late call of a dead driver would be the call of a second driver
        changes_only = self.chance.random() < 0.6
        most = 12 if changes_only else 40
        process.arm(fault, self.chance.randrange(1, most), changes_only=changes_only)

    def _follow_remedy(self, error: str, name: str = "") -> None:
        """Follow the remedy of an error, now or in a later step."""
        if error == "OptionError":
            self.actions.former_targets()
            for driver in self.world.drivers:
                driver.process.kill()
        elif error and self.chance.random() < 0.3:
            self.actions.remedy(error, name)

    # --- the end ---

    def end(self) -> None:
        """Complete one more epoch without faults; then check that every target has every epoch."""
        world, checker = self.world, self.world.checker
        world.happened("the end")
        self._end_faults()
        world.names = world.names if checker.truth.state is None else self._names()
        goal = max(checker.truth.kept, default=-1) + 1
        for number in range(_ROUNDS):
            if checker.violations:
                return
            driver = self.driver()
            if driver.main.stalled:
                driver.main.resume()
            elif max(checker.truth.kept, default=-1) < goal:
                driver.batch(3)
            if driver.error and number > 5:
                self.actions.remedy(driver.error)
            for flusher in driver.flushers.values():
                flusher.act(100)
                if "Diverged" in {flusher.error, driver.error} & world.documented:
                    return  # an operator decides which history is right
                if flusher.error:
                    self.actions.remedy(flusher.error, flusher.name)
            world.time_passes(1)
            idle = all(flusher.idle for flusher in driver.flushers.values())
            if idle and max(checker.truth.kept, default=-1) >= goal and not driver.main.stalled:
                break
        else:
            errors = [flusher.error for flusher in driver.flushers.values()]
            checker.violate(f"the query never arrives: {driver.error} {errors}")
            return
        checker.complete(world.databases, world.query_id)
        self._status(driver)
        self._nothing_is_left()

    def _end_faults(self) -> None:
        """End all faults; continue or kill what has stalled."""
        world = self.world
        for database in world.databases.values():
            database.away = False
        for volume in (world.site.log, world.site.checkpoint):
            volume.away = volume.full = False
        for host in world.hosts:
            host.ahead_us = 0
        if self.chance.random() < 0.5:
            for flusher in self.actions.all_flushers():
                if flusher.process.alive:
                    flusher.thread.finish()
        world.kill_all()
        world.time_passes(2 * 86_400)

    def _names(self) -> tuple[str, ...]:
        state = self.world.checker.truth.state
        assert state is not None
        return tuple(target.name for target in state.targets)

    def _status(self, driver: Driver) -> None:
        """Check that `status` reports that everything is flushed."""
        answers: list[Status] = []
        checkpoint = self.world.site.open_checkpoint(driver.process)
        driver.main.start(lambda: answers.append(read_status(checkpoint, driver.log)))
        (status,) = answers
        newest, state = max(self.world.checker.truth.kept), self.world.checker.truth.state
        flushed = newest if state is not None and state.live else status.flushed
        if (status.pending_epochs, status.flushed, status.last_error) != (0, flushed, None):
            self.world.checker.violate(f"status says {status!r}")

    def _nothing_is_left(self) -> None:
        """Check that the log has no object of a flushed epoch after `wal.retention`."""
        world, state = self.world, self.world.checker.truth.state
        world.time_passes(world.retention.us / 1_000_000 + 1)
        world.retention = Retention(us=0, bytes=0)
        world.kill_all()
        for flusher in self.driver().flushers.values():
            flusher.act(100)
        assert state is not None
        kept = {given_up.epoch for given_up in state.given_up}
        remaining = [
            path
            for path in world.site.log.paths()
            if not path.startswith(("state/", "plans/", "refused/", "report-"))
            and not any(f"/{epoch:020}" in path for epoch in kept)
        ]
        if remaining:
            world.checker.violate(f"the log still has {remaining[:3]}")


def _is_alive(driver: Driver) -> bool:
    threads = [driver.main, *(flusher.thread for flusher in driver.flushers.values())]
    return driver.process.alive or any(thread.stalled for thread in threads)


def play(seed: int, trace: Trace | None = None) -> Outcome:
    """Play the history of a seed."""
    history = History(seed, trace or Trace())
    try:
        history.play()
    finally:
        history.world.kill_all()
    world = history.world
    return Outcome(seed, tuple(world.checker.violations), world.counts)
