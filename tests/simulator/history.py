"""One history: a query's life of a few dozen steps, with the faults that it has drawn, and its end."""

from __future__ import annotations

import contextlib
import json
import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.simulator.commands import Commands
from tests.simulator.disasters import Disasters
from tests.simulator.driver import Driver
from tests.simulator.ending import end
from tests.simulator.flushing import Flushing
from tests.simulator.machine import MACHINE
from tests.simulator.process import (
    FOLDERS,
    VERBS,
    Counts,
    Fault,
    Process,
    Thread,
    a_change,
    any_call,
    of_kind,
)
from tests.simulator.site import Site
from tests.simulator.swarm import FAULTS, Operation, Swarm, acted
from tests.simulator.trace import Trace
from tests.simulator.world import World
from wal_sink.flush import run_history
from wal_sink.model import paths
from wal_sink.protocol import windows
from wal_sink.wal import runs as wal_runs
from wal_sink.wal import trim

_MOST_DRIVERS = 4
_DAY_S = 86_400
_CALLS_HIT: tuple[Counts | None, ...] = (any_call, a_change, a_change, None)
"""Which calls a fault may hit: any, one that changes something, as most calls read, or one of a kind."""
_CHANGES = 8
_FEW = 3
_KINDS = (
    *(of_kind(frozenset((verb,)), frozenset()) for verb in VERBS),
    *(of_kind(frozenset(), frozenset((folder,))) for folder in FOLDERS),
    *[lambda verb, _what: verb == "delete"] * 3,
    *[lambda verb, what: verb == "read" and what.startswith("flusher")] * 3,
)
"""Kinds of calls: by what they do, or with what. So a rare one is hit as often as one of many."""
_MAY_STAND_STILL = (
    "a micro-batch",
    "flush",
    "rewind",
    "a rewind beside flushers",
    "any command",
    "detach or attach",
)
_RARE_FIRST = 0.5
"""How probable it is that those who overtake begin with any operation, a rare one as soon as another."""
_TELLING = {
    "operators",
    "detached targets",
    "ledgers",
    "restored targets",
    "restored backups",
    "checkpoints set back",
    "refused rows",
}
"""What changes what is to be flushed: where others do it, one that stands still is wrong."""
_THE_SAME = 0.2
"""How probable it is that the first of them does what the one that stands still does."""
_GOES_ON = 0.4
"""How probable it is that the query goes on meanwhile, with some micro-batches and their flush."""
_GOES_BACK = 0.3
"""How probable it is that a query that came from another sink goes back to it at first."""
_AGAIN = (0, 0, 0, 1, 3)
"""How often one that goes on may stand still once more."""
_LATER = 0.4
"""How probable it is that some time has passed as it goes on."""
_RACES = 0.5
"""How probable it is that a newer driver comes to the epoch at which one stands still."""
_OF_CALLS = {"crashes", "lost answers", "late calls"}


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
    records, epochs, void = trim.RECORDS_KEPT, windows.WINDOW_EPOCHS, wal_runs.VOID_KEPT
    runs = wal_runs.RUNS_KEPT, wal_runs._FORGOTTEN_TOGETHER
    seen = run_history._RUNS_KEPT
    if "few records" in world.swarm:
        wal_runs.VOID_KEPT, run_history._RUNS_KEPT = world.chance.choice(
            ((1, 1), (3, 2), (void, seen))
        )
        trim.RECORDS_KEPT = world.chance.choice((2, 4))
        wal_runs.RUNS_KEPT, wal_runs._FORGOTTEN_TOGETHER = world.chance.choice(((2, 1), (3, 2)))
    if "small windows" in world.swarm:
        windows.WINDOW_EPOCHS = world.chance.choice((1, 2, 3))
    try:
        yield
    finally:
        trim.RECORDS_KEPT, windows.WINDOW_EPOCHS, wal_runs.VOID_KEPT = records, epochs, void
        run_history._RUNS_KEPT = seen
        wal_runs.RUNS_KEPT, wal_runs._FORGOTTEN_TOGETHER = runs


class History:
    """Plays one history."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.drivers: list[Driver] = []
        self.flushers: list[Flushing] = []
        """Those in processes of their own."""
        if "trim delay" in world.swarm:
            world.retention_s = world.chance.choice((60.0, 3_600.0))
            if "clock jumps" not in world.swarm:
                world.judge.retention_s = world.retention_s
        if "clock jumps" in world.swarm:
            world.judge.clocks_agree = False
            for database in world.databases.values():
                database.one_node_ahead = world.chance.random() < 0.5
            world.future = world.judge.future = world.chance.random() < 0.5
        if "purges" in world.swarm:
            world.batches_retained = world.chance.choice((1, 2, 4))
        if "budget" in world.swarm:
            world.max_bytes = world.judge.max_bytes = world.chance.choice((500, 2_000))
        if "migrated queries" in world.swarm:
            world.site.migrate(world.query_id, world.chance.randint(1, 3))
        self._is_over = False
        self.commands, self.disasters = Commands(self), Disasters(self)
        swarm = world.swarm
        self._table = [o for o in self._operations() if o.fault is None or o.fault in swarm]

    def run(self) -> None:
        """Play the steps, then the end; stop at the first violation."""
        chance, judge = self.world.chance, self.world.judge
        self.new_driver(self.world.site)
        if "migrated queries" in self.world.swarm and chance.random() < _GOES_BACK:
            self._go_back_to_another_sink()
        for _ in range(self.world.swarm.steps):
            table = self._steps()
            (step,) = chance.choices(table, [each.weight for each in table])
            if step.is_possible():
                step.act()
            if judge.violations or self._is_over:
                break
        else:
            end(self)
        for process in list(MACHINE.processes.values()):
            process.kill()

    def _go_back_to_another_sink(self) -> None:
        """Let the first start die before it has begun the log, and another sink go on for some epochs."""
        driver = self.drivers[-1]
        driver.process.arm(
            Fault.CRASH_BEFORE, 1, lambda verb, what: (verb, what) == ("create", "log.json")
        )
        driver.batch(1)
        self.end_process(driver.process)
        self.world.site.migrate(self.world.query_id, self.world.chance.randint(1, 2))
        self.new_driver(self.world.site)

    def _operations(self) -> tuple[Operation, ...]:
        """Return what may be the next step of a history."""
        several = self.world.several
        return (
            Operation("a micro-batch", None, 40, self.batch),
            Operation("flush", None, 40, self.flush),
            Operation("wake a thread", None, 20, self._wake, lambda: bool(self.standing())),
            Operation("time passes", None, 6, self._time),
            Operation("overtaken", "zombies", 20, self._overtaken),
            Operation("restart", None, 4, self._restart),
            Operation("restart", "restarts", 12, self._restart),
            Operation("a row that ends the run", "poison rows", 8, self._poison),
            Operation(
                "a batch passes the sink by",
                "batch writer",
                3,
                self._pass_by,
                lambda: not self.world.site.log.paths(paths.CLAIM.folder),
            ),
            Operation("told to stop", "stopped queries", 10, self._tell_to_stop),
            Operation("a driver beside others", "standing drivers", 10, self._stand_by),
            Operation("two attempts", "standing drivers", 8, self._two_attempts),
            Operation("kill", "crashes", 6, self._kill),
            Operation("a flusher of its own", "other flushers", 6, self._other_flusher),
            Operation("outage", "outages", 5, self._outage),
            Operation("full disk", "full disks", 4, self._full_disk),
            Operation("clock jump", "clock jumps", 6, self._clock),
            Operation("repartition", "repartitions", 6, self._repartition),
            *self.commands.operations(several=several),
            *self.disasters.operations(),
        )

    def _steps(self) -> list[Operation]:
        """Return what may be the next step."""
        return [step for step in self._table if not self._is_spent(step)]

    def _is_spent(self, step: Operation) -> bool:
        """Whether others act by a step, and have acted as often as they may."""
        return step.acts and acted(self.world.counts) >= self.world.swarm.most_acts

    # --- turns ------------------------------------------------------------------------------------

    def turn(self, process: Process, act: Callable[[], None], calls: int = 30) -> None:
        """Let a process act; a fault may be armed, at one of its first calls."""
        world = self.world
        faults = world.swarm.io_faults
        if world.chance.random() < world.swarm.io_fault:
            self._arm(process, faults, calls)
        act()
        process.disarm()
        if not process.alive:
            self._bury(process)

    def _arm(self, process: Process, faults: Sequence[Fault], calls: int) -> None:
        """Arm a fault at one of the first calls, at one of the first that change something, or of a kind."""
        chance = self.world.chance
        counts = chance.choice(_CALLS_HIT)
        most = calls if counts is any_call else _CHANGES if counts is a_change else _FEW
        process.arm(chance.choice(faults), chance.randint(1, most), counts or chance.choice(_KINDS))

    def _overtaken(self) -> None:
        """Let somebody stand still in the middle of something, others act, and it go on."""
        chance = self.world.chance
        self.world.happened("overtaken")
        before = {id(thread) for thread in self.standing()}
        act = chance.choice([o for o in self._steps() if o.name in _MAY_STAND_STILL])
        self._stand_still_in(act)
        if act.act == self.batch and chance.random() < _RACES:
            self.world.happened("two drivers at one epoch")
            self.new_driver(self._driver().site)
            self._stand_still_in(act)
        standing = [thread for thread in self.standing() if id(thread) not in before]
        for operation in self._meanwhile(act):
            if self._is_spent(operation) or self.world.judge.violations:
                continue
            if operation.is_possible():
                operation.act()
        if chance.random() < _LATER:
            self.world.time_passes(chance.choice((2, 40, 130, 4_000)))
        chance.shuffle(standing)
        for thread in standing:
            for _ in range(chance.choice(_AGAIN)):
                self._stand_still_again(thread)
            if thread.stands_still and not self.world.judge.violations:
                self.turn(thread.process, thread.go_on)

    def _stand_still_again(self, thread: Thread) -> None:
        """Let a thread go on, and stand still once more, while the query goes on."""
        if not thread.stands_still or self.world.judge.violations:
            return
        self._arm(thread.process, (Fault.STALL_BEFORE, Fault.STALL_AFTER), 30)
        thread.go_on()
        thread.process.disarm()
        if thread.stands_still:
            self.batch()
            self.flush()

    def _meanwhile(self, act: Operation) -> list[Operation]:
        """Draw what others do while somebody stands still in something: anything, or the query goes on.

        :param act: in what; others may do the same.
        """
        chance = self.world.chance
        others = [o for o in self._steps() if o.name not in ("overtaken", "wake a thread")]
        weights = [operation.weight for operation in others]
        drawn = chance.choices(others, weights, k=chance.randint(1, 5))
        if chance.random() < _RARE_FIRST:
            telling = [o for o in others if o.fault in _TELLING]
            drawn[0] = chance.choice(telling if telling and chance.random() < 0.6 else others)
        if chance.random() < _THE_SAME:
            drawn[0] = act
        if chance.random() < _GOES_ON:
            batch, flush = self._table[0], self._table[1]
            drawn[1:] = [batch, flush] * chance.randint(1, 4) + drawn[1:2]
        return drawn

    def _stand_still_in(self, act: Operation) -> None:
        """Let whoever does something stand still at one of its calls."""
        swarm = self.world.swarm
        self.world.swarm = replace(
            swarm, faults=swarm.faults - _OF_CALLS | {"zombies"}, io_fault=1.0
        )
        try:
            if act.is_possible():
                act.act()
        finally:
            self.world.swarm = swarm

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
            self.end_process(self.world.chance.choice(self.drivers[:-1]).process)
        return driver

    def _driver(self) -> Driver:
        """Return a driver that may act: mostly the newest one."""
        free = [driver for driver in self.drivers if not driver.main.stands_still]
        if not free:
            return self.new_driver(self.world.chance.choice(self.world.judge.sites))
        return free[-1] if self.world.chance.random() < 0.8 else self.world.chance.choice(free)

    def batch(self) -> None:
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

    def _pass_by(self) -> None:
        """Let a function keep the sink's error to itself, before anything is published: nothing ever is."""
        world = self.world
        world.happened("a batch passes the sink by")
        world.documented |= {"MissingManifest", "NotRegistered"}
        driver = self._driver()
        site = driver.site  # a clone has its own claims, and publishes behind other batches
        driver.pass_by()
        first = driver.run.next - 1 if driver.run is not None else -1
        passed = driver.run is not None and driver.run.next > 0
        passed &= not site.log.paths(paths.CLAIM.folder)  # else the flush alone stops there
        written = site.manifests(first)  # by a run that died before its commit: that one is flushed
        self.end_process(driver.process)  # a run that goes on publishes, and the flush stops
        for _ in range(3):
            self._restart()
            driver = self._driver()
            driver.batch(2)
            driver.flushing.flush()
        if passed and site.log.paths(paths.MANIFEST.folder):
            world.judge.violate("a run publishes behind a batch that passed the sink by")
        rows = [world.row(target) for target in world.targets]
        other = "log" in world.judge.disasters and not any(
            first in site.recorded(target) for target in world.targets
        )  # the row follows the history that was left (rule 23)
        covered = any(row is not None and row.flushed >= first for row in rows)
        if first >= 0 and not written and not other and covered:
            world.judge.violate(f"epoch {first} counts as flushed, which passed the sink by")
        self._is_over = True

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
            self.end_process(driver.process)
            self.new_driver(driver.site)

    def _stand_by(self) -> None:
        """Start a new driver while the old one merely stands still."""
        self.world.happened("driver beside others")
        self.new_driver(self._driver().site)

    def _two_attempts(self) -> None:
        """Let two runs publish one epoch; either one may complete it, and either one may die."""
        chance = self.world.chance
        self.world.happened("two attempts")
        older = self._driver()
        for driver in (older, self.new_driver(older.site)):
            driver.process.arm(
                chance.choice((Fault.STALL_BEFORE, Fault.STALL_BEFORE, Fault.CRASH_BEFORE)),
                1,
                lambda verb, what: verb == "create" and what.startswith("commits/"),
            )
            driver.batch(chance.choice((1, 2, 3)), heard=chance.random() < 0.5)
            driver.process.disarm()
            if not driver.process.alive:
                self._bury(driver.process)
        if older.main.stands_still and chance.random() < 0.7:
            self.turn(older.process, older.main.go_on)

    def _kill(self) -> None:
        processes = [driver.process for driver in self.drivers]
        processes += [flusher.process for flusher in self.flushers]
        if processes:
            process = self.world.chance.choice(processes)
            self.world.happened("kill", process.name)
            self.end_process(process)

    def end_process(self, process: Process) -> None:
        process.kill()
        self._bury(process)

    def _wake(self) -> None:
        """Let a thread go on that stands still."""
        thread = self.world.chance.choice(self.standing())
        self.world.happened("wake", f"{thread.process.name} {thread.name}")
        self.turn(thread.process, thread.go_on)

    # --- the flush --------------------------------------------------------------------------------

    def flush(self) -> None:
        flushers = [each for driver in self.drivers for each in driver.flushings.values()]
        flushers += self.flushers
        free = [each for each in flushers if not each.thread.stands_still and each.has_query]
        if free:
            flusher = self.world.chance.choice(free[-3 * len(self.world.targets) :])
            if self.world.trace.on:
                self.world.trace.say(f"=== {flusher.process.name}: flush")
            self.turn(flusher.process, flusher.flush)

    def _other_flusher(self) -> None:
        """Begin `wal-sink flush`, in a process that sees no runs."""
        process = self.world.process("flusher")
        self.world.happened("flusher of its own", process.name)
        target = self.world.chance.choice(self.world.targets)
        self.flushers.append(Flushing(self.world, self.world.site, process, target=target))

    # --- stores, target and clocks ------------------------------------------------------------------

    def _time(self) -> None:
        self.world.time_passes(self.world.chance.choice((1, 30, 130, 4_000)))

    def _outage(self) -> None:
        """The target, or the log's store, goes away, or comes back."""
        database = self.world.chance.choice([*self.world.databases.values()])
        place = self.world.chance.choice((database, self.world.site.log))
        place.away = not place.away
        self.world.happened("outage" if place.away else "outage over")

    def _full_disk(self) -> None:
        log = self.world.site.log
        log.full = not log.full
        self.world.happened("full disk" if log.full else "room on the disk")

    def _clock(self) -> None:
        chance, world = self.world.chance, self.world
        world.judge.clocks_set_us = MACHINE.true_us
        if world.future and chance.random() < 0.4:
            world.happened("all clocks jump")
            self.set_clocks(chance.choice((0, _DAY_S)))
            return
        if world.future and chance.random() < 0.3:
            world.happened("clocks of a target jump")
            world.databases[chance.choice(world.targets)].ahead_us = chance.choice(
                (0, _DAY_S * 1_000_000)
            )
            return
        host = chance.choice(world.hosts)
        host.ahead_us = 1_000_000 * chance.choice((0, -5, 5, -_DAY_S, _DAY_S))
        world.happened("clock jump", f"{host.name} {host.ahead_us // 1_000_000} s")

    def set_clocks(self, ahead_s: int) -> None:
        """Set the clocks of all hosts and targets."""
        self.world.judge.clocks_set_us = MACHINE.true_us
        for host in self.world.hosts:
            host.ahead_us = ahead_s * 1_000_000
        for database in self.world.databases.values():
            database.ahead_us = ahead_s * 1_000_000

    def _repartition(self) -> None:
        """Run Spark's offline state repartition: no query runs, no flusher either."""
        site = self.world.site
        commits, offsets = site.checkpoint.numbers("commits"), site.checkpoint.numbers("offsets")
        if not commits or commits[-1] not in offsets:
            return
        last, batch = commits[-1], max(*commits, *offsets) + 1
        if batch > last + 2 or last < site.settled():
            return  # it was set back: what the tool does with several plans, or behind the mark, is not known
        if self.world.batches_retained is not None and any(
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
        if not site.log.has(paths.LOG):
            site.kept.clear()  # it lies before the sink's first epoch
            site.completed.clear()
        self.new_driver(site)

    def stop_flushers(self, target: str) -> None:
        """Stop a target's flushers, and all commands, that are under way, with their calls that are, too.

        docs/limits.md asks for that before a target is restored or replaced: its rows that such a flusher
        has sent are gone, and it would go on as if they were there. One that rests may live.
        """
        for flushing in self.world.flushing:
            if flushing.target == target and flushing.thread.stands_still:
                flushing.process.sever()
                self._bury(flushing.process)
        for process in MACHINE.processes.values():
            if any(each.name == "command" and each.stands_still for each in process.threads):
                process.sever()

    def stop_drivers(self) -> None:
        """Stop every driver, what operators do, and flushers of their own that are under way.

        docs/limits.md asks for that before a checkpoint is set back: such a flusher would go on from what it
        had read there. One that rests lives on.
        """
        self.flushers = [each for each in self.flushers if not each.thread.stands_still]
        resting = {each.process for each in self.flushers}
        for process in MACHINE.processes.values():
            if process not in resting:
                process.sever()
        self.drivers = []

    def stop_all(self) -> None:
        """Stop everything, as an operator does before touching files."""
        for process in MACHINE.processes.values():
            process.sever()
        self.drivers, self.flushers = [], []
