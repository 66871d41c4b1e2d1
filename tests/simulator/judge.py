"""The judge: knows what Spark has truly completed, and looks at every write, deletion and ledger update.

It uses none of the sink's code. A violation is noted, not raised, since it is found in the middle of the
product's calls; the history looks at the notes after every step.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.protocol.raw import manifest_digest, parsed
from tests.simulator.machine import MACHINE
from tests.simulator.rows import SHARED
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Window
from wal_sink.model.manifest import Attempt

if TYPE_CHECKING:
    from tests.simulator.site import Site


@dataclass(eq=False)
class Computed:
    """What one run computed of one epoch: an attempt, as the judge knows it."""

    epoch: int
    run_id: str
    value: int
    rows: dict[str, int]
    written: tuple[str, ...] = ()
    """The segments that its tasks have written."""
    segments: tuple[str, ...] = ()
    """Those that its manifest names, and does not hold."""
    manifest: str = ""
    """The path of its manifest."""
    offsets: str = ""
    """The data of the source from which it was computed, as its manifest says."""
    published: bool = False
    """Whether its manifest was created."""
    committed: bool = False
    """Whether its run has written `commits/<epoch>`."""
    lost: bool = False
    """Whether the history to which it belonged was left, by restoring a backup."""
    excused: bool = False
    """Whether it was flushed by a choice that the flusher called unproven."""
    arrived: set[str] = field(default_factory=set)
    """The keys that the target has acknowledged."""
    begun_us: int = 0
    """When it was begun last."""
    flushed: bool = False
    """Whether the ledger says that it is flushed."""
    fenced_us: int | None = None
    """When its run was fenced afterwards, in order: then the run has left its proof."""

    @property
    def name(self) -> str:
        """Return how messages call it."""
        return f"epoch {self.epoch} of run {self.run_id[:8]}"


_MOST_AHEAD_S = 120.0
"""How far in the future a write timestamp may lie; a host's clock may be a day ahead."""


class Judge(logging.Handler):
    """Judges one history; a handler of the product's log, which says when a choice is not proven."""

    def __init__(self, counts: Counter[str]) -> None:
        super().__init__(logging.WARNING)
        self.violations: list[str] = []
        self.sites: list[Site] = []
        self.counts = counts
        self.cloned = False
        """Whether two histories share one ledger row: then the table may hold rows of both."""
        self.doubted: dict[int, int] = {}
        """Epochs whose choice the flusher called unproven, and since when it had looked."""
        self.read_ledger: Callable[[], LedgerState | None] = lambda: None
        """Reads the ledger row of the query."""
        self.timestamps_lost_us = 0
        """When the ledger row was lost, or shadowed as an epoch was begun: a restored log does not know the
        timestamps used till then."""
        self.attempts: dict[tuple[int, str], Computed] = {}
        self._by_value: list[Computed] = []
        self._by_digest: dict[str, Computed] = {}
        self._by_segment: dict[str, Computed] = {}

    def violate(self, what: str) -> None:
        """Note a violation."""
        self.violations.append(what)

    def emit(self, record: logging.LogRecord) -> None:
        """Hear that a choice is not proven."""
        text = record.getMessage()
        if "unproven" in text and (found := re.search(r"at epoch (\d+)", text)):
            process = MACHINE.current
            self.doubted[int(found[1])] = process.looked_us if process is not None else 0

    # --- what runs do -----------------------------------------------------------------------------

    def next_value(self) -> int:
        """Return a value that no other attempt has."""
        return len(self._by_value)

    def computed(self, attempt: Computed) -> None:
        """Learn what a run has computed."""
        self.attempts[attempt.epoch, attempt.run_id] = attempt
        self._by_value.append(attempt)

    def published(self, data: bytes) -> None:
        """Learn which file is the manifest of an attempt."""
        manifest = parsed(data)
        attempt = self.attempts[manifest["epoch"], manifest["run_id"]]
        attempt.published = True
        attempt.offsets = sources(manifest["offsets"])
        attempt.manifest = paths.MANIFEST.path(Attempt(attempt.epoch, manifest["generation"]))
        attempt.segments = tuple(
            segment["path"] for segment in manifest["segments"] if "data" not in segment
        )
        self._by_digest[manifest_digest(data)] = attempt
        for path in attempt.segments:
            self._by_segment[path] = attempt

    def committed(self, site: Site, epoch: int, run_id: str | None) -> None:
        """Learn that Spark has completed an epoch.

        :param run_id: who wrote `commits/<epoch>`; None: a tool of Spark's, so the epoch has no rows.
        """
        if site.is_copy:
            self.violate(f"epoch {epoch} was completed by a run on a copy")
        attempt = self.attempts[epoch, run_id] if run_id is not None else None
        if max(site.checkpoint.numbers("commits"), default=-1) > epoch:
            return  # Spark purged the file, and has gone on from what another run had computed
        site.completed[epoch] = attempt
        if epoch in site.kept:  # it was completed before its commit file was deleted
            if attempt is site.kept[epoch] or epoch <= site.settled():
                return
            site.leave(epoch)
        site.kept[epoch] = attempt
        if attempt is None:
            return
        attempt.committed = True
        if not attempt.published and (flushed := self._replayed(site, epoch)) is not None:
            site.kept[epoch] = flushed
            flushed.lost = False
            return
        if not attempt.published:
            self.violate(f"Spark completed {attempt.name}, which is not published")
        gone = [path for path in (*attempt.segments, attempt.manifest) if not site.log.has(path)]
        if gone and not attempt.flushed:
            self.violate(f"Spark completed {attempt.name}, of which {gone} is gone from the log")

    def _replayed(self, site: Site, epoch: int) -> Computed | None:
        """Return what is flushed as an epoch that Spark merely replays; None: it is flushed from other data.

        A backup that was made between manifest and `commits/N` has the manifest. If the target has its rows,
        the restored log records that, and Spark computes N again from the plan that was restored, too.
        """
        record = site.record(epoch)
        flushed = self._by_digest.get(record.get("digest", "")) if record else None
        if flushed is None or flushed.offsets != site.planned(epoch):
            return None
        return flushed

    def left(self, site: Site, attempt: Computed) -> None:
        """Learn that a run has ended in order before it published an attempt: its segments are garbage."""
        there = [path for path in attempt.written if site.log.has(path)]
        if there and not attempt.published:
            self.violate(f"{attempt.name} was refused, and its segments stay: {there}")

    # --- what the flushers do ---------------------------------------------------------------------

    def written(self, key: str, value: int) -> None:
        """Look at a row that the target has taken."""
        attempt = self._by_value[value]
        if not (attempt.committed or attempt.excused):
            self.violate(f"row {key} of {attempt.name} is visible, which Spark has not completed")
        attempt.arrived.add(key)

    def begun(self, window: Window) -> None:
        """Look at a window that was begun: each epoch has to be the attempt that Spark kept."""
        for begun in window.epochs:
            ahead_s = (begun.base_us - MACHINE.true_us) / 1_000_000
            if ahead_s > _MOST_AHEAD_S:
                self.violate(f"epoch {begun.epoch} is written as of {ahead_s:.0f} s from now")
            attempt = self._by_digest.get(begun.digest) if begun.manifest else None
            if attempt is not None:
                attempt.begun_us = MACHINE.true_us
            if begun.manifest and attempt is None:
                self.violate(f"{begun.manifest} was begun, which no run has published")
            elif attempt is None:
                if not any(site.without_rows(begun.epoch) for site in self.sites):
                    self.violate(f"epoch {begun.epoch} was begun without rows, and has some")
            elif not any(site.kept.get(begun.epoch) is attempt for site in self.sites):
                self._begun_of_another(attempt)

    def _begun_of_another(self, attempt: Computed) -> None:
        """An attempt was begun that Spark has not kept: allowed only where nothing could tell."""
        site = next((site for site in self.sites if attempt.epoch in site.kept), None)
        if site is None:
            self.violate(f"{attempt.name} was begun before Spark has completed the epoch")
            return
        kept = site.kept[attempt.epoch]
        if attempt.epoch not in self.doubted:
            self.violate(
                f"{attempt.name} was begun, and Spark kept {kept.name if kept else 'none'}"
            )
            return
        proven_us = kept.fenced_us if kept is not None else None
        if proven_us is not None and proven_us < self.doubted[attempt.epoch]:
            self.violate(
                f"{attempt.name} was begun unproven, although {kept.name if kept else ''} is proven"
            )
        self.counts["choices unproven and wrong"] += 1
        attempt.excused = True
        site.kept[attempt.epoch] = attempt

    def finished(self, window: Window, table: dict[str, int]) -> None:
        """Look at a window that was finished: all of its rows are there, and the newest epoch wins."""
        for begun in window.epochs:
            attempt = self._by_digest.get(begun.digest) if begun.manifest else None
            if attempt is None:
                continue
            given_up = any(begun.epoch in site.given_up for site in self.sites)
            if attempt.arrived < set(attempt.rows) and not given_up:
                missing = sorted(set(attempt.rows) - attempt.arrived)
                self.violate(f"{attempt.name} counts as flushed without its rows {missing}")
            for key, value in attempt.rows.items():
                if key != SHARED and table.get(key) != value and not given_up:
                    self.violate(f"{attempt.name} is flushed, and {key} shows {table.get(key)}")
            attempt.flushed = True

    def rewound(self, site: Site, flushed: int) -> None:
        """Learn that the ledger row was set back: what is above is to be flushed again.

        A clone has flushed what it had for itself, and trims it.
        """
        for epoch, attempt in list(site.kept.items()):
            newer = site.completed.get(epoch)
            if attempt is None or epoch <= flushed:
                continue
            attempt.flushed = attempt.flushed and self.cloned
            if newer is not None and newer is not attempt and site.log.has(newer.manifest):
                # The checkpoint was set back behind the mark, and Spark has computed the epoch again.
                site.leave(epoch)
                site.kept[epoch] = newer
                newer.committed = True
        if not self.cloned:
            site.forget()  # behind what the row said, where it followed another history
        self.conceded(site, flushed)

    def conceded(self, site: Site, upto: int) -> None:
        """Learn that the operator vouches for the rows up to an epoch; what the target lacks is lost."""
        for epoch, attempt in site.kept.items():
            if attempt is None or epoch > upto:
                continue
            attempt.flushed = True
            if attempt.arrived < set(attempt.rows):
                self.counts["epochs that a restored target lacks, and the log"] += 1
                site.given_up.add(epoch)

    def target_restored(self, table: dict[str, int]) -> None:
        """Learn that the table has lost rows."""
        shown = self._by_value[table[SHARED]].epoch if SHARED in table else -1
        for attempt in self._by_value:
            attempt.arrived = {
                key
                for key in attempt.arrived
                if (attempt.epoch <= shown if key == SHARED else key in table)
            }

    def deleted(self, site: Site, path: str) -> None:
        """Look at a segment of the log that is about to be deleted."""
        self._deleted(site, path, self._by_segment.get(path))

    def manifest_deleted(self, site: Site, path: str, data: bytes) -> None:
        """Look at a manifest, which may hold rows, that is about to be deleted."""
        attempt = self._by_digest.get(manifest_digest(data))
        self._deleted(site, path, attempt)

    def _deleted(self, site: Site, path: str, attempt: Computed | None) -> None:
        if attempt is None or attempt.flushed or attempt.epoch in site.given_up:
            return
        if site.kept.get(attempt.epoch) is attempt and not self._is_replay(site, attempt):
            self.violate(f"{path} is deleted; Spark kept {attempt.name}, and it is not flushed")

    def _is_replay(self, site: Site, attempt: Computed) -> bool:
        """Whether what Spark kept repeats, from the same data, what was flushed before a backup was restored.

        The flusher records that epoch as the ledger row says, and the repetition goes (rule 23).
        """
        record = site.record(attempt.epoch)
        flushed = self._by_digest.get(record.get("digest", "")) if record else None
        if flushed is None or not (flushed.lost and flushed.flushed):
            return False
        if flushed.offsets != attempt.offsets:
            return False
        site.kept[attempt.epoch] = flushed
        flushed.lost = False
        return True

    # --- the end ----------------------------------------------------------------------------------

    def complete(self, site: Site, table: dict[str, int]) -> None:
        """Look at the table when all is flushed: every row once, no other, and the newest epoch wins."""
        kept = {e: a for e, a in site.kept.items() if a is not None and e not in site.given_up}
        for epoch, attempt in kept.items():
            for key, value in attempt.rows.items():
                if key != SHARED and table.get(key) != value:
                    self.violate(
                        f"row {key} of epoch {epoch} is missing: {table.get(key)} is there"
                    )
        allowed = {id(attempt) for attempt in kept.values()}
        for key, value in table.items():
            found = self._by_value[value]
            allowed_here = id(found) in allowed or found.lost or found.epoch in site.given_up
            if not allowed_here and not self.cloned:
                self.violate(f"row {key} of {found.name} is there, which Spark did not keep")
        newest = max((e for e, a in kept.items() if SHARED in a.rows), default=None)
        if newest is not None and not self.cloned:
            shown = self._by_value[table[SHARED]] if SHARED in table else None
            stays = shown is not None and (
                shown.epoch in site.given_up
                or (shown.lost and shown.begun_us > kept[newest].begun_us)
                or (shown.lost and shown.begun_us <= self.timestamps_lost_us)
            )
            if shown is not kept[newest] and not stays:
                self.violate(f"the newest value of {SHARED} is of {kept[newest].name}, not {shown}")


def sources(plan: str) -> str:
    """Return what a file of `offsets/` says of the sources, without the time of the batch."""
    return plan.split("\n", 2)[2]


def body_run(data: bytes) -> str | None:
    """Return which run wrote a file of `commits/`; None: a tool."""
    found: dict[str, Any] = json.loads(data.split(b"\n")[1])
    return found.get("by")
