"""A checkpoint with its log, where they lie, and what Spark has truly completed there."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from tests.protocol.raw import manifest_digest
from tests.simulator.judge import Computed, Judge, body_run, sources
from tests.simulator.process import Process
from tests.simulator.volume import Files, Mount, Volume
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.model import paths
from wal_sink.wal.log import Log

MANIFEST = re.compile(
    rf"(?:^|/)(?:{paths.MANIFEST.folder}|{paths.RETAINED_RECORD.folder})[0-9]+-[0-9]+\.json$"
)
"""The path of a manifest, or of its second name: `aside/` has first names below it."""


class Backup(NamedTuple):
    """A copy of a site, made in an instant."""

    checkpoint: dict[str, Files]
    log: dict[str, Files]
    kept: dict[int, Computed | None]
    completed: dict[int, Computed | None]
    given_up: set[int]


class Site:
    """One query's checkpoint and log."""

    def __init__(self, judge: Judge, query_id: str) -> None:
        self.query_id = query_id
        self.kept: dict[int, Computed | None] = {}
        """What Spark has completed, by epoch; None: an epoch without rows that a tool of Spark's made."""
        self.completed: dict[int, Computed | None] = {}
        """What Spark has completed last, also behind what the ledger says is flushed."""
        self.given_up: set[int] = set()
        """The epochs that an operator has given up."""
        self.is_copy = False
        """Whether it must not be used, as it is a copy of another one."""
        self._judge = judge
        self.checkpoint = Volume("simulated://checkpoint", self._checkpointed, lambda _path: None)
        self.log = Volume(f"simulated://log/{query_id}", self._logged, self._deleted)
        judge.sites.append(self)

    def open_checkpoint(self, process: Process) -> Checkpoint:
        """Open the checkpoint in a process."""
        return Checkpoint(Mount(self.checkpoint, process))

    def open_log(self, process: Process) -> Log:
        """Open the log in a process."""
        return Log(Mount(self.log, process))

    def backup(self) -> Backup:
        """Copy everything."""
        return Backup(
            self.checkpoint.snapshot(),
            self.log.snapshot(),
            dict(self.kept),
            dict(self.completed),
            set(self.given_up),
        )

    def restore(self, backup: Backup) -> None:
        """Put a copy in the place of everything; what Spark had completed since is left."""
        self.checkpoint.restore(backup.checkpoint)
        self.log.restore(backup.log)
        for epoch, attempt in self.kept.items():
            if attempt is not None and backup.kept.get(epoch) is not attempt:
                attempt.lost = True
        self.kept, self.completed = dict(backup.kept), dict(backup.completed)
        for attempt in self.kept.values():
            if attempt is not None:
                attempt.committed = True  # the checkpoint may have been set back since
        self.given_up = set(backup.given_up)

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
        commits, offsets = self.checkpoint.numbers("commits"), self.checkpoint.numbers("offsets")
        # Spark runs the last epoch again that is planned, and takes those before it for completed.
        again = max([*offsets, *(epoch + 1 for epoch in commits)], default=0)
        settled = self.settled()
        for epoch in [epoch for epoch in self.kept if epoch >= again and epoch > settled]:
            self.leave(epoch)

    def leave(self, epoch: int) -> None:
        """Forget what Spark had completed as an epoch."""
        attempt = self.kept.pop(epoch)
        self.given_up.discard(epoch)
        if attempt is None or any(s.kept.get(epoch) is attempt for s in self._judge.sites):
            return  # a clone has gone on from it
        attempt.committed = False
        attempt.lost = bool(attempt.arrived)  # under a ledger that hid that it was begun

    def settled(self) -> int:
        """Return the last epoch that the log records, or the ledger row names as begun from it; -1: none."""
        mark = self._judge.read_ledger()
        windows = (mark.begun, mark.last) if mark is not None else ()
        manifests = {
            manifest_digest(self.log.get(path)) for path in self.log.paths(paths.MANIFEST.folder)
        }
        begun = (
            begun.epoch
            for window in windows
            if window is not None
            for begun in window.epochs
            if begun.digest in manifests or self.without_rows(begun.epoch)
        )
        return max([*self.recorded(), *begun], default=-1)

    def record(self, epoch: int) -> dict[str, Any] | None:
        """Return what the log records of a flushed epoch."""
        return self._records().get(epoch)

    def planned(self, epoch: int) -> str:
        """Return from what data Spark has planned an epoch."""
        return sources(self.checkpoint.get(f"offsets/{epoch}").decode())

    def recorded(self) -> list[int]:
        """Return the epochs that the log records as flushed."""
        return sorted(self._records())

    def _records(self) -> dict[int, dict[str, Any]]:
        """Return the records by epoch; of two, the one with the later timestamps."""
        windows = [json.loads(self.log.get(path)) for path in self.log.paths(paths.FLUSHED.folder)]
        records = [record for window in windows for record in window["epochs"]]
        return {each["epoch"]: each for each in sorted(records, key=lambda r: r["base_us"])}

    def without_rows(self, epoch: int) -> bool:
        """Whether an epoch was given up, or made by a tool of Spark's."""
        return epoch in self.given_up or (epoch in self.kept and self.kept[epoch] is None)

    def _checkpointed(self, path: str, data: bytes) -> None:
        if path.startswith("commits/"):
            self._judge.committed(self, int(path.rpartition("/")[2]), body_run(data))

    def _logged(self, path: str, data: bytes) -> None:
        if path.startswith(paths.MANIFEST.folder):
            self._judge.published(data)
        elif (decision := paths.DECISION.parse(path)) is not None:
            self.given_up.add(decision.epoch)

    def _deleted(self, path: str) -> None:
        """Tell the judge when the last name of a segment or a manifest goes; both may have a second one."""
        if MANIFEST.search(path):
            data = self.log.get(path)
            copies = [p for p in self.log.paths() if p != path and MANIFEST.search(p)]
            if not any(self.log.get(other) == data for other in copies):
                self._judge.manifest_deleted(self, path, data)
            return
        _, found, name = path.partition(paths.SEGMENT.folder)
        segment = f"{found}{name}"
        names = [segment, *(p for p in self.log.paths(paths.ASIDE) if p.endswith(segment))]
        if found and not any(self.log.has(other) for other in names if other != path):
            self._judge.deleted(self, segment)
