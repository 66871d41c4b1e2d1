"""Disasters from outside, and the commands of operators.

An action does only what docs/limits.md allows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.simulator.driver import FlusherThread
from tests.simulator.machine import MACHINE
from tests.simulator.process import Thread
from tests.simulator.target import Database
from tests.simulator.volume import Volume
from tests.simulator.world import QueryBackup, World
from wal_sink.admin.query import Query
from wal_sink.admin.repair import adopt, give_up, set_mark
from wal_sink.errors import WalSinkError
from wal_sink.flush.pipeline import Pipeline
from wal_sink.model.state import State

_SILENT_S = 60.0

_DECIDED = {
    "refused rows",
    "given-up epochs",
    "several targets",
    "restored targets",
    "moves",
}
"""Faults after which a log has decisions that no target has."""


class Actions:
    """The actions of one history."""

    def __init__(self, world: World) -> None:
        self.world = world

    # --- operators ---

    def operator(self, name: str, act: Callable[[Query], Any], *, faults: bool = True) -> bool:
        """Run a command of an operator; return True if it succeeded."""
        world, succeeded = self.world, []
        process = world.process("operator")
        if faults and world.chance.random() < 0.3:
            fault = world.chance.choice(world.swarm.io_faults)
            if "stall" not in fault.value and "late" not in fault.value:
                process.arm(fault, world.chance.randrange(1, 30))
        open_checkpoint, open_log = world.site.open_checkpoint, world.site.open_log
        query = _OperatorsQuery(world.query_id, open_checkpoint(process), open_log(process))
        query.pipelines = lambda state, name="": [  # type: ignore[method-assign]
            self._pipeline(process, target_name) for target_name in _names(state, name)
        ]

        def give() -> None:
            try:
                act(query)
                succeeded.append(True)
            except (OSError, WalSinkError) as error:
                world.trace.say(f"    {name}: {type(error).__name__}: {error}")

        world.checker.operator = True
        try:
            Thread(process).start(give)
        finally:
            world.checker.operator = False
        world.happened(f"operator: {name}", "done" if succeeded else "refused")
        return bool(succeeded)

    def _pipeline(self, process: Any, name: str) -> Pipeline:
        return self.world.pipeline(process, name)

    def give_up_next(self) -> None:
        """Give up the next epoch of a target; a flusher may be writing it."""
        world, state = self.world, self.world.checker.truth.state
        if state is None or not state.live:
            return
        target = world.chance.choice(state.live)
        epoch = target.mark.epoch + 1
        if epoch <= state.last.epoch:
            self.operator(
                "give up an epoch",
                lambda query: give_up(query, epoch, target.name),
            )

    def give_up_target(self) -> None:
        world, state = self.world, self.world.checker.truth.state
        if state is None or len(state.live) < 2:
            return
        name = world.chance.choice(state.live).name
        self.operator("give up a target", lambda query: give_up(query, None, name))

    def remedy(self, error: str, name: str = "") -> None:
        """Follow the remedy of an error of a flusher or a run."""
        world, state = self.world, self.world.checker.truth.state
        if state is None:
            return
        if error == "WrongOwner":
            self.operator("adopt", adopt, faults=False)
        if error == "TargetRefused":
            self.give_up_next()
        for about in [name] if name else [target.name for target in state.live]:
            if error == "LedgerBehindLog" and world.expects_error(error, about):
                self._set_mark(state, about)

    def _set_mark(self, state: State, name: str) -> None:
        """Set the mark of a restored target, which accepts the loss of its missing epochs."""
        world, target = self.world, state.target(name)
        if target is None or target.given_up:
            return
        to, row = max(target.mark.epoch, state.trimmed), world.row(name)
        first = row.epoch + 1 if row is not None else 0
        world.checker.truth.lacks.setdefault(name, set()).update(range(first, to + 1))
        world.time_passes(_SILENT_S)
        self.operator("set the mark", lambda query: set_mark(query, to, name), faults=False)

    # --- disasters ---

    def restore_target(self) -> None:
        """Restore a target from a backup, or promote a replica that lags."""
        world = self.world
        database = world.chance.choice([*world.databases.values()])
        if not database.backups:
            return
        backup = world.chance.choice(database.backups[-world.chance.choice((2, 12)) :])
        if database.kind == "idempotent":
            self._stop_flushers(database.name)
        database.restore(backup)
        world.happened("target restored", f"{database.name} {world.row(database.name)}")

    def _stop_flushers(self, name: str) -> None:
        """Stop the flushers of an idempotent target, as docs/limits.md requires before a restore."""
        for flusher in self.all_flushers():
            if flusher.name != name:
                continue
            if flusher.thread.stalled:
                flusher.process.kill()
            elif flusher.process.alive:
                flusher.restart()

    def all_flushers(self) -> list[FlusherThread]:
        """Return the flushers of all processes."""
        world = self.world
        return [
            *(flusher for driver in world.drivers for flusher in driver.flushers.values()),
            *world.flushers,
        ]

    def save(self) -> None:
        self.world.saved = [*self.world.saved[-3:], QueryBackup(self.world)]
        self.world.happened("backup made")

    def restore_query(self, *, targets: bool) -> None:
        """Restore checkpoint and log from one backup.

        :param targets: True restores the targets, too, from the same or an earlier moment.
        """
        world = self.world
        if not world.saved:
            return
        world.kill_all()
        saved = world.chance.choice(world.saved)
        world.saved = world.saved[: world.saved.index(saved) + 1]
        for volume, files in zip((world.site.checkpoint, world.site.log), saved.files, strict=True):
            volume.restore(files)
        checker = world.checker
        checker.truth = saved.truth
        saved.truth = checker.snapshot()
        world.offsets = dict(saved.offsets)
        if not targets:
            world.documented |= {"Diverged", "LedgerBehindLog", "WrongOwner"}
            world.happened("checkpoint and log restored")
            return
        for name, database in world.databases.items():
            # A target may be newer than the log, unless an operator has made decisions since the backup.
            backups = [
                backup
                for backup in database.backups
                if self._fits(backup.ledger, name)
                and (backup.made_us <= saved.made_us or not world.swarm & _DECIDED)
            ]
            if backups:
                database.restore(backups[-1])
            else:
                database.rows, database.ledger = {}, {}
                database.generation += 1
            database.backups = backups
        world.happened("everything restored")

    def _fits(self, ledger: dict[str, Any], name: str) -> bool:
        """Return True if a target's backup is not newer than the restored log."""
        row, truth = ledger.get(self.world.key(name)), self.world.checker.truth
        state = truth.state
        if row is None or state is None or row.log_id != state.log_id:
            return row is None
        final = truth.final.get(row.epoch)
        begins = row.epoch == state.first - 1
        return begins or (final is not None and final.digest == row.digest)

    def set_back(self) -> None:
        """Delete the newest epoch of the checkpoint, so that Spark computes it again."""
        world, checkpoint = self.world, self.world.site.checkpoint
        commits, state = checkpoint.epochs("commits"), world.checker.truth.state
        if not commits or state is None or state.last.epoch > commits[-1]:
            return
        newest = commits[-1]
        if newest > state.first and newest - 1 not in commits:
            return  # Spark has purged the commit before, so this would lose every commit
        world.kill_all()
        files = checkpoint.snapshot()
        for path in (f"commits/{newest}", f"offsets/{newest + 1}"):
            files.pop(path, None)
        unsynced = [path for path in checkpoint.unsynced if path in files]
        world.offsets.pop(newest + 1, None)
        checkpoint.restore(files)
        checkpoint.unsynced = unsynced
        world.happened("checkpoint set back", newest)

    def lose_power(self) -> None:
        """Let all hosts lose their power."""
        world, checkpoint = self.world, self.world.site.checkpoint
        world.kill_all()
        world.happened("power lost", checkpoint.unsynced)
        checkpoint.lose(world.chance.randrange(len(checkpoint.unsynced) + 1))

    def move(self) -> None:
        """Move checkpoint and log to another place; an operator adopts them after the error."""
        world = self.world
        world.kill_all()
        for volume in (world.site.checkpoint, world.site.log):
            volume.url = f"file:///moved-{MACHINE.true_us}/{volume.url.rpartition('/')[2]}"
        world.happened("moved")

    def change_targets(self) -> None:
        world = self.world
        names = [name for name in world.databases if world.chance.random() < 0.7]
        names = names or [*world.databases]
        for driver in world.drivers:
            driver.process.kill()
        world.drivers = []
        world.names = tuple(names)
        world.happened("other targets", names)

    def former_targets(self) -> None:
        """Start the next run with the targets of the log, as the error says."""
        state = self.world.checker.truth.state
        if state is not None:
            self.world.names = tuple(target.name for target in state.targets)
            self.world.happened("former targets")

    def outage(self) -> None:
        """Begin an outage of a target, the log or the checkpoint; or end all outages."""
        world = self.world
        stores = world.site.log, world.site.checkpoint
        places: list[Database | Volume] = [*world.databases.values(), *stores]
        away = [place for place in places if place.away]
        for place in away or [world.chance.choice(places)]:
            place.away = not place.away
        world.happened("outage over" if away else "outage")

    def fill_disk(self) -> None:
        """Fill the disk of the log, or free it."""
        log = self.world.site.log
        log.full = not log.full
        self.world.happened("disk full" if log.full else "disk freed")

    def clock_jump(self) -> None:
        """Change the clock of a host."""
        seconds = self.world.chance.choice((-86_400, -60, -1, 0, 1, 60, 86_400))
        self.world.chance.choice(self.world.hosts).ahead_us = seconds * 1_000_000
        self.world.happened("clock jumps", seconds)


class _OperatorsQuery(Query):
    """A query whose targets can be replaced: `Query` has slots."""


def _names(state: State, name: str) -> list[str]:
    return [name] if name else [target.name for target in state.live or state.targets]
