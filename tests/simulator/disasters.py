"""What is done from outside: backups restored, clones, copies, checkpoints set back, ledgers lost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.simulator.driver import Driver
from tests.simulator.site import Backup, Site
from tests.simulator.swarm import Operation
from tests.simulator.target import Snapshot
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState

if TYPE_CHECKING:
    from tests.simulator.history import History

_OTHER_LOG = {"Diverged", "WrongOwner", "CorruptLog", "MissingSegment", "LedgerBehindLog"}
"""The errors at which the flush may stop when the ledger row follows another log."""


class Disasters:
    """Does them to one history."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.world = history.world
        self.backups: list[Backup] = []
        self.snapshots: list[Snapshot] = []

    def operations(self) -> tuple[Operation, ...]:
        """Return what may be done."""
        site, kept = self.world.site, lambda: bool(self.backups)
        return (
            Operation("backup", "restored backups", 8, self._backup),
            Operation("restore it", "restored backups", 4, self._restore, kept),
            Operation("clone", "clones", 3, self._clone),
            Operation(
                "copy the checkpoint",
                "copies",
                3,
                self._copy_checkpoint,
                lambda: site.log.has(paths.LOG),
            ),
            Operation("copy the log", "copies", 3, self._copy_log),
            Operation("the log is not mounted", "copies", 2, self._unmount),
            Operation("set the checkpoint back", "checkpoints set back", 5, self._set_back),
            Operation(
                "other data under flushed epochs", "checkpoints set back", 3, self._other_data
            ),
            Operation("backup of the target", "restored targets", 8, self._backup_target),
            Operation(
                "restore the target",
                "restored targets",
                4,
                self._restore_target,
                lambda: bool(self.snapshots),
            ),
            Operation(
                "restore the target from before a rewind",
                "restored targets",
                3,
                self._restore_from_before_rewind,
                lambda: "operators" in self.world.swarm,
            ),
            Operation("lose the ledger", "ledgers", 3, self._lose_ledger),
            Operation("shadow the ledger", "ledgers", 3, self._shadow_ledger),
        )

    # --- checkpoint and log -----------------------------------------------------------------------

    def _backup(self) -> None:
        self.world.happened("backup")
        self.backups.append(self.world.site.backup())

    def _restore(self) -> None:
        """Restore checkpoint and log; the target stays as it is."""
        self.history.stop_all()
        self.world.happened("backup restored")
        self.world.judge.disasters.add("log")
        site = self.world.site
        backup = self.world.chance.choice(self.backups)
        site.restore(backup)
        self.world.judge.log_restored(site, backup.made_us)
        self.world.documented |= _OTHER_LOG
        # Behind what is planned or flushed there, Spark may plan other data now. The checkpoint may have been
        # set back before the backup: other data of what is flushed would be refused for ever.
        planned = {e: site.planned(e) for e in site.checkpoint.numbers("offsets")}
        flushed = {e: each.offsets for e in site.recorded() if (each := site.kept.get(e))}
        self.world.offsets = {
            epoch: json.loads(offsets)["offset"] for epoch, offsets in (flushed | planned).items()
        }
        self.history.new_driver(self.world.site)

    def _clone(self) -> None:
        """Mount a snapshot of the volume elsewhere, under the same path, with the same ledger."""
        world, judge = self.world, self.world.judge
        if not judge.cloned and world.site.log.has(paths.LOG):
            world.happened("clone")
            judge.cloned = True
            judge.disasters.add("log")
            clone = Site(judge, world.query_id)
            clone.restore(world.site.backup())
            world.documented |= _OTHER_LOG
            self.history.new_driver(clone)

    def _copy_checkpoint(self) -> None:
        """Start a second pipeline from a copy of the checkpoint, with the same log: it is refused."""
        self.world.happened("checkpoint copied")
        self._refused(self.world.site.with_copied_checkpoint())

    def _copy_log(self) -> None:
        """Copy the log, and change `wal.location` to the copy: it is refused."""
        if self.world.site.checkpoint.has("wal_sink/location.json"):
            self.world.happened("log copied")
            self._refused(self.world.site.with_copied_log())

    def _refused(self, site: Site) -> None:
        """See that neither a run nor a flusher goes on with a copy."""
        world = self.world
        if world.site.log.away or world.site.log.full or world.database.away:
            return
        world.copied = True
        driver = Driver(world, site)
        driver.documented = {"WrongOwner"}
        driver.batch(1)
        driver.flushing.documented = {"WrongOwner"}
        driver.flushing.flush()
        if type(driver.flushing.error).__name__ != "WrongOwner":
            world.judge.violate(f"the flush of a copy: {driver.flushing.error!r}")
        driver.process.kill()

    def _unmount(self) -> None:
        """Start and flush while the log's folder is empty: nothing is begun anew there."""
        world, site = self.world, self.world.site
        if site.log.away or site.log.full or world.database.away or world.several:
            return
        if not site.checkpoint.has("wal_sink/location.json"):
            return
        self.history.stop_all()
        world.happened("log not mounted")
        log, checkpoint = site.log.snapshot(), site.checkpoint.snapshot()
        site.log.restore({})
        driver = Driver(world, site)
        driver.documented = {"CorruptLog", "NotRegistered"}  # it has no ticket
        driver.flushing.documented = {"CorruptLog"}
        driver.batch(1)
        driver.flushing.flush()
        flushed = type(driver.flushing.error).__name__
        if driver.error not in driver.documented or flushed != "CorruptLog":
            world.judge.violate(f"without the log: run {driver.error!r}, flush {flushed}")
        self.history.stop_all()
        site.log.restore(log)
        site.checkpoint.restore(checkpoint)
        self.history.new_driver(site)

    def _set_back(self) -> None:
        """Delete the newest commit files, perhaps with the plans, and let Spark compute the epochs again."""
        world, site = self.world, self.world.site
        commits = site.checkpoint.numbers("commits")
        gone = commits[-world.chance.randint(1, 3) :]
        given_up = [epoch for _, epoch in site.given_up if epoch in commits[-4:]]
        if given_up and world.chance.random() < 0.6:
            gone = commits[commits.index(max(given_up)) :]
        made = any(
            site.kept.get(epoch) is None for epoch in gone
        )  # by the repartition, from a copied plan
        if len(gone) == len(commits) or world.judge.cloned or made:
            return  # purged further: no Spark could start from that
        again = commits[-len(gone) - 1] + 1  # Spark may have passed over it before
        oldest = max(min(site.recorded(target), default=0) for target in world.targets)
        if again < oldest and not site.log.has(paths.RETAINED_RECORD.path(again)):
            return  # its record is forgotten, so that no run can publish: a newer one is to be restored
        if world.chance.random() < 0.5:
            self.history.stop_drivers()
        else:
            self.history.stop_all()
        world.happened("checkpoint set back", f"to {gone[0] - 1}")
        begun = {e: site.batch(e) for e in gone if e <= site.settled()}
        planned = world.chance.random() < 0.5
        for epoch in gone:
            site.checkpoint.remove(f"commits/{epoch}")
        for epoch in site.checkpoint.numbers("offsets"):
            if epoch >= gone[0] and not planned:
                site.checkpoint.remove(f"offsets/{epoch}")
        if not planned and world.chance.random() < 0.4:
            self._plan_anew(gone)
            site.set_back |= begun
        if any(e >= gone[0] and e not in site.records(target) for target, e in site.given_up):
            # Passed over, perhaps, by a flusher that died before its record; Spark computes it anew.
            # Where another target has it, the run publishes nothing (rule 5).
            lost = {"MissingManifest"} if world.several else set()
            world.documented_once_started |= {"Diverged"} | lost
        site.forget()
        self.history.new_driver(site)

    def _plan_anew(self, gone: list[int]) -> None:
        """Let Spark plan other data for epochs that are not recorded; where one is begun, the flush stops."""
        world, site = self.world, self.world.site
        for epoch in gone:
            if epoch > max(max(site.recorded(name), default=-1) for name in world.targets):
                world.offsets.pop(epoch, None)
                if epoch <= site.settled():
                    world.documented |= _OTHER_LOG
                    world.judge.disasters.add("log")

    def _other_data(self) -> None:
        """Restore an older checkpoint, from which Spark plans other data: that is refused, and undone."""
        world, site = self.world, self.world.site
        commits, recorded = site.checkpoint.numbers("commits"), site.recorded()
        back = world.chance.randint(1, 3)
        if len(commits) <= back or commits[-back] > max(recorded, default=-1):
            return
        if site.log.away or site.log.full or world.judge.cloned:
            return
        if any(database.away for database in world.databases.values()):
            return  # a run whose options have no plan in the log yet asks the target for one, and ends there
        first = commits[-back]
        if commits[-back - 1] != first - 1:
            return  # Spark would go on from the epoch before, which a zombie has planned
        self.history.stop_all()
        world.happened("other data", f"from {first} on")
        checkpoint, offsets = site.checkpoint.snapshot(), dict(world.offsets)
        for folder in ("commits", "offsets"):
            for epoch in site.checkpoint.numbers(folder):
                if epoch >= first:
                    site.checkpoint.remove(f"{folder}/{epoch}")
        world.offsets[first] = first * 10 + 7
        if any(epoch >= first for _, epoch in site.given_up):
            # That run claims: it may have computed again, and lost, what was given up before (rule 22).
            world.documented |= {"MissingManifest"}
        driver = Driver(world, site)
        driver.documented = {"Diverged"}
        driver.batch(1)
        if driver.error != "Diverged":
            world.judge.violate(f"other data under the flushed epoch {first}: {driver.error}")
        driver.process.kill()
        site.checkpoint.restore(checkpoint)
        world.offsets = offsets
        self.history.new_driver(site)

    # --- target -----------------------------------------------------------------------------------

    def _backup_target(self) -> None:
        self.world.happened("backup of the target")
        self.snapshots.append(self.world.database.snapshot())

    def _restore_target(self, snapshot: Snapshot | None = None) -> None:
        self.history.stop_flushers("")
        self.world.happened("target restored")
        self.world.database.restore(snapshot or self.world.chance.choice(self.snapshots))
        self.world.documented |= {"LedgerBehindLog", "LedgerShadowed"}
        row = self.world.row("")
        if row is not None and row.flushed > max(self.world.site.recorded(), default=-1):
            self.world.documented |= {"CorruptLog"}  # the log was rewound since that backup
            recorded = max(self.world.site.recorded(), default=-1)
            self.world.judge.restored_before_rewind("", range(recorded + 1, row.flushed + 1))

    def _restore_from_before_rewind(self) -> None:
        """Restore a backup of the target that was made before a rewind, once that is flushed again."""
        self._backup_target()
        self.history.commands.rewind()
        for _ in range(2):
            self.history.flush()
        self._restore_target(self.snapshots[-1])

    def _lose_ledger(self) -> None:
        """Truncate the ledger's table; the rows are there."""
        if self.world.lose_ledger():
            self.world.happened("ledger lost")
            self.world.documented |= {"LedgerBehindLog", "LedgerShadowed"}

    def _shadow_ledger(self) -> None:
        """Write to the ledger row with a timestamp of the future; or that is over."""
        database, query_id = self.world.database, self.world.query_id
        self.world.documented |= {"LedgerShadowed"}
        if database.cells.shadows:
            self.world.happened("ledger no longer shadowed")
            self.history.stop_all()
            database.unshadow()
            self.world.judge.row_is_back("")
        else:
            self.world.happened("ledger shadowed")
            self.world.judge.disasters.add("shadow")
            fields = self.world.chance.choice((LedgerState.__struct_fields__, ("flushed",)))
            database.shadow(query_id, fields)
