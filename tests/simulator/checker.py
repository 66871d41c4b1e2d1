"""Checks each change of state, table, ledger and log when it happens, by its own code.

`Truth` has what happened to checkpoint and log so far. A backup has a copy of it, since a restore takes
back what happened. The first violation fails the history.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tests.simulator.machine import MACHINE
from wal_sink.model import paths
from wal_sink.model.codec import digest
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.manifest import Manifest, manifest_digest
from wal_sink.model.state import EpochManifest, State, TargetState

if TYPE_CHECKING:
    from tests.simulator.target import Database
    from tests.simulator.volume import Volume


class Attempt(NamedTuple):
    """The rows that one run has computed for an epoch; all rows of an attempt have the same value."""

    epoch: int
    run_id: str
    value: int
    taken: tuple[str, ...]
    """The keys that the tasks accept, in the order of their write timestamps."""
    server_refuses: frozenset[str]
    """The keys among `taken` that the server refuses."""
    tasks_refuse: int
    """The number of other rows, which the tasks refuse."""

    @property
    def for_target(self) -> tuple[str, ...]:
        """The keys that each target must have."""
        return tuple(key for key in self.taken if key not in self.server_refuses)


@dataclass
class Truth:
    """What has happened to checkpoint and log."""

    state: State | None = None
    kept: dict[int, set[str]] = field(default_factory=dict)
    """The runs that wrote `commits/N`, by epoch."""
    final: dict[int, EpochManifest] = field(default_factory=dict)
    """The settled attempt of each epoch."""
    marked_us: dict[str, dict[int, int]] = field(default_factory=dict)
    """The true time of each mark, by target and epoch."""
    lacks: dict[str, set[int]] = field(default_factory=dict)
    """The epochs that an operator has given up, by target."""


class Checker:
    """Checks one history.

    :param counts: the numbers of events, by name.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self.violations: list[str] = []
        self.truth = Truth()
        self.attempts: dict[tuple[int, str], Attempt] = {}
        self.by_value: dict[int, Attempt] = {}
        self.two_drivers = False
        """True if two drivers may run: the attempt that is applied may then be one that Spark did not keep.
        """
        self.retention_us = 0
        """The retention that every trim must respect; 0 if clocks jump or bytes limit the retention."""
        self.operator = False
        """True while an operator's command runs."""
        self.log: Volume
        self.checkpoint: Volume
        self.ledgers: dict[str, set[tuple[str, int, str]]] = {}
        """All ledger rows that a target ever had, as (log id, epoch, digest)."""
        self.named: dict[str, tuple[str, ...]] = {}
        """The paths of each manifest and its segments, by the manifest's path."""
        self._counts = counts

    def violate(self, what: str) -> None:
        self.violations.append(what)

    def require(self, condition: object, what: str) -> None:
        if not condition:
            self.violate(what)

    def snapshot(self) -> Truth:
        return copy.deepcopy(self.truth)

    def computed(self, attempt: Attempt) -> None:
        self.attempts[attempt.epoch, attempt.run_id] = attempt
        self.by_value[attempt.value] = attempt

    def attempt_of(self, manifest: EpochManifest) -> Attempt | None:
        """Return the attempt of a manifest; None for a manifest that an operator's command made."""
        name = paths.MANIFEST.parse(manifest.manifest)
        return self.attempts.get((name.epoch, name.run_id)) if name is not None else None

    # --- checkpoint and log ---

    def spark_wrote(self, path: str, data: bytes) -> None:
        """Record that Spark has completed an epoch."""
        folder, _, name = path.partition("/")
        if folder == "commits":
            body = json.loads(data.split(b"\n")[1])
            self.truth.kept.setdefault(int(name), set()).add(body.get("by", ""))

    def created(self, path: str, data: bytes) -> None:
        if path.startswith(paths.STATE.folder):
            new, old = State.from_json(data, path), self.truth.state
            if old is not None and new.number <= old.number:
                self._counts["void states"] += 1
                return
            self._created_state(old, new)
            self.truth.state = new

    def deleted(self, path: str) -> None:
        """Check that an object of the log may be deleted."""
        state = self.truth.state
        if path.startswith(("refused/", "plans/")):
            self.violate(f"{path} is deleted")
        number = paths.STATE.parse(path)
        if number is not None and state is not None:
            self.require(number < state.number, f"the newest state, {path}, is deleted")
        name = paths.MANIFEST.parse(path) or paths.SEGMENT.parse(path)
        if name is None or state is None:
            return
        given_up = any(item.epoch == name.epoch for item in state.given_up)
        may_go = name.epoch <= state.trimmed and not given_up
        needed = [state.last.manifest, *(final.manifest for final in self.truth.final.values())]
        names = {part for manifest in needed for part in self.named.get(manifest, (manifest,))}
        self.require(may_go or path not in names, f"{path} is deleted, and is not trimmed")

    def _created_state(self, old: State | None, new: State) -> None:
        """Check the transition from one state to the next."""
        reason = f"state {new.number} ({new.changed.reason})"
        if old is None:
            self.require(
                new.number == 1 and new.last.epoch == new.first - 1,
                f"{reason} is not a first state",
            )
            return
        self.require(new.number == old.number + 1, f"{reason} is made from state {old.number}")
        changed = {
            name
            for name in State.__struct_fields__
            if name not in {"number", "changed"} and getattr(old, name) != getattr(new, name)
        }
        allowed = next(
            (
                transition
                for transition in _TRANSITIONS
                if transition[0] in changed and changed <= {*transition}
            ),
            None,
        )
        self.require(allowed, f"{reason} changes {sorted(changed)}")
        self.require(new.first == old.first and new.settled >= old.settled, f"{reason} goes back")
        if changed & {"log_id", "checkpoint", "given_up"}:
            self.require(self.operator, f"{reason} without an operator")
        if "opened" in changed and new.run is not None:
            self.require(
                new.run.run_id not in old.opened, f"{reason}: a superseded run opens again"
            )
            if "targets" in changed:
                all_flushed = all(
                    target.mark.epoch == old.last.epoch == old.settled for target in old.live
                )
                self.require(all_flushed, f"{reason}: the targets change, and one lacks epochs")
        if "last" in changed:
            self._published(old, new, reason)
        for epoch in range(old.settled + 1, new.settled + 1):
            final = new.last if epoch == new.last.epoch else old.last
            self.require(final.epoch == epoch, f"{reason}: nobody knows what is settled as {epoch}")
            self._settled(final, reason)
        if "targets" in changed and "opened" not in changed:
            for former in old.targets:
                later = new.target(former.name)
                if later is not None and later.mark != former.mark:
                    self._marked(old, former, later, reason)
        self._trimmed(old, new, reason)

    def _published(self, old: State, new: State, reason: str) -> None:
        last, former = new.last, old.last
        name = paths.MANIFEST.parse(last.manifest)
        assert name is not None
        predecessor = former if last.epoch == former.epoch + 1 else former.predecessor
        link = last.predecessor
        self.require(link.digest == predecessor.digest, f"{reason} follows on another manifest")
        follows = last.epoch == former.epoch + 1
        self.require(
            follows or last.epoch == former.epoch > old.settled, f"{reason} is out of order"
        )
        self.require(
            last.first_us > link.last_us <= predecessor.last_us, f"{reason}: timestamps overlap"
        )
        self.require(last.last_us >= last.first_us, f"{reason}: timestamps go back")
        rows = 0
        if self.log.exists(last.manifest):
            data = self.log.get(last.manifest)
            manifest = Manifest.from_file(data, last.manifest)
            self.require(manifest_digest(data) == last.digest, f"{reason} names another manifest")
            rows = sum(segment.rows for segment in manifest.segments)
            segments = (*manifest.segments, *manifest.refused)
            self.named[last.manifest] = (last.manifest, *(segment.path for segment in segments))
            for segment in segments:
                is_durable = segment.data is not None or (
                    self.log.exists(segment.path)
                    and digest(self.log.get(segment.path)) == segment.digest
                )
                self.require(is_durable, f"{reason}: {segment.path} is not there")
        else:
            self.violate(f"{reason}: its manifest is not there")
        self.require(last.sums.rows == link.sums.rows + rows, f"{reason}: wrong sums")
        self.require(last.last_us - last.first_us + 1 >= rows, f"{reason}: too few timestamps")
        if self.operator:
            return
        self.require(
            new.run is not None and name.run_id == new.run.run_id, f"{reason} by another run"
        )
        unsynced = {"metadata", f"offsets/{last.epoch}", f"commits/{last.epoch - 1}"} & {
            *self.checkpoint.unsynced
        }
        self.require(not unsynced, f"{reason}, and {unsynced} are not durable")
        completed = last.epoch in self.truth.kept
        again = completed and not self.checkpoint.exists(f"commits/{last.epoch}")
        self.require(
            not completed or again or self.two_drivers, f"{reason} after Spark has completed it"
        )

    def _settled(self, final: EpochManifest, reason: str) -> None:
        epoch = final.epoch
        if not self.operator:
            self.require(epoch in self.truth.kept, f"{reason}: Spark has not completed it")
        attempt = self.attempt_of(final)
        if attempt is not None and not self.two_drivers:
            runs = self.truth.kept.get(epoch, set())
            self.require(attempt.run_id in runs, f"{reason}: another run's attempt was kept")
        self.require(
            self.truth.final.setdefault(epoch, final) == final, f"{reason}: {epoch} was final"
        )

    def _marked(self, old: State, former: TargetState, later: TargetState, reason: str) -> None:
        mark, times = later.mark, self.truth.marked_us.setdefault(later.name, {})
        row = (old.log_id, mark.epoch, mark.digest)
        self.require(row in self.ledgers.get(later.name, ()), f"{reason}: the ledger never said so")
        self.require(mark.epoch >= old.trimmed, f"{reason}: below what is trimmed, {old.trimmed}")
        final = self.truth.final.get(mark.epoch)
        self.require(final is None or final.digest == mark.digest, f"{reason}: another digest")
        for epoch in range(former.mark.epoch + 1, mark.epoch + 1):
            times[epoch] = MACHINE.true_us
        for epoch in [epoch for epoch in times if epoch > mark.epoch]:
            del times[epoch]

    def _trimmed(self, old: State, new: State, reason: str) -> None:
        self.require(new.trimmed >= old.trimmed, f"{reason}: trimmed goes back")
        if new.trimmed == old.trimmed:
            return
        for target in new.live:
            self.require(
                new.trimmed <= target.mark.epoch, f"{reason}: {target.name} lacks what is trimmed"
            )
            since = self.truth.marked_us.get(target.name, {}).get(new.trimmed)
            if self.retention_us and since is not None:
                kept_us = MACHINE.true_us - since
                self.require(kept_us >= self.retention_us, f"{reason}: trimmed after {kept_us} us")

    # --- targets ---

    def row_written(self, database: Database, key: str, value: int, us: int) -> None:
        """Check a row that becomes visible."""
        what = f"{key}={value} is written to {database.name}"
        attempt = self.by_value.get(value)
        if attempt is None or key not in attempt.for_target:
            self.violate(f"{what}, and was never computed for it")
            return
        final = self.truth.final.get(attempt.epoch)
        if final is None or attempt.epoch not in self.truth.kept:
            self.violate(f"{what}, and epoch {attempt.epoch} is not final")
            return
        if self.attempt_of(final) != attempt:
            self.violate(f"{what}, and is of another attempt")
            return
        index, rows = attempt.taken.index(key), len(attempt.taken)
        shift = us - final.first_us - index
        fits = shift % rows == 0 and final.first_us <= us <= final.last_us
        self.require(fits if database.lists else shift == 0, f"{what} with timestamp {us}")
        versions = database.rows.get((value, key), ())
        if database.kind != "idempotent":
            self.require(not versions, f"{what} twice")
        elif database.lists:
            self.require(us not in versions, f"{what} twice with one timestamp")

    def ledger_moved(self, database: Database, current: LedgerRow | None, new: LedgerRow) -> None:
        """Check that the target has the epochs up to a new ledger row, whole."""
        what = f"the ledger of {database.name} moves to {new.epoch}"
        state = self.truth.state
        self.ledgers.setdefault(database.name, set()).add((new.log_id, new.epoch, new.digest))
        if state is None:
            self.violate(f"{what} before there is a log")
            return
        self.require(new.log_id == state.log_id, f"{what} of another log")
        if self.operator:
            return
        final = self.truth.final.get(new.epoch)
        self.require(final is None or final.digest == new.digest, f"{what} with another digest")
        target = state.target(database.name)
        if target is None:
            self.violate(f"{what}, and the log has no such target")
            return
        if current is not None:
            self.require(new.epoch >= current.epoch, f"{what} from {current.epoch}")
        first = max(target.first, current.epoch + 1 if current is not None else target.first)
        for epoch in range(first, new.epoch + 1):
            self.require(epoch in self.truth.kept or epoch <= state.settled, f"{what} before Spark")
            self._whole(database, epoch, what)

    def _whole(self, database: Database, epoch: int, what: str) -> None:
        """Check that a target has each row of an epoch's settled attempt."""
        state, final = self.truth.state, self.truth.final.get(epoch)
        given_up = state is not None and any(
            (item.epoch, item.target) == (epoch, database.name) for item in state.given_up
        )
        if given_up or epoch in self.truth.lacks.get(database.name, ()):
            return
        if final is None:
            self.violate(f"{what}, and epoch {epoch} is not final")
            return
        attempt = self.attempt_of(final)
        for key in attempt.for_target if attempt is not None else ():
            if not database.rows.get((attempt.value, key)):  # type: ignore[union-attr]
                self.violate(f"{what} without {key} of epoch {epoch}")
                return
        if attempt is None:
            return
        names = (
            paths.REFUSED_ROW.parse(path) for path in self.log.paths(paths.refused_folder(epoch))
        )
        kept = {name.us for name in names if name is not None and name.target == database.name}
        for index, key in enumerate(attempt.taken):
            if key in attempt.server_refuses:
                is_kept = final.first_us + index in kept
                self.require(is_kept, f"{what}, and {key} of epoch {epoch} is not in refused/")
        folder = self.log.paths(paths.refused_folder(epoch))
        by_tasks = [path for path in folder if paths.REFUSED_ROW.parse(path) is None]
        of_tasks = sum(name.rows for path in by_tasks if (name := paths.REFUSED.parse(path)))
        same = of_tasks == attempt.tasks_refuse
        self.require(same, f"{what}: {of_tasks} of {attempt.tasks_refuse} rows are in refused/")

    def complete(self, databases: dict[str, Database], key: str) -> None:
        """Check, at the end, that every target has every epoch."""
        state = self.truth.state
        assert state is not None
        newest = max(self.truth.kept, default=-1)
        what = "at the end"
        self.require(
            state.last.epoch == state.settled == newest, f"{what}: epoch {newest} is not settled"
        )
        for target in state.live:
            database = databases[target.name]
            row = database.ledger.get(f"{key}/{target.name}" if len(databases) > 1 else key)
            self.require(
                row is not None and row.epoch == newest, f"{what}: {target.name} has {row}"
            )
            self.require(target.mark.epoch == newest, f"{what}: the mark is {target.mark.epoch}")
            for epoch in range(target.first, newest + 1):
                self._whole(database, epoch, what)


_TRANSITIONS = (
    ("log_id", "checkpoint", "run"),
    ("given_up",),
    ("opened", "run", "targets"),
    ("last", "settled", "given_up"),
    ("targets", "settled", "trimmed"),
    ("settled",),
    ("trimmed",),
)
"""The fields that a transition may change; it always changes the first of them."""
