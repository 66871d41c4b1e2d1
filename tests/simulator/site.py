"""A checkpoint with its log, where they lie, and what Spark has truly completed there."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from tests.protocol.raw import body_run, manifest_digest, sources
from tests.simulator.attempts import Computed
from tests.simulator.judge import Judge
from tests.simulator.machine import MACHINE
from tests.simulator.process import Process
from tests.simulator.rows import refused_in
from tests.simulator.steps import MANIFEST
from tests.simulator.volume import Files, Mount, Volume
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.wal import trim
from wal_sink.wal.log import Log


class Backup(NamedTuple):
    """A copy of a site, made in an instant."""

    checkpoint: dict[str, Files]
    log: dict[str, Files]
    kept: dict[int, Computed | None]
    completed: dict[int, Computed | None]
    given_up: set[tuple[str, int]]
    marks_gone: dict[str, bytes]
    put_back_late: set[str]
    taken_back: set[int]
    made_us: int


class Batch(NamedTuple):
    """An epoch of a checkpoint."""

    kept: Computed | None
    files: dict[str, bytes]


class Site:
    """One query's checkpoint and log."""

    def __init__(self, judge: Judge, query_id: str) -> None:
        self.query_id = query_id
        self.kept: dict[int, Computed | None] = {}
        """What Spark has completed, by epoch; None: an epoch without rows that a tool of Spark's made."""
        self.completed: dict[int, Computed | None] = {}
        """What Spark has completed last, also behind what the ledger says is flushed."""
        self.given_up: set[tuple[str, int]] = set()
        """The epochs that an operator has given up, each with the target that lacks it."""
        self.since_us: dict[tuple[str, int], int] = {}
        """When an epoch of a target was given up."""
        self.claimed_us: dict[str, int] = {}
        """When each run has claimed its generation last. Not by the claim's path: once a claim is deleted, a
        run that was overtaken can claim its number again (rule 3)."""
        self.committed_us: dict[int, int] = {}
        """When each epoch was completed last."""
        self.entries: dict[tuple[str, int, str], int] = {}
        """When each row came into quarantine, by target, value and key."""
        self.marks_gone: dict[str, bytes] = {}
        """Records to which a rewind went back, and which a flusher has deleted since, as old ones: a
        documented limit, docs/protocol/operators.md."""
        self.put_back_late: set[str] = set()
        """Manifests that a rewind put back whose records had been deleted meanwhile: the same limit."""
        self.trimmed_late: set[int] = set()
        """Epochs of which a flusher that had looked before a rewind has deleted something: the same limit."""
        self.set_back: dict[int, Batch] = {}
        """Of begun epochs behind which the checkpoint was set back, for other data: the newer checkpoint."""
        self.taken_back: set[int] = set()
        """Epochs whose records a rewind has deleted, and that were not recorded again since."""
        self.rewound_us = 0
        """When a rewind has set a ledger row back last."""
        self.is_copy = False
        """Whether it must not be used, as it is a copy of another one."""
        self._judge = judge
        self.checkpoint = Volume("simulated://checkpoint", self._checkpointed, lambda _path: None)
        self.log = Volume(f"simulated://log/{query_id}", self._logged, self._deleted)
        judge.sites.append(self)

    def open_checkpoint(self, process: Process) -> Checkpoint:
        """Open the checkpoint in a process."""
        return Checkpoint(Mount(self.checkpoint, process))

    def open_log(self, process: Process, target: str = "") -> Log:
        """Open the log in a process, as a target sees it."""
        return Log(Mount(self.log, process), target, targets=filter(None, self._judge.targets))

    @property
    def next_epoch(self) -> int:
        """The epoch that Spark computes next: the last one that is planned, or the one after the last one."""
        commits, offsets = self.checkpoint.numbers("commits"), self.checkpoint.numbers("offsets")
        return max([*offsets, *(epoch + 1 for epoch in commits)], default=0)

    def bytes_left(self, epoch: int) -> int:
        """Return how large the segments of an epoch are, named by a manifest or not."""
        return sum(len(self.log.get(path)) for path in self.log.paths(paths.segment_folder(epoch)))

    @property
    def claimant(self) -> str:
        """The run that has claimed the newest generation; empty where none has."""
        claims = self.log.paths(paths.CLAIM.folder)
        return str(json.loads(self.log.get(claims[-1]))["run_id"]) if claims else ""

    def migrate(self, query_id: str, epochs: int) -> None:
        """Let another sink have had the first epochs, or some more, before the log was begun."""
        self.checkpoint.put("metadata", json.dumps({"id": query_id}).encode(), exclusive=False)
        first = self.next_epoch
        for epoch in range(first, first + epochs):
            metadata = {"batchTimestampMs": 0, "conf": {"spark.sql.shuffle.partitions": "2"}}
            plan = f'v1\n{json.dumps(metadata)}\n{{"offset":{epoch * 10}}}'
            self.checkpoint.put(f"offsets/{epoch}", plan.encode())
            self.checkpoint.put(f"commits/{epoch}", b'v1\n{"nextBatchWatermarkMs":0}')
        self.kept.clear()
        self.completed.clear()

    def backup(self) -> Backup:
        """Copy everything."""
        return Backup(
            self.checkpoint.snapshot(),
            self.log.snapshot(),
            dict(self.kept),
            dict(self.completed),
            set(self.given_up),
            dict(self.marks_gone),
            set(self.put_back_late),
            set(self.taken_back),
            MACHINE.true_us,
        )

    def restore(self, backup: Backup) -> None:
        """Put a copy in the place of everything; what Spark had completed since is left."""
        self.checkpoint.restore(backup.checkpoint)
        self.log.restore(backup.log)
        for epoch, attempt in self.kept.items():
            if attempt is not None and backup.kept.get(epoch) is not attempt:
                attempt.lost = True
        chosen = [attempt for attempt in self.kept.values() if attempt and attempt.excused]
        self.kept, self.completed = dict(backup.kept), dict(backup.completed)
        for attempt in self.kept.values():
            if attempt is not None:
                attempt.committed = True  # the checkpoint may have been set back since
                attempt.fenced_us = None  # the backup may lack its proof
        self.given_up = set(backup.given_up)
        # What limits have taken from the log that is left, or left in it, says nothing of the backup.
        self.marks_gone = dict(backup.marks_gone)
        self.put_back_late = set(backup.put_back_late)
        self.taken_back = set(backup.taken_back)
        for attempt in chosen:  # the ledger row names it still
            self.take_begun(attempt)
        self.take_newer_unsettled()  # the ledger row may have been lost since

    @property
    def looked_before_rewind(self) -> bool:
        """Whether the flusher's step that is under way began before a rewind."""
        return 0 < MACHINE.looked_us < self.rewound_us

    def lacks_records(self, target: str) -> bool:
        """Whether a record is missing by a limit: `marks_gone`, or the first of two rewinds has deleted it.

        See `Judge.two_rewinds`.
        """
        if self.marks_gone:
            return True
        row, newest = self._judge.read_ledger(target), max(self.recorded(target), default=-1)
        lacking = range(newest + 1, row.flushed + 1) if row is not None else ()
        return not self._judge.two_rewinds.isdisjoint(lacking)

    def put_marks_back(self) -> None:
        """Do as the error says at which the flush stops over `marks_gone`."""
        for path, data in self.marks_gone.items():
            if not self.log.has(path):  # a flusher has written it again meanwhile
                self.log.put(path, data)
        self.marks_gone.clear()

    def batch(self, epoch: int) -> Batch:
        """Copy what the checkpoint has of an epoch."""
        names = (f"offsets/{epoch}", f"commits/{epoch}")
        files = {path: self.checkpoint.get(path) for path in names if self.checkpoint.has(path)}
        return Batch(self.kept.get(epoch), files)

    def put_checkpoint_back(self) -> None:
        """Do as the error says at which a run stops over an epoch that was flushed from other data."""
        epoch = self.next_epoch
        flushed, is_planned = self.kept.get(epoch), self.checkpoint.has(f"offsets/{epoch}")
        if flushed is None or not is_planned or flushed.offsets == self.planned(epoch):
            return  # no run is to be refused over the same data
        while (batch := self.set_back.get(epoch)) and batch.kept is self.kept.get(epoch):
            for path, data in batch.files.items():
                self.checkpoint.put(path, data, exclusive=False)
            epoch += 1

    def drop_choice(self, path: str) -> None:
        """Do as the error says about a choice behind which Spark went back: what it computed is right."""
        log = self.log.snapshot()
        del log[path.partition("/")[0]][path]
        self.log.restore(log)
        self.take_newer(int(re.findall(r"[0-9]+", path)[0]))

    def move_manifest_away(self, path: str) -> None:
        """Do as the error says about an attempt of another history than the table has (rule 18)."""
        self._judge.diverged(self, self.log.get(path))
        self.log.remove(path)

    def move_away(self) -> None:
        """Do as the warning says about `put_back_late`, and what the first of two rewinds left unrecorded."""
        self.put_back_late |= {
            attempt.manifest
            for epoch in self.taken_back & self._judge.two_rewinds
            if (attempt := self.kept.get(epoch)) and self._passed_unrecorded(epoch)
        }
        for path in filter(self.log.has, self.put_back_late):
            self.log.remove(path)
        self.put_back_late.clear()

    def _passed_unrecorded(self, epoch: int) -> bool:
        """Whether each target has a record of a later epoch, and none of this one."""
        marks = [max(self.recorded(target), default=-1) for target in self._judge.targets]
        return self.record(epoch) is None and all(epoch < mark for mark in marks)

    def vouch_for(self, attempt: Computed) -> None:
        """Note a manifest that stays without a record (rule 18), as an operator vouches for its rows.

        A flusher that stood still recorded late what it had finished, and the operator has gone on from there
        in place of running the rewind once more.
        """
        if attempt.epoch in self.taken_back and self.record(attempt.epoch) is None:
            self.put_back_late.add(attempt.manifest)

    def with_copied_checkpoint(self) -> Site:
        """Return a site that has a copy of the checkpoint elsewhere, and this log."""
        copy = self._copy()
        copy.checkpoint = Volume("simulated://copy", copy._checkpointed, lambda _path: None)
        copy.checkpoint.restore(self.checkpoint.snapshot())
        copy.log = self.log
        return copy

    def with_copied_log(self) -> Site:
        """Return a site that has this checkpoint, and a copy of the log elsewhere."""
        copy = self._copy()
        copy.checkpoint = self.checkpoint
        copy.log = Volume(f"simulated://copy/{self.query_id}", copy._logged, copy._deleted)
        copy.log.restore(self.log.snapshot())
        return copy

    def _copy(self) -> Site:
        copy = Site(self._judge, self.query_id)
        self._judge.sites.remove(copy)
        copy.is_copy = True
        return copy

    def forget(self) -> None:
        """Forget what Spark had completed and will compute again, after its checkpoint was set back."""
        # Spark runs the last epoch again that is planned, and takes those before it for completed.
        again = self.next_epoch
        settled = self.settled()
        for epoch in [epoch for epoch in self.kept if epoch >= again and epoch > settled]:
            self.leave(epoch)

    def leave(self, epoch: int) -> None:
        """Forget what Spark had completed as an epoch."""
        attempt = self.kept.pop(epoch)
        self.given_up -= {(target, epoch) for target in self._judge.targets}
        if attempt is None or any(s.kept.get(epoch) is attempt for s in self._judge.sites):
            return  # a clone has gone on from it
        attempt.committed = False
        attempt.lost = attempt.was_begun  # under a ledger that hid that it was begun

    def take_newer(self, epoch: int) -> None:
        """Take what Spark has completed last as an epoch, where nothing says that an earlier attempt counts.

        The checkpoint was set back behind the epoch, and Spark has computed it again.
        """
        attempt, newer = self.kept[epoch], self.completed.get(epoch)
        if attempt is None or newer is None or newer is attempt:
            return
        if not self.log.has(newer.manifest) or self.log.has(paths.CHOICE.path(epoch)):
            return
        self.leave(epoch)
        self.kept[epoch] = newer
        newer.committed = True

    def take_begun(self, attempt: Computed) -> None:
        """Take an attempt in the place of a later one at its epoch, from the same source offsets."""
        kept = self.kept.get(attempt.epoch)
        if kept in (None, attempt) or kept.offsets != attempt.offsets:
            return
        if self.log.has(attempt.manifest):
            self.leave(attempt.epoch)
            self.kept[attempt.epoch] = attempt
            attempt.committed, attempt.lost = True, False

    def take_newer_unsettled(self) -> None:
        """Do so with every epoch that neither log nor ledger row names as begun."""
        settled = self.settled()
        for epoch in [epoch for epoch in self.kept if epoch > settled]:
            self.take_newer(epoch)

    def claimed(self, above: int, before_us: int) -> bool:
        """Whether a higher generation was claimed before a moment, and the claim is there still."""
        return any(
            self.claimed_us.get(json.loads(self.log.get(path))["run_id"], before_us) < before_us
            for path in self.log.paths(paths.CLAIM.folder)
            if int(re.findall(r"[0-9]+", path)[0]) > above
        )

    def has_proof(self, attempt: Computed | Attempt) -> bool:
        """Whether the log has the proof of an attempt: a clone lacks what was proven in the other one.

        A run leaves it in `proofs/`; `rewind`, which found the attempt whole, in `aside/`.
        """
        note = paths.PROOF.path(Attempt(attempt.epoch, attempt.generation))
        return self.log.has(note) or self.comes_again(attempt)

    def comes_again(self, attempt: Computed | Attempt) -> bool:
        """Whether `rewind` has left a proof in `aside/` that a target gets the attempt."""
        note = paths.PROOF.path(Attempt(attempt.epoch, attempt.generation))
        return any(each.endswith(f"/{note}") for each in self.log.paths(paths.ASIDE))

    def settled(self) -> int:
        """Return the last epoch that the log records, or the ledger row names as begun from it; -1: none.

        What is chosen for all of several targets counts as begun; what one of them lacks for good, no other
        one has to lack.
        """
        rows = filter(None, map(self._judge.read_ledger, self._judge.targets))
        windows = [window for row in rows for window in (row.begun, row.last)]
        manifests = {
            manifest_digest(self.log.get(path)) for path in self.log.paths(paths.MANIFEST.folder)
        }
        begun = (
            begun.epoch
            for window in windows
            if window is not None
            for begun in window.epochs
            if begun.digest in manifests
            or all(self.without_rows(each, begun.epoch) for each in self._judge.targets)
        )
        recorded = (max(self.recorded(target), default=-1) for target in self._judge.targets)
        chosen = (int(re.findall(r"[0-9]+", p)[0]) for p in self.log.paths(paths.CHOICE.folder))
        return max([*recorded, *begun, *chosen], default=-1)

    def record(self, epoch: int) -> dict[str, Any] | None:
        """Return what the log records of a flushed epoch, for any target."""
        found = (self.records(target).get(epoch) for target in self._judge.targets)
        return next((record for record in found if record is not None), None)

    def planned(self, epoch: int) -> str:
        """Return from what data Spark has planned an epoch."""
        return sources(self.checkpoint.get(f"offsets/{epoch}").decode())

    def recorded(self, target: str = "") -> list[int]:
        """Return the epochs that the log records as flushed to a target."""
        return sorted(self.records(target))

    def records(self, target: str = "") -> dict[int, dict[str, Any]]:
        """Return the records by epoch; of two, the one with the later timestamps."""
        folder = paths.of_target(target, paths.FLUSHED.folder)
        windows = [json.loads(self.log.get(path)) for path in self.log.paths(folder)]
        records = [record for window in windows for record in window["epochs"]]
        return {each["epoch"]: each for each in sorted(records, key=lambda r: r["base_us"])}

    def manifests(self, epoch: int) -> set[str]:
        """Return the digests of an epoch's manifests, also of those that `wal.retention` keeps."""
        found = re.compile(
            rf"({paths.MANIFEST.folder}|{paths.RETAINED_MANIFEST.folder}){epoch:020}-"
        )
        return {manifest_digest(self.log.get(p)) for p in self.log.paths() if found.match(p)}

    def without_rows(self, target: str, epoch: int) -> bool:
        """Whether an epoch was given up, or made by a tool of Spark's."""
        made = epoch in self.kept and self.kept[epoch] is None
        return made or (target, epoch) in self.given_up

    # --- targets ----------------------------------------------------------------------------------

    def lacking(self, attempt: Computed) -> frozenset[str]:
        """Return the targets that are still to get an attempt."""
        return frozenset(
            target
            for target in self._judge.targets
            if not attempt.at(target).flushed and (target, attempt.epoch) not in self.given_up
        )

    def has(self, target: str, path: str, but: str = "") -> bool:
        """Whether a target's flusher finds an object, by its first name or by a second one of its own.

        :param but: a name that is about to go.
        """
        kept = path.replace(paths.MANIFEST.folder, paths.RETAINED_MANIFEST.folder)
        names = [path, kept if path.startswith(paths.MANIFEST.folder) else path]
        own = paths.of_target(target, paths.ASIDE)
        names += (name for name in self.log.paths(own) if name.endswith(f"/{path}"))
        return any(name != but and self.log.has(name) for name in names)

    # --- quarantine -------------------------------------------------------------------------------

    def quarantined(self, target: str, attempt: Computed) -> set[str]:
        """Return the keys of an attempt's rows that are in a target's quarantine."""
        folder = paths.of_target(target, paths.QUARANTINED.folder)
        found: set[str] = set()
        for path in self.log.paths(folder):
            if int(path.rpartition("/")[2][:20]) == attempt.epoch:
                rows = refused_in(self.log.get(path))
                found |= {key for key, value in rows.items() if value == attempt.value}
        return found

    def _checkpointed(self, path: str, data: bytes) -> None:
        if path.startswith("commits/"):
            epoch, run = int(path.rpartition("/")[2]), body_run(data)
            attempt = self._judge.attempts.get((epoch, run or ""))
            if attempt is not None and not attempt.published:
                self._judge.steps.replayed(attempt)
            self._judge.committed(self, epoch, run)

    def _logged(self, path: str, data: bytes) -> None:
        self._judge.steps.created(self, path, data)
        if path.startswith("quarantine/"):
            for key, value in refused_in(data).items():
                self.entries[target_of(path), value, key] = MACHINE.true_us
        elif path.startswith(paths.MANIFEST.folder):
            self._judge.published(self, data)
            self._put_back(path)
        elif path.startswith(paths.CLAIM.folder):
            self.claimed_us[json.loads(data)["run_id"]] = MACHINE.true_us
        elif path.startswith(paths.FLUSHED.folder):
            self.taken_back -= {*_epochs_of(path)}
            self._judge.recorded(self, _epochs_of(path))
        elif path.startswith(paths.DECISION.folder):
            target = target_of(path)
            epoch = int(path.rpartition("/")[2][:20])
            self.given_up.add((target, epoch))
            self.since_us[target, epoch] = MACHINE.true_us

    def _put_back(self, path: str) -> None:
        """Note a manifest that a rewind puts back late."""
        epoch = int(re.findall(r"[0-9]+", path)[0])
        rewinds = MACHINE.thread is not None and MACHINE.thread.rewind is not None
        copied = self.log.has(paths.RETAINED_RECORD.path(epoch))
        if rewinds and not copied and self.record(epoch) is None:
            self.put_back_late.add(path)

    def _deleted(self, path: str) -> None:
        """Tell the judge when the last name of a segment or a manifest goes; both may have a second one."""
        self._judge.steps.deleted(self, path)
        if self.looked_before_rewind and path.startswith(
            (paths.MANIFEST.folder, paths.SEGMENT.folder, paths.RETAINED_MANIFEST.folder)
        ):
            self.trimmed_late.add(int(re.findall(r"[0-9]+", path)[0]))
        if path.startswith((paths.FLUSHED.folder, paths.RETAINED_RECORD.folder)):
            self._judge.rewind_deletes(_epochs_of(path))
        if path.startswith("quarantine/"):
            self._judge.violate(f"{path} is deleted, which has the only copy of its rows")
        elif MANIFEST.search(path):
            data = self.log.get(path)
            name = f"{paths.MANIFEST.folder}{path.rpartition('/')[2]}"
            same = {p for p in self.log.paths() if MANIFEST.search(p) and self.log.get(p) == data}
            lost_to = self._lost_to(name, path, same)
            if lost_to:
                self._judge.manifest_deleted(self, path, data, lost_to)
        elif path.startswith(paths.FLUSHED.folder):
            self._record_deleted(path)
        elif path.startswith((paths.CHOICE.folder, paths.PROOF.folder)):
            attempt = self.kept.get(int(path.partition("/")[2][:20]))
            if attempt is not None and self.log.has(attempt.manifest) and _was_listed(attempt):
                self._judge.violate_step(f"{path} is deleted before {attempt.manifest}")
            self._judge.steps.choice_goes(self, path)
        else:
            _, found, name = path.partition(paths.SEGMENT.folder)
            segment = f"{found}{name}"
            lost_to = self._lost_to(segment, path) if found else frozenset()
            if lost_to:
                self._judge.deleted(self, segment, lost_to)

    def _record_deleted(self, path: str) -> None:
        epochs = _epochs_of(path)
        self._judge.record_deleted(self, epochs)
        rows = [self._judge.read_ledger(target) for target in self._judge.targets]
        made = [row.flushed for row in rows if row is not None and row.last is None]
        threads = [t for process in MACHINE.processes.values() for t in process.threads]
        made += [t.rewind.to for t in threads if t.rewind is not None]
        forgotten = self._judge.newest_ever(self, target_of(path)) - trim.RECORDS_KEPT
        if MACHINE.looked_us and any(
            flushed in epochs and flushed <= forgotten for flushed in made
        ):
            self.marks_gone[path] = self.log.get(path)

    def _lost_to(self, path: str, gone: str, among: set[str] | None = None) -> frozenset[str]:
        """Return the targets whose last name of an object goes.

        :param gone: the name that goes.
        :param among: the names that stand for the same bytes; None: all do.
        """
        shared = {path, path.replace(paths.MANIFEST.folder, paths.RETAINED_MANIFEST.folder)}
        aside = {name for name in self.log.paths(paths.ASIDE) if name.endswith(f"/{path}")}
        lost = set()
        for target in self._judge.targets:
            own = paths.of_target(target, paths.ASIDE)
            names = shared | {name for name in aside if name.startswith(own)}
            left = {n for n in names - {gone} if self.log.has(n) and (among is None or n in among)}
            if gone in names and not left:
                lost.add(target)
        return frozenset(lost)


def target_of(path: str) -> str:
    """Return the target whose object it is, where each of several has a folder; empty: the only one."""
    return "" if path.count("/") == 1 else path.split("/")[1]


def _was_listed(attempt: Computed) -> bool:
    """Whether who deletes has listed manifests since this one was made last (rule 18).

    Whoever stood still does not know of one that was put back meanwhile for a rewind.
    """
    thread = MACHINE.thread
    assert thread is not None
    return attempt.published_us <= thread.listed.get("manifests", 0)


def _epochs_of(path: str) -> range:
    """Return the epochs of a record in `flushed/`, or of what is retained."""
    last, *others = (int(number) for number in re.findall(r"[0-9]{20}", path))
    return range(others[0] if others else last, last + 1)
