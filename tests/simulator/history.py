"""One history: a query's life of a few dozen steps, with the faults that it has drawn, and its end."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.simulator.disasters import Disasters
from tests.simulator.driver import Driver
from tests.simulator.ending import end
from tests.simulator.flushing import Flushing
from tests.simulator.machine import MACHINE
from tests.simulator.operators import Operator
from tests.simulator.process import Process, Thread
from tests.simulator.site import Site
from tests.simulator.swarm import FAULTS, Swarm
from tests.simulator.trace import Trace
from tests.simulator.world import World
from wal_sink.model import paths
from wal_sink.protocol import windows
from wal_sink.wal import trim

_MOST_DRIVERS = 4
_DAY_S = 86_400
_CALLS_OF_A_REWIND = 150


class Outcome(NamedTuple):
    """What came of a history."""

    seed: int
    violations: tuple[str, ...]
    counts: Counter[str]
    """How often each thing happened."""
    faults: frozenset[str]
    """What it had drawn."""


def play(seed: int, trace: Trace | None = None, among: tuple[str, ...] = FAULTS) -> Outcome:
    """Play one history from its seed, to its end or to its first violation."""
    trace = trace or Trace()
    MACHINE.reset(seed)
    chance = random.Random(f"{seed} steps")
    swarm = Swarm.drawn(chance, among)
    world = World(swarm, chance, trace)
    trace.say(f"seed {seed}: {', '.join(sorted(swarm.faults))}")
    with _heard(world), _limits(world):
        history = History(world)
        history.run()
    return Outcome(seed, tuple(world.judge.violations), world.counts, swarm.faults)


@contextlib.contextmanager
def _heard(world: World) -> Iterator[None]:
    """Let the judge hear what the product logs."""
    logger = logging.getLogger("wal_sink")
    logger.addHandler(world.judge)
    try:
        yield
    finally:
        logger.removeHandler(world.judge)


@contextlib.contextmanager
def _limits(world: World) -> Iterator[None]:
    """Let some histories have few records and small windows: then a thousand epochs are soon over."""
    records, epochs = trim.RECORDS_KEPT, windows.MOST_EPOCHS
    if "few records" in world.swarm:
        trim.RECORDS_KEPT = world.chance.choice((2, 4))
    if "small windows" in world.swarm:
        windows.MOST_EPOCHS = world.chance.choice((1, 2, 3))
    try:
        yield
    finally:
        trim.RECORDS_KEPT, windows.MOST_EPOCHS = records, epochs


class History:
    """Plays one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.drivers: list[Driver] = []
        self.flushers: list[Flushing] = []
        """Those in processes of their own."""
        self.operators: list[Operator] = []
        if "trim delay" in world.swarm:
            world.retention_s = world.chance.choice((60.0, 3_600.0))
        if "stale listings" in world.swarm:
            world.site.log.caching = world.site.checkpoint.caching = True
        if "clock jumps" in world.swarm:
            world.database.one_node_ahead = world.chance.random() < 0.5
        if "purges" in world.swarm:
            world.batches_retained = world.chance.choice((1, 2, 4))
        if "budget" in world.swarm:
            world.max_bytes = world.chance.choice((500, 2_000))
        self._acts, self._weights = self._possible()

    def run(self) -> None:
        """Play the steps, then the end; stop at the first violation."""
        chance, judge = self.world.chance, self.world.judge
        self.new_driver(self.world.site)
        for act in chance.choices(self._acts, self._weights, k=self.world.swarm.steps):
            act()
            if judge.violations:
                break
        else:
            end(self)
        for process in list(MACHINE.processes.values()):
            process.kill()

    def _possible(self) -> tuple[list[Callable[[], None]], list[int]]:
        swarm = self.world.swarm
        acts: list[tuple[str | None, Callable[[], None], int]] = [
            (None, self._batch, 40),
            (None, self._flush, 40),
            (None, self._wake, 20),
            (None, self._time, 6),
            (None, self._restart, 4),
            ("restarts", self._restart, 12),
            ("poison rows", self._poison, 8),
            ("stopped queries", self._tell_to_stop, 10),
            ("standing drivers", self._stand_by, 10),
            ("crashes", self._kill, 6),
            ("other flushers", self._other_flusher, 6),
            ("outages", self._outage, 5),
            ("full disks", self._full_disk, 4),
            ("clock jumps", self._clock, 6),
            ("repartitions", self._repartition, 6),
            ("operators", self._operate, 12),
            ("operators", self._rewind, 4),
            *Disasters(self).acts(),
        ]
        mine = [(act, weight) for fault, act, weight in acts if fault is None or fault in swarm]
        return [act for act, _ in mine], [weight for _, weight in mine]

    # --- turns ------------------------------------------------------------------------------------

    def turn(self, process: Process, act: Callable[[], None], calls: int = 30) -> None:
        """Let a process act; a fault may be armed, at one of its first calls."""
        world = self.world
        faults = world.swarm.io_faults
        if world.chance.random() < world.swarm.io_fault:
            process.arm(world.chance.choice(faults), world.chance.randint(1, calls))
        act()
        process.disarm()
        if not process.alive:
            self._bury(process)

    def _bury(self, process: Process) -> None:
        """Forget a process that died; a call of it may still be on its way."""
        for thread in process.threads:
            if thread.stands_still and not thread.late:
                thread.finish()
        self.drivers = [driver for driver in self.drivers if driver.process is not process]
        self.flushers = [each for each in self.flushers if each.process is not process]

    def standing(self) -> list[Thread]:
        """Return the threads that stand still, those of dead processes with a call on its way included."""
        return [
            thread
            for process in MACHINE.processes.values()
            for thread in process.threads
            if thread.stands_still
        ]

    # --- Spark ------------------------------------------------------------------------------------

    def new_driver(self, site: Site) -> Driver:
        """Start an application; the oldest ones end when there are many."""
        driver = Driver(self.world, site)
        self.drivers.append(driver)
        if len(self.drivers) > _MOST_DRIVERS:
            self._end_process(self.world.chance.choice(self.drivers[:-1]).process)
        return driver

    def _driver(self) -> Driver:
        """Return a driver that may act: mostly the newest one."""
        free = [driver for driver in self.drivers if not driver.main.stands_still]
        if not free:
            return self.new_driver(self.world.chance.choice(self.world.judge.sites))
        return free[-1] if self.world.chance.random() < 0.8 else self.world.chance.choice(free)

    def _batch(self) -> None:
        driver, chance = self._driver(), self.world.chance
        heard = "lost events" not in self.world.swarm or chance.random() < 0.6
        count = chance.choice((0, 1, 2, 3, 3))
        if self.world.trace.on:
            self.world.trace.say(f"=== {driver.process.name}: a batch of {count} rows")
        self.turn(driver.process, lambda: driver.batch(count, heard=heard))

    def _poison(self) -> None:
        driver = self._driver()
        self.world.happened("poison row", driver.process.name)
        self.turn(driver.process, driver.poison)

    def _tell_to_stop(self) -> None:
        """Tell a query to stop whose batch is under way: it goes on for seconds, or for longer."""
        if busy := [driver for driver in self.drivers if driver.main.stands_still]:
            driver = self.world.chance.choice(busy)
            self.world.happened("told to stop", driver.process.name)
            driver.told_to_stop()

    def _restart(self) -> None:
        """Stop the query and start it again, in the same process or in another one."""
        driver = self._driver()
        self.world.happened("restart", driver.process.name)
        driver.stop()
        if self.world.chance.random() < 0.5:
            self._end_process(driver.process)
            self.new_driver(driver.site)

    def _stand_by(self) -> None:
        """Start a new driver while the old one merely stands still."""
        self.world.happened("driver beside others")
        self.new_driver(self._driver().site)

    def _kill(self) -> None:
        processes = [driver.process for driver in self.drivers]
        processes += [flusher.process for flusher in self.flushers]
        if processes:
            process = self.world.chance.choice(processes)
            self.world.happened("kill", process.name)
            self._end_process(process)

    def _end_process(self, process: Process) -> None:
        process.kill()
        self._bury(process)

    def _wake(self) -> None:
        """Let a thread go on that stands still."""
        if threads := self.standing():
            thread = self.world.chance.choice(threads)
            self.world.happened("wake", f"{thread.process.name} {thread.name}")
            self.turn(thread.process, thread.go_on)

    # --- the flush --------------------------------------------------------------------------------

    def _flush(self) -> None:
        flushers = [driver.flushing for driver in self.drivers] + self.flushers
        free = [each for each in flushers if not each.thread.stands_still and each.has_query]
        if free:
            flusher = self.world.chance.choice(free[-3:])
            if self.world.trace.on:
                self.world.trace.say(f"=== {flusher.process.name}: flush")
            self.turn(flusher.process, flusher.flush)

    def _other_flusher(self) -> None:
        """Begin `wal-sink flush`, in a process that sees no runs."""
        process = self.world.process("flusher")
        self.world.happened("flusher of its own", process.name)
        self.flushers.append(Flushing(self.world, self.world.site, process))

    # --- stores, target and clocks ------------------------------------------------------------------

    def _time(self) -> None:
        self.world.time_passes(self.world.chance.choice((1, 30, 130, 4_000)))

    def _outage(self) -> None:
        """The target, or the log's store, goes away, or comes back."""
        place = self.world.chance.choice((self.world.database, self.world.site.log))
        place.away = not place.away
        self.world.happened("outage" if place.away else "outage over")

    def _full_disk(self) -> None:
        log = self.world.site.log
        log.full = not log.full
        self.world.happened("full disk" if log.full else "room on the disk")

    def _clock(self) -> None:
        host = self.world.chance.choice(self.world.hosts)
        host.ahead_us = 1_000_000 * self.world.chance.choice((0, -5, 5, -_DAY_S, _DAY_S))
        self.world.happened("clock jump", f"{host.name} {host.ahead_us // 1_000_000} s")

    def _repartition(self) -> None:
        """Run Spark's offline state repartition: no query runs, no flusher either."""
        site = self.world.site
        commits, offsets = site.checkpoint.numbers("commits"), site.checkpoint.numbers("offsets")
        if not commits or commits[-1] not in offsets:
            return
        last, batch = commits[-1], max(*commits, *offsets) + 1
        if batch > last + 2 or last < site.settled():
            return  # it was set back: what the tool does with several plans, or behind the mark, is not known
        if any(
            name.startswith(f"{paths.MANIFEST.folder}{batch:020}-")
            for name in site.log.paths(paths.MANIFEST.folder)
        ):
            return  # the checkpoint was set back behind it: once offsets/ is purged, the flush stops there
        self.stop_all()
        self.world.happened("repartition", f"after {commits[-1]}")
        for passed_over in range(last + 1, batch):
            site.checkpoint.put(f"commits/{passed_over}", b'v1\n{"nextBatchWatermarkMs":0}')
        version, line, *sources = site.checkpoint.get(f"offsets/{last}").decode().split("\n")
        metadata = json.loads(line)
        partitions = int(metadata["conf"]["spark.sql.shuffle.partitions"])
        metadata["conf"]["spark.sql.shuffle.partitions"] = str(partitions + 1)
        text = "\n".join([version, json.dumps(metadata), *sources])
        site.checkpoint.put(f"offsets/{batch}", text.encode())
        site.checkpoint.put(f"commits/{batch}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.new_driver(site)

    def stop_all(self) -> None:
        """Stop everything, as an operator does before touching files."""
        for process in MACHINE.processes.values():
            process.sever()
        for host in self.world.hosts:
            host.listings.clear()
        self.drivers, self.flushers, self.operators = [], [], []

    # --- operators --------------------------------------------------------------------------------

    def _operate(self) -> None:
        """Give some command at some time; most of them are refused."""
        chance, site = self.world.chance, self.world.site
        mark = self.world.database.ledger.get(self.world.query_id)
        operator = Operator(self.world, site)
        self.operators.append(operator)
        upto = max(site.kept, default=0)
        act = chance.choice(
            (
                operator.status,
                operator.verify,
                lambda: operator.rewind(chance.randint(-1, upto)),
                lambda: operator.skip(
                    (mark.flushed if mark else -1) + 1, begun=chance.random() < 0.5, copied=True
                ),
            )
        )
        self.turn(operator.process, act)

    def _rewind(self) -> None:
        """Stop all that does not stand still, as an operator should, and have flushed again what is there."""
        chance, site = self.world.chance, self.world.site
        for process in {thread.process for thread in self._moving()}:
            self._end_process(process)
        if recorded := site.recorded():
            operator = Operator(self.world, site)
            self.operators.append(operator)
            to = chance.choice([min(recorded) - 1, *recorded])
            self.turn(operator.process, lambda: operator.rewind(to), calls=_CALLS_OF_A_REWIND)

    def _moving(self) -> list[Thread]:
        """Return the threads of drivers and flushers that do not stand still."""
        flushing = [*(driver.flushing for driver in self.drivers), *self.flushers]
        threads = [driver.main for driver in self.drivers] + [each.thread for each in flushing]
        busy = {thread.process for thread in threads if thread.stands_still}
        return [thread for thread in threads if thread.process not in busy]
