"""The judge: knows what Spark has truly completed, and looks at every write, deletion and ledger update.

It uses none of the sink's code. A violation is noted, not raised, since it is found in the middle of the
product's calls; the history looks at the notes after every step.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tests.protocol.raw import last_us, manifest_digest, parsed, sources
from tests.simulator.attempts import Computed, Table, newest
from tests.simulator.machine import MACHINE
from tests.simulator.rows import INVALID, REFUSED, SHARED_KEYS, refused_in
from tests.simulator.steps import Steps
from tests.simulator.swarm import acted
from tests.simulator.updates import Updates
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Window
from wal_sink.model.manifest import Attempt

if TYPE_CHECKING:
    from tests.simulator.site import Site


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
        self.future = False
        """Whether clocks of hosts and of targets may both be wrong."""
        self.doubted: dict[int, int] = {}
        """Epochs whose choice the flusher called unproven, and since when it had looked."""
        self.read_ledger: Callable[[str], LedgerState | None] = lambda _target: None
        """Reads the ledger row of the query for a target."""
        self.targets: tuple[str, ...] = ("",)
        self.two_rewinds: set[int] = set()
        """Epochs of which a rewind has deleted a record, or what is retained, after another one had moved its
        row: a limit that is documented, docs/protocol/operators.md."""
        self.timestamps_lost_us = 0
        """When the ledger row was lost, or shadowed as an epoch was begun: a restored log does not know the
        timestamps used till then."""
        self.set_back: dict[str, list[tuple[int, int]]] = {}
        """Of targets whose timestamps went back from the future: when, and which one then was the last."""
        self.attempts: dict[tuple[int, str], Computed] = {}
        self.clocks_agree = True
        """Whether no clock jumps in this history."""
        self.clocks_set_us = 0
        """When a clock has jumped last."""
        self.old_listings = False
        """Whether hosts may have answered listings from a cache."""
        self.steps = Steps(self)
        self.updates = Updates(self)
        self._said: set[tuple[str, int]] = set()
        """Targets, each with an epoch that an operator was told it lacks, or has vouched for."""
        self.ends = False
        """Whether all that is left is to do as errors say: the first remedy has to work."""
        self.retention_s = 0.0
        """For how long what is flushed has to stay in the log; 0: not at all, or clocks are wrong."""
        self.max_bytes = 0
        """`wal.maxBytes`; 0: no budget."""
        self.disasters: set[str] = set()
        """What was restored, lost or shadowed. Without log and ledger row no used timestamp is known."""
        self.row_lost_us: dict[str, int] = {}
        """When the ledger row of a target was lost or restored last."""
        self._dated: dict[tuple[str, int], tuple[str, int]] = {}
        """Which row a target has got with which timestamp."""
        self._begun_last: dict[str, Window] = {}
        """What each target's ledger row has named as begun last."""
        self.by_value: list[Computed] = []
        """What runs have computed, by the value of its rows."""
        self._by_digest: dict[str, Computed] = {}
        self._by_segment: dict[str, Computed] = {}

    def violate(self, what: str) -> None:
        """Note a violation."""
        self.violations.append(what)

    def violate_step(self, what: str, acts: int = 1) -> None:
        """Note what a rule forbids of a single step, while others have acted on the history at most once.

        After a second act a step may follow from what the first one has left, as documented: to judge it
        would take the protocol a second time. What it does to the rows is judged in every history.

        :param acts: how often they may have acted: before an attach there was a detach.
        """
        if acted(self.counts) + self.counts["rewinds cut short"] <= acts:
            self.violate(what)

    def emit(self, record: logging.LogRecord) -> None:
        """Hear that a choice is not proven."""
        text = record.getMessage()
        if "unproven" in text and (found := re.search(r"at epoch (\d+)", text)):
            self.doubted[int(found[1])] = MACHINE.looked_us

    # --- what runs do -----------------------------------------------------------------------------

    def next_value(self) -> int:
        """Return a value that no other attempt has."""
        return len(self.by_value)

    def computed(self, attempt: Computed) -> None:
        """Learn what a run has computed."""
        self.attempts[attempt.epoch, attempt.run_id] = attempt
        self.by_value.append(attempt)

    def published(self, site: Site, data: bytes) -> None:
        """Learn which file is the manifest of an attempt; its run had no higher claim before it (rule 3)."""
        manifest = parsed(data)
        attempt = self.attempts[manifest["epoch"], manifest["run_id"]]
        began_us = MACHINE.thread.since_us if MACHINE.thread is not None else 0
        if not attempt.published and site.claimed(above=manifest["generation"], before_us=began_us):
            self.violate(
                f"{attempt.name} is published; a newer run had claimed before its batch began"
            )
        self.steps.published(site, attempt.epoch)
        attempt.published, attempt.published_us = True, MACHINE.true_us
        attempt.generation = manifest["generation"]
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
            # Spark purged the file, and has gone on from what another run had computed.
            self._came_late(attempt, site.kept.get(epoch))
            return
        site.committed_us[epoch] = MACHINE.true_us
        site.completed[epoch] = attempt
        if epoch in site.kept:  # it was completed before its commit file was deleted
            if attempt is site.kept[epoch] or epoch <= site.settled():
                return
            site.leave(epoch)
        site.kept[epoch] = attempt
        if attempt is None:
            return
        attempt.committed = True
        self.steps.completed(site, attempt)
        # As it was published, its run has looked once more (rule 7).
        if attempt.published and site.claimed(attempt.generation, attempt.published_us):
            self.violate(
                f"Spark completed {attempt.name}, whose run was overtaken as it was published"
            )
        if not attempt.published and (flushed := self._replayed(site, epoch)) is not None:
            site.kept[epoch] = flushed
            flushed.lost, flushed.committed = False, True  # also where the checkpoint was set back
            return
        if not attempt.published:
            self.violate(f"Spark completed {attempt.name}, which is not published")
        gone = [path for path in (*attempt.segments, attempt.manifest) if not site.log.has(path)]
        if gone and site.lacking(attempt):
            self.violate(f"Spark completed {attempt.name}, of which {gone} is gone from the log")
        self.recorded(site, range(epoch, epoch + 1))

    def _came_late(self, attempt: Computed | None, kept: Computed | None) -> None:
        """Note that Spark had completed another attempt, whose run has not published a later epoch."""
        if attempt is not None and kept is not None:
            attempt.late = not any(
                each.published and each.run_id == kept.run_id and each.epoch > kept.epoch
                for each in self.by_value
            )

    def _replayed(self, site: Site, epoch: int) -> Computed | None:
        """Return what is flushed as an epoch that Spark merely replays; None: it is flushed from other data.

        A backup that was made between manifest and `commits/N` has the manifest. If the target has its rows,
        the restored log records that, and Spark computes N again from the plan that was restored, too.

        A rewind may have deleted the record since the run has looked; what comes again is the same attempt.
        """
        record = site.record(epoch)
        again = (each for each in self.by_value if each.epoch == epoch and site.comes_again(each))
        flushed = self._by_digest.get(record.get("digest", "")) if record else next(again, None)
        if flushed is None or flushed.offsets != site.planned(epoch):
            return None
        return flushed

    def left(self, site: Site, attempt: Computed) -> None:
        """Learn that a run has ended in order before it published an attempt: its segments are garbage."""
        there = [path for path in attempt.written if site.log.has(path)]
        if there and not attempt.published:
            self.violate(f"{attempt.name} was refused, and its segments stay: {there}")

    # --- what the flushers do ---------------------------------------------------------------------

    def written(self, target: str, key: str, value: int, us: int) -> None:
        """Look at a row that the target has taken, with its timestamp."""
        attempt = self.by_value[value]
        looked_us = MACHINE.looked_us
        dated = (key, value)
        # What was begun in a row that is lost has the timestamps of that row.
        if looked_us >= self.row_lost_us.get(target, 0):
            dated = self._dated.setdefault((target, us), dated)
        if dated != (key, value) and self._knows_dates:
            self.violate(f"row {key} of {attempt.name} has the timestamp of row {dated}")
        if not (attempt.committed or attempt.excused):
            self.violate(f"row {key} of {attempt.name} is visible, which Spark has not completed")
        given_up = [
            (target, attempt.epoch) in site.given_up
            and looked_us > site.since_us.get((target, attempt.epoch), looked_us)
            for site in self.sites
            if site.kept.get(attempt.epoch) is attempt
        ]
        if given_up and all(given_up):  # a clone does not have the other one's decisions
            self.violate(f"row {key} of {attempt.name} is written, which was given up before")
        if not any(us in each for each in attempt.at(target).timestamps):
            self.violate(f"row {key} of {attempt.name} is sent with a timestamp that was not begun")
        self.updates.written(target, key, attempt)
        attempt.at(target).keys.add(key)
        attempt.at(target).gone.discard(key)

    def ledger_created(self, target: str) -> None:
        """Look at a ledger row that is new: a flusher makes it once there is something to flush."""
        self.updates.nothing_recorded(target, 0, "makes the ledger row")
        if MACHINE.looked_us:
            self.steps.listed("makes the ledger row", MACHINE.looked_us)
        if MACHINE.looked_us and not any(site.kept for site in self.sites):
            self.violate(
                f"the ledger row of {target or 'the query'} is made, and nothing is to be flushed"
            )

    def begun(self, target: str, window: Window) -> None:
        """Look at a window that was begun: each epoch has to be the attempt that Spark kept."""
        self._dates(target, window)
        self.updates.begins(target, window)
        for begun in window.epochs:
            ahead_s = (begun.base_us - MACHINE.true_us) / 1_000_000
            if ahead_s > _MOST_AHEAD_S and not self.future:
                self.violate(f"epoch {begun.epoch} is written as of {ahead_s:.0f} s from now")
            attempt = self._by_digest.get(begun.digest) if begun.manifest else None
            if attempt is not None:
                arrival = attempt.at(target)
                arrival.begun_us = MACHINE.true_us
                used_us = range(begun.base_us, begun.last_us + 1)
                arrival.timestamps.setdefault(used_us, MACHINE.true_us)
            if begun.manifest and attempt is None:
                self.violate(f"{begun.manifest} was begun, which no run has published")
            elif attempt is None:
                if not any(site.without_rows(target, begun.epoch) for site in self._acting):
                    self.violate(f"epoch {begun.epoch} was begun without rows, and has some")
            elif not any(site.kept.get(begun.epoch) is attempt for site in self._acting):
                self._begun_of_another(target, attempt)

    @property
    def _acting(self) -> list[Site]:
        """The site of whoever writes now: a clone goes by its own log."""
        site = MACHINE.thread.site if MACHINE.thread is not None else None
        return [site] if site in self.sites else self.sites

    def row_made(self, target: str, row: LedgerState) -> None:
        """Look at a ledger row that an operator has made."""
        last = self._begun_last.get(target)
        records = self.sites[0].records(target).values() if self.clocks_agree else ()
        used_us = [last_us(each) for each in records] + self.updates.used_since_reset(target)
        if self._knows_dates:
            self.updates.row_made(target, row, max([last.last_us if last else 0, *used_us]))

    @property
    def _knows_dates(self) -> bool:
        return "shadow" not in self.disasters and not {"log", "ledger"} <= self.disasters

    def _dates(self, target: str, window: Window) -> None:
        """Look at the timestamps of a window: they grow, and none was used before."""
        last = self._begun_last.get(target)
        used_us = last.last_us if last is not None else 0
        for begun in window.epochs:
            if begun.base_us <= used_us and self._knows_dates:
                self.violate(f"epoch {begun.epoch} is begun with timestamps that were used before")
            used_us = begun.last_us
        self._begun_last[target] = window

    def _begun_of_another(self, target: str, attempt: Computed) -> None:
        """An attempt was begun that Spark has not kept: allowed only where nothing could tell."""
        site = next((site for site in self._acting if attempt.epoch in site.kept), None)
        if site is None:
            self.violate(f"{attempt.name} was begun before Spark has completed the epoch")
            return
        kept = site.kept[attempt.epoch]
        others = {*kept.by_target} - {target} if kept is not None else set()
        if kept is not None and any(kept.at(other).begun_us for other in others):
            self.violate(f"{attempt.name} was begun for {target}; another target has {kept.name}")
        # In a row that is lost or shadowed, nothing tells that it was begun: its rows stay (rules 13 and 16).
        if kept is not None and 0 < kept.at(target).begun_us <= self.timestamps_lost_us:
            kept.lost = True
        attempt.lost = False
        if kept is not None and kept.excused and attempt.committed and "shadow" in self.disasters:
            site.kept[attempt.epoch] = (
                attempt  # it has a proof, and nothing told that another was begun
            )
            return
        if attempt.late:  # a limit that is documented: docs/limits.md
            self.counts["choices wrong by a late commit"] += 1
            attempt.excused = True
            site.kept[attempt.epoch] = attempt
            return
        if attempt.epoch not in self.doubted:
            self.violate(
                f"{attempt.name} was begun, and Spark kept {kept.name if kept else 'none'}"
            )
            return
        if kept is not None and kept.manifest > attempt.manifest and site.log.has(kept.manifest):
            self.violate(f"{attempt.name} was begun unproven, and {kept.name} is a later attempt")
        # What was proven in the log of the other clone, this flusher cannot see.
        proven = kept is not None and (not self.cloned or site.has_proof(kept))
        proven_us = kept.fenced_us if kept is not None and proven else None
        if proven_us is not None and proven_us < self.doubted[attempt.epoch]:
            self.violate(
                f"{attempt.name} was begun unproven, although {kept.name if kept else ''} is proven"
            )
        self.counts["choices unproven and wrong"] += 1
        if kept is not None and "log" in self.disasters:
            kept.lost = kept.was_begun  # what the table has of another history stays (rule 23)
        attempt.excused = True
        site.kept[attempt.epoch] = attempt

    def finished(self, target: str, window: Window, table: Table) -> None:
        """Look at a window that was finished: all of its rows are there, and the newest epoch wins."""
        self.updates.finished(target, window)
        for begun in window.epochs:
            attempt = self._by_digest.get(begun.digest) if begun.manifest else None
            if attempt is None:
                continue
            arrival = attempt.at(target)
            arrival.flushed, arrival.flushed_us = True, MACHINE.true_us
            if any((target, begun.epoch) in site.given_up for site in self.sites):
                # Flushed all the same in a log that is restored from before the decision.
                arrival.gone |= attempt.rows.keys() - arrival.keys
                continue
            if missing := set(attempt.rows) - arrival.keys:
                for site in self.sites:
                    missing -= site.quarantined(target, attempt)
            if missing:
                self.violate(f"{attempt.name} counts as flushed without its rows {sorted(missing)}")
            for key, value in attempt.rows.items():
                unique = key not in SHARED_KEYS and key in arrival.keys
                if unique and newest(table, key) != value:
                    self.violate(f"{attempt.name} is flushed, and {key} shows {table.get(key)}")

    def rewound(self, target: str, site: Site, flushed: int) -> None:
        """Learn that the ledger row was set back: what is above is to be flushed again.

        A clone has flushed what it had for itself, and trims it. The operator vouches for what is below.
        """
        site.rewound_us = MACHINE.true_us
        if flushed in site.taken_back:  # another rewind has deleted its record before
            self.two_rewinds.add(flushed)
        self._said |= {(target, epoch) for epoch in site.kept if epoch <= flushed}
        for epoch, attempt in list(site.kept.items()):
            if attempt is None or epoch <= flushed:
                continue
            site.put_back_late.discard(attempt.manifest)
            arrival = attempt.at(target)
            arrival.flushed = arrival.flushed and self.cloned
            # What was begun, and given up then, stays passed over, also where Spark has computed it again: as
            # long as the log records it.
            if (target, epoch) not in site.given_up or site.record(epoch) is None:
                site.take_newer(epoch)
        if not self.cloned:
            site.forget()  # behind what the row said, where it followed another history
        self._vouched(target, site, flushed)

    def rewind_ended(self, site: Site, target: str, to: int) -> None:
        """Look at what a rewind leaves: no record above its mark but what was made since its listing.

        If the rewind has stood still, a flusher may have flushed again, and recorded, what is above.
        """
        if self.row_was_moved():
            return
        assert MACHINE.thread is not None
        listed_us = MACHINE.thread.listed[paths.FLUSHED.folder.strip("/")]
        own = f"{target}/" if target else ""
        left = [
            path
            for kind in (paths.FLUSHED, paths.RETAINED_RECORD)
            for path in site.log.paths(f"{kind.folder}{own}")
            if (found := re.fullmatch(r"[a-z]+/(?:[a-z]+/)?([0-9]{20})(-.*[0-9]{20})?\.json", path))
            and int(found[1]) > to
            and self.steps.recorded_us.get(path, 0) < listed_us
        ]
        if left:
            self.violate_step(f"a rewind to {to} leaves {left}")

    def row_was_moved(self) -> bool:
        """Whether the ledger row that the rewind under way has made is another one by now."""
        mine = MACHINE.thread.rewind if MACHINE.thread is not None else None
        return mine is not None and mine.row not in (None, self.read_ledger(mine.target))

    def reset(self, target: str) -> None:
        """Learn that the timestamps of a target went back from the future to the present."""
        row, thread = self.read_ledger(target), MACHINE.thread
        assert row is not None
        assert thread is not None
        self.set_back.setdefault(target, []).append((MACHINE.true_us, row.last_us))
        read_us = thread.looked["ledger"]
        behind = self.clocks_set_us >= read_us or thread.process.host.ahead_us < 0
        if row.last_us < read_us and not behind:
            self.violate(f"timestamps go back to {row.last_us}; the row was read at {read_us}")
        self.updates.reset(target)
        self._begun_last.pop(target, None)

    def left_behind(self, target: str, attempt: Computed, us: int) -> bool:
        """Whether nothing counts any more that an attempt was begun with a timestamp.

        An operator has left it behind in the future; or the row that was begun then was shadowed.
        """
        begun_us = attempt.begun_with(target, us)
        shadowed = "shadow" in self.disasters and 0 < begun_us <= self.timestamps_lost_us
        resets = self.set_back.get(target, ())
        return shadowed or any(0 < begun_us < since_us and last < us for since_us, last in resets)

    def _vouched(self, target: str, site: Site, upto: int) -> None:
        """Learn that the operator vouches for rows up to an epoch: what a backup lacks of them is lost."""
        for epoch, attempt in site.kept.items():
            if attempt is None or epoch > upto or (target, epoch) in site.given_up:
                continue
            arrival = attempt.at(target)
            missing = set(attempt.rows) - arrival.keys - site.quarantined(target, attempt)
            if target and (missing or not arrival.begun_us):
                continue  # what one of several lacks since it was detached, `reported` looks at
            arrival.flushed = True
            if not self.ends:
                site.vouch_for(attempt)
            if never := missing - arrival.taken - arrival.gone:
                self.violate(f"{attempt.name} counts as flushed, and {sorted(never)} never came")
            if missing:
                self.counts["epochs that a restored target lacks, and the log"] += 1
            arrival.gone |= missing

    def restored_before_rewind(self, target: str, epochs: range) -> None:
        """Learn that a backup of the target was restored from before a rewind of these epochs.

        What it has, with a ledger row that says so, is flushed.
        """
        for attempt in self.by_value:
            if attempt.epoch in epochs:
                rows = {key for key in attempt.rows if key.startswith((INVALID, REFUSED))}
                arrival = attempt.at(target)
                there = arrival.keys.issuperset(attempt.rows.keys() - rows)
                arrival.flushed |= bool(arrival.begun_us) and there

    def log_restored(self, site: Site, made_us: int) -> None:
        """Learn that a log was restored: what it records, and the target has since then, is flushed.

        A rewind since that backup had taken it back, and an operator may have given it up then.

        :param made_us: when the backup was made.
        """
        self.updates.restored("", made_us)
        for epoch in site.recorded():
            if (attempt := site.kept.get(epoch)) is not None:
                arrival = attempt.at("")
                arrival.flushed |= attempt.rows.keys() <= arrival.keys

    def row_lost(self, target: str) -> None:
        """Learn that nothing says any more what was begun, and not recorded, with which timestamps."""
        self.disasters.add("ledger")
        self._begun_last.pop(target, None)
        self.row_lost_us[target] = MACHINE.true_us
        self._dated = {dated: row for dated, row in self._dated.items() if dated[0] != target}
        for site in self.sites:
            site.take_newer_unsettled()

    def begun_lost_us(self, target: str) -> int:
        """Return until when nothing says any more what was begun: the row was lost, restored or shadowed."""
        return max(self.timestamps_lost_us, self.row_lost_us.get(target, 0))

    def arrived(self, target: str) -> dict[int, frozenset[str]]:
        """Return the keys that a target has of each attempt, by the attempt's value, for a backup of it."""
        return {each.value: frozenset(each.at(target).keys) for each in self.by_value}

    def target_restored(
        self, target: str, arrived: Mapping[int, frozenset[str]], made_us: int
    ) -> None:
        """Learn that the table has what a backup of it has.

        :param made_us: when the backup was made.
        """
        self.row_lost(target)
        self.updates.restored(target, made_us)
        for attempt in self.by_value:
            arrival, there = attempt.at(target), arrived.get(attempt.value, frozenset())
            arrival.taken = (arrival.taken | arrival.keys) - there
            arrival.gone -= there
            arrival.keys = set(there)
        self.row_is_back(target)

    def row_is_back(self, target: str) -> None:
        """Learn that an earlier ledger row counts again: what it names as begun is finished (rule 10).

        Spark may have computed such an epoch again from the same source offsets since. A rewind that was
        under way counts no more.
        """
        row = self.read_ledger(target)
        flushed = row.flushed if row is not None else -1
        for each in self.by_value:
            arrival = each.at(target)
            if arrival.flushed_us and each.epoch <= flushed:
                arrival.flushed |= each.rows.keys() <= arrival.keys
        for begun in row.begun.epochs if row is not None and row.begun is not None else ():
            if (attempt := self._by_digest.get(begun.digest)) is not None:
                for site in self.sites:
                    site.take_begun(attempt)

    def database_replaced(self, target: str) -> None:
        """Learn that a target has nothing any more, no ledger row either."""
        self.row_lost_us[target] = MACHINE.true_us
        self._dated = {dated: row for dated, row in self._dated.items() if dated[0] != target}
        for attempt in self.by_value:
            attempt.by_target.pop(target, None)

    def deleted(self, site: Site, path: str, lost_to: frozenset[str]) -> None:
        """Look at a segment of the log that is about to be deleted.

        :param lost_to: the targets that have no further name of it.
        """
        self._deleted(site, path, self._by_segment.get(path), lost_to)

    def manifest_deleted(self, site: Site, path: str, data: bytes, lost_to: frozenset[str]) -> None:
        """Look at a manifest, which may hold rows, that is about to be deleted."""
        self._deleted(site, path, self._by_digest.get(manifest_digest(data)), lost_to)

    def _deleted(
        self, site: Site, path: str, attempt: Computed | None, lost_to: frozenset[str]
    ) -> None:
        if attempt is None or site.kept.get(attempt.epoch) is not attempt:
            return
        lacking = lost_to & site.lacking(attempt)
        held = [
            target
            for target in lost_to
            if (target, attempt.epoch) not in site.given_up
            and site.state(target) != "detached"
            # What has looked before a target was announced may delete what that one has by now.
            and site.since_us.get((target, -1), 0) <= (MACHINE.looked_us or MACHINE.true_us)
            # What it had before it was detached had its time then, without it.
            and site.since_us.get((target, -1), 0) <= attempt.at(target).flushed_us
        ]
        since_us = max((attempt.at(target).flushed_us for target in held), default=0)
        if (
            since_us
            and not self.disasters
            and path not in site.put_back_late  # the operator moves it away
            and MACHINE.true_us < since_us + self.retention_s * 1_000_000
            # A limit that is documented: docs/protocol/operators.md.
            and not (site.looked_before_rewind and since_us > MACHINE.records_us)
            and attempt.epoch not in site.trimmed_late
        ):
            self.violate_step(f"{path} is deleted before wal.retention is over")
        if lacking:
            self.violate(
                f"{path} is deleted; Spark kept {attempt.name}, and it is not flushed"
                + "".join(f" to {target}" for target in sorted(filter(None, lacking)))
            )

    def diverged(self, site: Site, data: bytes) -> None:
        """Look at a manifest that a flusher leaves to the operator, as another one was flushed (rule 18)."""
        attempt = self._by_digest[manifest_digest(data)]
        record = site.record(attempt.epoch)
        flushed = self._by_digest.get(record.get("digest", "")) if record else None
        if record is None or attempt is flushed or attempt.generation < record["generation"]:
            self.violate(f"the flush stops at {attempt.name}, which is to be deleted")
        elif (
            attempt.generation > record["generation"]
            and flushed
            and flushed.offsets == attempt.offsets
        ):
            self.violate(f"the flush stops at {attempt.name}, which only repeats what was flushed")

    def recorded(self, site: Site, epochs: range) -> None:
        """Learn which attempt the log records, where another history has flushed one from the same data.

        The flusher records what the ledger row names, and deletes what Spark kept here (rules 18 and 23).
        """
        for epoch in epochs:
            record, kept = site.record(epoch), site.kept.get(epoch)
            flushed = self._by_digest.get(record.get("digest", "")) if record else None
            if flushed is None or kept is None or not site.lacking(kept):
                continue
            left = (flushed.lost or self.cloned) and flushed.at("").flushed
            if left and flushed.offsets == kept.offsets:
                site.kept[epoch] = flushed
                flushed.lost = False

    def record_deleted(self, site: Site, epochs: range) -> None:
        """Look at records that are about to go: by a flusher not before what they are about (rule 17)."""
        for epoch in epochs:
            self.steps.record_deleted(site, epoch)
            attempt = site.kept.get(epoch)
            copied = site.log.has(paths.RETAINED_RECORD.path(epoch))
            needed = attempt is not None and site.log.has(attempt.manifest) and not copied
            if MACHINE.looked_us and needed:
                self.violate_step(f"the record of epoch {epoch} is deleted before its manifest")

    def newest_ever(self, site: Site, target: str) -> int:
        """Return the newest epoch that was ever flushed to a target, of those that count now; -1: none."""
        flushed = (e for e, each in site.kept.items() if each and each.at(target).flushed_us)
        return max(flushed, default=-1)

    def rewind_deletes(self, epochs: range) -> None:
        """See whether the first of two rewinds is about to delete a record, or what is retained."""
        for site in self.sites:
            if MACHINE.thread is not None and MACHINE.thread.rewind is not None:
                site.rewound_us = MACHINE.true_us
                site.taken_back.update(epochs)
        if self.row_was_moved():
            self.two_rewinds.update(epochs)

    def attached(self, site: Site, target: str, first: int) -> None:
        """Look at a log as a target is attached: it has all that is to be flushed from `first` on."""
        self.steps.attached(site, target, first)
        for epoch, attempt in site.kept.items():
            if attempt is None or epoch < first or target not in site.lacking(attempt):
                continue
            for path in (*attempt.segments, attempt.manifest):
                if not site.has(target, path):
                    self.violate(f"{target} is attached at {first}, and {path} is gone")

    def reported(
        self, site: Site, target: str, first: int, missing: tuple[int, int] | tuple[()]
    ) -> None:
        """Look at what `attach` says that a target lacks; of one that has died, `status` tells."""
        states = site.states[target][:-2]  # but those of this attach; the first two are the start's
        for announced, attached in itertools.pairwise(states[2:]):
            if (announced["verb"], attached["verb"]) == ("announced", "attached"):
                before = range(announced["epoch"] + 1, attached["epoch"])
                self._said |= {(target, epoch) for epoch in before}
        said = range(missing[0], missing[1] + 1) if missing else range(0)
        self._said |= {(target, epoch) for epoch in said}
        for epoch, attempt in site.kept.items():
            if attempt is None or (target, epoch) in site.given_up:
                continue
            if not site.first_ever(target) <= epoch < first:
                continue
            if not attempt.at(target).flushed and (target, epoch) not in self._said:
                self.violate(f"attach does not say that {target} lacks {attempt.name}")

    def listed(self, site: Site, target: str, rows: int) -> None:
        """Look at how many rows are said to be in quarantine, once all is flushed."""
        lacking = sum(
            len(set(attempt.rows) - attempt.at(target).keys - attempt.at(target).gone)
            for epoch, attempt in site.kept.items()
            if attempt is not None
            and attempt.at(target).flushed
            and (target, epoch) not in site.given_up
        )
        if rows < lacking:
            self.violate(f"{rows} rows are said to be in quarantine, and {lacking} are missing")
        there = {
            (key, value)
            for path in site.log.paths(paths.of_target(target, paths.QUARANTINED.folder))
            for key, value in refused_in(site.log.get(path)).items()
        }
        if rows > len(there):
            self.violate(f"{rows} rows are said to be in quarantine, which has {len(there)}")
