"""The end of a history: faults stop, what stands still wakes or dies, and the flush has to reach the end."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.protocol.raw import last_us
from tests.simulator.completeness import look_at_table
from tests.simulator.driver import Driver
from tests.simulator.flushing import Flushing
from tests.simulator.machine import MACHINE
from tests.simulator.operators import Operator
from tests.simulator.process import Thread
from tests.simulator.world import World
from wal_sink.errors import WalSinkError
from wal_sink.model import paths
from wal_sink.model.records import LEFT_FIRST, LEFT_LAST
from wal_sink.wal import runs as wal_runs
from wal_sink.wal import trim

if TYPE_CHECKING:
    from tests.simulator.history import History

_QUIET_S = 1_000.0
"""After so long, a heartbeat of a dead flusher is old."""

_MOST_ROUNDS = 6


def end(history: History) -> None:
    """Bring a history to its end, and let the judge look at it."""
    world = history.world
    world.happened("the end")
    for site in world.judge.sites:
        site.log.full = site.log.away = site.checkpoint.away = False
        site.log.cached_us = site.checkpoint.cached_us = 0
    for name, database in world.databases.items():
        database.away = False
        database.ahead_us = 0
        database.unshadow()
        world.judge.row_is_back(name)
    for host in world.hosts:
        host.ahead_us = 0
    world.judge.clocks_set_us = MACHINE.true_us
    world.swarm = replace(world.swarm, io_fault=0.0)
    zombies = history.standing()
    late = [each for each in zombies if world.chance.random() < world.chance.choice((0.0, 0.5))]
    for thread in zombies:
        if thread.stands_still and thread not in late and world.chance.random() < 0.8:
            history.turn(thread.process, thread.go_on)
    asleep = {thread.process.name for thread in late if thread.stands_still}
    for process in list(MACHINE.processes.values()):
        if process.name not in asleep:
            process.kill()
    if not world.judge.violations:
        _Last(world, late).drain()


class _Last:
    """The last driver, in whose process the flush goes on to the end."""

    def __init__(self, world: World, late: list[Thread]) -> None:
        self.world = world
        self.site = world.site
        self._late = late
        """What stands still until all is flushed."""
        self._outside = world.chance.random() < 0.3
        """Whether `wal-sink flush` brings it to the end, in a process that has seen no runs."""
        self._flushers: dict[str, Flushing] = {}
        """Those processes, by target."""

    def drain(self) -> None:
        """Flush everything to each target; an error that is documented for this history gets its remedy."""
        world = self.world
        world.time_passes(_QUIET_S)
        world.judge.ends = True
        self.site.move_away()
        self._verify_unflushed()
        driver = Driver(world, self.site)
        self._compute(driver)
        if world.judge.violations:
            return
        targets = world.targets
        for target in (*targets, *targets[:-1]):  # one that waits for room goes on at the last one
            driver = self._reach_the_end(driver, target)
            if world.judge.violations:
                return
        if not self._all_flushed():
            return
        self._judge()
        self.site.move_away()
        self._reports()
        self._wake_late()
        self.site.move_away()
        if not world.judge.violations:
            self._garbage(driver)
            self._judge()

    def _batch(self, driver: Driver) -> None:
        """Run a micro-batch; where it is refused, as its epoch was flushed from other data, do as told."""
        driver.error = ""
        driver.batch(3)
        if driver.error == "Diverged":
            self.site.put_checkpoint_back()

    def _compute(self, driver: Driver) -> None:
        """Let the last driver compute what is new."""
        self._batch(driver)
        for _ in self.site.kept:
            if driver.run is None or driver.run.next > max(self.site.kept):
                break
            if driver.main.stands_still:
                break  # it waits for room
            self._batch(driver)  # the checkpoint was set back: on, to what is new
        if not self.site.kept and not driver.main.stands_still:
            self.world.judge.violate("the last driver completes nothing")

    def _verify_unflushed(self) -> None:
        """Let `verify` find nothing in what is still to be flushed, if nothing was done from outside."""
        world = self.world
        if world.documented or self._late or not self.site.log.has(paths.LOG):
            return
        for target in world.targets:
            operator = Operator(world, self.site, target)
            operator.verify()
            operator.thread.finish()
            if operator.found and operator.found.findings:
                world.judge.violate(f"verify of {target} finds {operator.found.findings}")

    def _all_flushed(self) -> bool:
        """Whether each target has everything; what it lacks is a violation."""
        for target in self.world.targets:
            if (reached := self._mark(target)) != max(self.site.kept):
                self.world.judge.violate(f"the flush rests at {reached} of {max(self.site.kept)}")
                return False
        return True

    def _judge(self) -> None:
        """Send what is in quarantine, then look at every table."""
        world = self.world
        for target in world.targets:
            database = world.databases[target]
            if world.quarantine:
                self._command(target, "list_quarantine")
                database.refuses = database.checks = False
                self._command(target, "retry")
            look_at_table(world.judge, self.site, database)

    def _reports(self) -> None:
        """Let the commands that only look say what is true: all is flushed, and nothing stops."""
        for target in self.world.targets:
            found = self._command(target, "status").found
            said = found and (found.flushed, found.pending_epochs, found.pending_rows)
            if said != (self._recorded(target), 0, 0):
                self.world.judge.violate(f"status of {target} says {said}")
            found = self._command(target, "verify").found
            if found and found.findings:
                self.world.judge.violate(f"verify of {target} finds {found.findings}")

    def _command(self, target: str, name: str) -> Operator:
        operator = Operator(self.world, self.site, target)
        getattr(operator, name)()
        operator.thread.finish()
        if operator.error is not None:
            self.world.judge.violate(f"{name}: {operator.error.summary}")
        return operator

    def _reach_the_end(self, driver: Driver, target: str) -> Driver:
        """Flush to one target until all is there; return the driver, which may be another one."""
        flusher = self._flusher(driver, target)
        for _ in range(_MOST_ROUNDS):
            error = self._flush(driver, flusher)
            if self.world.judge.violations or error is None:
                break
            driver.process.kill()
            flusher.process.kill()
            if type(error).__name__ == "CorruptLog" and self.site.marks_gone:
                self.site.put_marks_back()
            elif (chosen := re.search(r"choices/([0-9]+)\.json", error.remedy)) and (
                self.site.record(int(chosen[1])) is None
            ):
                self.site.drop_choice(chosen[0])
            elif chosen or "move the manifest away" in error.remedy:
                self.site.move_manifest_away(re.findall(r"manifests/[0-9-]+\.json", error.what)[0])
            else:
                if type(error).__name__ == "LedgerShadowed":
                    self.world.lose_ledger()  # the error names another ledger table
                self._mend(error, target)
            if self.world.judge.violations:
                break
            driver = Driver(self.world, self.site)
            flusher = self._flusher(driver, target)
        return driver

    def _flusher(self, driver: Driver, target: str) -> Flushing:
        if not self._outside:
            return driver.flushings[target]
        known = self._flushers.get(target)
        if known is None or not known.process.alive:
            process = self.world.process("flusher")
            known = self._flushers[target] = Flushing(self.world, self.site, process, target=target)
        return known

    def _wake_late(self) -> None:
        """Let what stands still go on, long after its time, to its end."""
        for thread in self._late:
            for _ in range(_MOST_ROUNDS):
                if thread.stands_still:
                    thread.go_on()
            thread.process.kill()

    def _flush(self, driver: Driver, flusher: Flushing) -> WalSinkError | None:
        """Flush until it rests at the end; an epoch more proves the one before."""
        for _ in range(_MOST_ROUNDS):
            flusher.flush()
            flusher.thread.finish()
            if flusher.error is not None:
                return flusher.error
            if (
                self._mark(flusher.target) == max(self.site.kept, default=-1)
                and not driver.main.stands_still
            ):
                break
            if driver.main.stands_still:
                driver.main.go_on()
            else:
                self._batch(driver)
            if self.world.judge.violations:
                break
        return None

    def _mark(self, target: str) -> int:
        row = self.world.row(target)
        return row.flushed if row is not None else -1

    def _recorded(self, target: str) -> int:
        """Return the last epoch that the log is to record as flushed.

        Where Spark was set back behind the log's first epoch, no flusher asks the target for more.
        """
        site = self.site
        first = json.loads(site.log.get(paths.LOG))["first_epoch"]
        if max(site.checkpoint.numbers("commits"), default=-1) < first:
            return max(site.recorded(target), default=-1)
        return self._mark(target)

    def _mend(self, error: WalSinkError, target: str) -> None:
        """Do as the error says: adopt, give the epoch up, or rewind to the log's own mark or the ledger's."""
        self.world.time_passes(_QUIET_S)
        kind = type(error).__name__
        if kind == "WrongOwner":
            operator = Operator(self.world, self.site, target)
            operator.adopt()
            operator.thread.finish()
            if operator.error is None:
                return
        if kind == "MissingManifest":
            for copied in (False, True):
                operator = Operator(self.world, self.site, target)
                operator.skip(self._mark(target) + 1, begun=False, copied=copied)
                operator.thread.finish()
                if operator.error is None:
                    return
        for to, restored in self._choices(error, target):
            operator = Operator(self.world, self.site, target)
            operator.rewind(to, restored=restored)
            operator.thread.finish()
            if operator.error is None:
                return
        self.world.judge.violate(f"no remedy for {error.summary}")

    def _choices(self, error: WalSinkError, target: str) -> Iterable[tuple[int, bool]]:
        """Return the epochs to which a rewind may go, each without `--restored` and with it.

        Where nothing was lost, a rewind has not come to its end, or a late record has stopped the flush after
        it: it is run once more, as the error says, and has to work.
        """
        judge, recorded = self.world.judge, self.site.recorded(target)
        floor = max(recorded, default=min(self.site.kept) - 1)
        if type(error).__name__ != "LedgerBehindLog":
            return [(floor, False), (floor, True)]
        mark = self._mark(target)  # the log's own, too, where the row is from before a rewind
        first = mark if mark < floor else min(recorded, default=floor + 1) - 1
        if mark < floor and re.search(rf"--to {mark}\b", error.remedy):
            self.site.put_marks_back()  # what a limit has taken of the records
            if not (judge.disasters or judge.cloned or judge.two_rewinds):
                return [(mark, False)]
        return itertools.product(range(first, floor + 1), (False, True))

    def _garbage(self, driver: Driver) -> None:
        """After two hours nothing of a flushed epoch is left in the log; its time may be a day ahead.

        What woke late, of a clone, may have taken the ledger row: that gets its remedy as before.
        """
        wait_s = 2 * 3_600.0 + self.world.retention_s
        if self.world.retention_s and "clock jumps" in self.world.swarm:
            wait_s += 86_400.0
        goal, targets = max(self.site.kept), self.world.targets
        for more in (1, 1, 0, 0):
            goal += more  # what is aside goes as the ledger is read, for one more epoch
            self.world.time_passes(wait_s)
            for _ in range(_MOST_ROUNDS):
                if max(self.site.kept) < goal and not driver.main.stands_still:
                    self._batch(driver)  # the last run may give way to one that was late
            for target in (*targets, *targets[:-1]):
                driver = self._reach_the_end(driver, target)
                if self.world.judge.violations:
                    return
        if self._all_flushed():
            for target in targets:
                self._kept(target)

    def _kept(self, target: str) -> None:
        """See that the log has nothing left of what is flushed to a target, but the newest records."""
        log = self.site.open_log(self.world.process("reader"), target)
        mark = max(self.site.recorded(target), default=-1)
        records_upto = mark - trim.RECORDS_KEPT
        bounds = {
            paths.SEGMENT.folder: mark,
            paths.MANIFEST.folder: mark,
            paths.RETAINED_RECORD.folder: mark,
            paths.PROOF.folder: mark,
            paths.TOMBSTONE.folder: mark,
            paths.CHOICE.folder: mark,
            paths.FLUSHED.folder: records_upto,
            paths.RELEASED.folder: records_upto,
        }
        left = [
            path
            for folder, upto in bounds.items()
            for path in log.names(folder)
            if (found := re.search(r"[0-9]{20}", path)) and int(found[0]) <= upto
        ]
        # No trim deletes an entry of which no row has left the quarantine (rule 24).
        sent = {path.split(".released-")[0] for path in left if ".released-" in path}
        left = [
            path
            for path in left
            if not path.startswith(paths.RELEASED.folder) or path.split(".released-")[0] in sent
        ]
        records = self.site.records(target)
        resets = [each.after for each in log.interventions("rewind") if LEFT_FIRST in each.after]
        behind = [(int(after[LEFT_FIRST]), int(after[LEFT_LAST])) for after in resets]
        for path in log.names(paths.ASIDE):
            us, epoch = (int(number) for number in re.findall(r"[0-9]{20}", path)[:2])
            # Of the newest epoch it goes as the ledger is read for the next one.
            if epoch == mark or epoch not in records:
                continue
            used_us = last_us(records[epoch])
            # What a reset leaves behind proves nothing, be the reset given up: the name goes with the record.
            if used_us > us and not any(first <= used_us <= last for first, last in behind):
                left.append(path)  # it was flushed again since
        claims = log.backend.list(paths.CLAIM.folder)
        if not any(
            attempt.epoch > mark for attempt in log.attempts()
        ):  # its run may have to prove something
            left += claims[wal_runs.RUNS_KEPT + wal_runs._FORGOTTEN_TOGETHER :]
        if left:
            self.world.judge.violate(f"what is flushed to {target} is not trimmed: {left}")
