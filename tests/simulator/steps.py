"""What the rules demand of single steps: what was listed freshly before one, and what has to be there still.

What such a fault leads to would show in few histories; the step itself shows it at once, and is judged while
others have acted on the history at most once. None of the sink's code is used but for its paths.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.protocol.raw import last_us, parsed
from tests.simulator.machine import MACHINE
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt

if TYPE_CHECKING:
    from tests.simulator.attempts import Computed
    from tests.simulator.judge import Judge
    from tests.simulator.process import Thread
    from tests.simulator.site import Site

_FRESH = {
    "publishes": ("runs", "commits"),
    "completes an epoch": ("runs",),
    "begins the log": ("commits",),
    "starts where no run has published": ("commits",),
    "claims as it starts": ("commits",),
    "counts what waits": ("manifests",),
    "notes an orphan": ("flushed", "runs", "manifests"),
    "makes the ledger row": ("manifests", "flushed", "interventions"),
    "begins a window": ("manifests", "decisions"),
    "moves a manifest to its copy": ("flushed",),
    "decides": ("manifests", "flushed"),
    "takes records back": ("flushed", "retained"),
    "forgets runs": ("manifests",),
}
"""The folders that a process has to list freshly before a step (rules 3, 5, 7, 9, 18)."""

_MADE = {
    "log.json": "begins the log",
    "interventions/rewind": "decides",
    paths.TICKET.folder: "starts where no run has published",
    paths.TOMBSTONE.folder: "notes an orphan",
}
"""Which step it is to make an object, by how its path begins."""

MANIFEST = re.compile(
    rf"(?:^|/)(?:{paths.MANIFEST.folder}|{paths.RETAINED_RECORD.folder})[0-9]+-[0-9]+\.json$"
)
"""The path of a manifest, or of its second name: `aside/` has first names below it."""


class Steps:
    """Looks at single steps."""

    def __init__(self, judge: Judge) -> None:
        self._judge, self._wrong = judge, judge.violate_step
        self._noted_us: dict[tuple[Site, str], int] = {}
        """When each note about orphans was made, by its log and path."""
        self._waited_us: dict[str, int] = {}
        """When each run has waited for space last."""
        self.recorded_us: dict[str, int] = {}
        """When each record of flushed epochs, or its copy, was made, by its path."""
        self._copied: dict[str, tuple[Thread, int]] = {}
        """Which thread has made the copy of each record, by its path, and when."""
        self._put_back_us: dict[str, int] = {}
        """When a flusher has put a manifest back from `aside/`, by its path."""

    def listed(self, step: str, since_us: int, *more: str) -> None:
        """Demand that the thread that is at work has listed folders freshly since a moment.

        :param more: folders beside those of the table.
        """
        thread = MACHINE.thread
        if thread is None or thread.process.name.startswith("reader"):
            return
        folders = (*_FRESH[step], *more)
        late = [folder for folder in folders if thread.listed.get(folder, -1) < since_us]
        if late:
            self._wrong(f"{thread.process.name} {step} without a fresh listing of {late}")

    # --- runs -------------------------------------------------------------------------------------

    def published(self, site: Site, epoch: int) -> None:
        """Look at a run that publishes: it has looked for `commits/` and for a higher claim (rules 3, 5)."""
        thread = MACHINE.thread
        if thread is None or not thread.run_id:
            return
        claimed_us = site.claimed_us.get(thread.run_id, 0)
        self.listed("publishes", max(thread.since_us, claimed_us))
        if self._judge.max_bytes:
            self.listed("counts what waits", claimed_us)
        recorded = {} if self._judge.old_listings else self.recorded_us  # an old listing lacks them
        for path, us in recorded.items():
            newer = path.startswith(paths.FLUSHED.folder) and number(path) >= epoch
            if newer and us < thread.since_us and site.log.has(path):
                self._wrong(f"epoch {epoch} is published, and {path} was there")
        self._fits(site, epoch, thread.since_us, claimed_us)

    def _fits(self, site: Site, epoch: int, since_us: int, claimed_us: int) -> None:
        """An epoch is published while what is checkpointed and waits has less than `wal.maxBytes`.

        What a rewind brings back while a run publishes it may have missed; what was checkpointed after it had
        looked does not count. Nor does what a flusher puts back for a rewind cut short: the run reads
        the log as it claims (docs/limits.md).
        """
        moved = any(us >= since_us or self._judge.old_listings for us in site.since_us.values())
        moved |= site.rewound_us >= (1 if self._judge.old_listings else since_us)
        if not self._judge.max_bytes or moved:
            return
        if self._judge.disasters or self._judge.cloned:
            return
        assert MACHINE.thread is not None
        looked_us = MACHINE.thread.listed.get("commits", 0)
        done = [
            e for e in site.checkpoint.numbers("commits") if site.committed_us.get(e, 0) < looked_us
        ]
        upto = min(epoch - 1, max(done, default=-1))
        waiting = [
            attempt.manifest
            for attempt in site.kept.values()
            if attempt is not None and attempt.epoch <= upto
            # A rewind that is under way, or was given up, has not brought it back yet.
            if any(
                attempt.epoch > max(site.recorded(target), default=-1)
                for target in site.lacking(attempt)
            )
        ]
        stored = sum(
            segment["bytes"]
            for path in waiting
            if site.log.has(path) and self._put_back_us.get(path, 0) < claimed_us
            for segment in parsed(site.log.get(path))["segments"]
        )
        if stored >= self._judge.max_bytes:
            self._wrong(f"epoch {epoch} is published, and {stored} bytes wait in {waiting}")

    def completed(self, site: Site, attempt: Computed) -> None:
        """Look at a run that completes an epoch: it has looked for a higher claim since (rule 7)."""
        thread = MACHINE.thread
        if thread is None:
            return
        self.listed("completes an epoch", attempt.published_us or thread.since_us)
        mine = self._generation(site, attempt.run_id)
        if not attempt.published and mine is not None and site.claimed(mine, thread.since_us):
            self._wrong(f"{attempt.name} is replayed by a run that was overtaken before")

    def replayed(self, attempt: Computed) -> None:
        """Look at a run that completes what is flushed already: it has looked for a higher claim last."""
        listed = MACHINE.thread.listed if MACHINE.thread is not None else {}
        if listed.get("runs", 0) < max(listed.values(), default=0):
            self._wrong(f"{attempt.name} is replayed without a last look for a higher claim")

    def _generation(self, site: Site, run_id: str) -> int | None:
        """Return the generation that a run has claimed; None: none, or its claim is gone."""
        for path in site.log.paths(paths.CLAIM.folder):
            if json.loads(site.log.get(path))["run_id"] == run_id:
                return number(path)
        return None

    # --- what is created --------------------------------------------------------------------------

    def created(self, site: Site, path: str, data: bytes) -> None:
        """Look at an object of the log that is made."""
        if path.startswith((paths.FLUSHED.folder, paths.RETAINED_RECORD.folder)):
            self.recorded_us[path] = MACHINE.true_us
        if path.startswith(paths.FLUSHED.folder):
            self._records(site, path, json.loads(data))
        thread = MACHINE.thread
        if thread is None:
            return
        if path.startswith(paths.RETAINED_RECORD.folder):
            self._copied.setdefault(path, (thread, MACHINE.true_us))
        elif path.startswith(paths.TOMBSTONE.folder):
            self._noted_us[site, path] = MACHINE.true_us
        elif path.startswith(paths.MANIFEST.folder) and MACHINE.looked_us:
            self._put_back_us[path] = MACHINE.true_us
        elif thread.rewind is not None and path.startswith("flusher"):
            thread.rewind.reported |= json.loads(data)["doing"].startswith("rewind")
        if step := self._step(site, path, data):
            self.listed(step, thread.since_us)

    def _step(self, site: Site, path: str, data: bytes) -> str:
        """Return which step it is to make an object of the log, before which folders are listed freshly."""
        if path.startswith(paths.CLAIM.folder):
            return self._claimed(site, path, json.loads(data))
        if path.startswith(paths.TICKET.folder) and site.log.paths(paths.CLAIM.folder):
            return ""
        commands = MACHINE.thread is not None and MACHINE.thread.name == "command"
        if path.startswith(paths.DECISION.folder) and commands:
            return "decides"
        return next((step for name, step in _MADE.items() if path.startswith(name)), "")

    def _records(self, site: Site, path: str, window: dict[str, Any]) -> None:
        """A record says what the target's own ledger row has said (rule 17), of this log (rule 23)."""
        target = path.split("/")[1] if path.count("/") > 1 else ""
        rewind = MACHINE.thread.rewind if MACHINE.thread is not None else None
        if rewind is not None and rewind.row is None:
            self._wrong(f"a rewind makes {path}, and has not moved its row")
        for each in window["epochs"]:
            if (target, each["epoch"], each["base_us"]) not in self._judge.updates.finished_us:
                self._wrong(f"{path} is made, and epoch {each['epoch']} was not finished so")
            there = site.manifests(each["epoch"]) if MACHINE.looked_us and each["digest"] else set()
            given_up = (target, each["epoch"]) in site.given_up
            if there and each["digest"] not in there and not given_up:
                self._wrong(f"{path} is made, and names a manifest that is not in this log")

    def _claimed(self, site: Site, path: str, claim: dict[str, Any]) -> str:
        """A run that finds its epoch completed claims nothing, so that the quicker one goes on (rule 3).

        :return: the step that it is, where a run claims as it starts.
        """
        thread, epoch = MACHINE.thread, claim["epoch"]
        assert thread is not None
        if claim.get("early"):
            if epoch < thread.next_epoch and not self._judge.old_listings:
                self._wrong(
                    f"{path} says epoch {epoch}, and Spark goes on with {thread.next_epoch}"
                )
            return "claims as it starts"
        there = site.checkpoint.has(f"commits/{epoch}") and not self._judge.old_listings
        if there and site.committed_us.get(epoch, thread.since_us) < thread.since_us:
            self._wrong(f"{path} is claimed for epoch {epoch}, which was completed before")
        return ""

    def waits(self, site: Site, attempt: Computed) -> None:
        """Look at a run that waits for space once more: it has proven its last epoch (rule 11)."""
        waited_us, self._waited_us[attempt.run_id] = (
            self._waited_us.get(attempt.run_id, 0),
            MACHINE.true_us,
        )
        rivals = [
            each
            for each in self._judge.attempts.values()
            if each.epoch == attempt.epoch and site.log.has(each.manifest)
        ]
        if attempt not in rivals or any(each.published_us >= waited_us for each in rivals):
            return
        there = site.log.has(paths.TICKET.path(attempt.run_id)) and not self._judge.old_listings
        names = {each.manifest for each in rivals}  # a clone has its own of one name
        if len(names) > 1 and there and not site.has_proof(attempt):
            self._wrong(f"a run waits for space, and {attempt.name} has no proof")

    # --- what is deleted --------------------------------------------------------------------------

    def deleted(self, site: Site, path: str) -> None:
        """Look at an object of the log that is about to be deleted."""
        thread = MACHINE.thread
        if thread is None:
            return
        if path.startswith(paths.CLAIM.folder) and MACHINE.looked_us:
            self.listed("forgets runs", MACHINE.looked_us)
        elif path.startswith(paths.TICKET.folder) and MACHINE.looked_us:
            self._ticket_goes(site, path)
        elif path.startswith(paths.WITHOUT_SINK.folder):
            self._note_goes(site, path)
        elif path.startswith(paths.SEGMENT.folder) and thread.name == "main":
            self._orphan_goes(site, path)
        elif path.startswith((paths.SEGMENT.folder, paths.MANIFEST.folder)) and MACHINE.looked_us:
            self._garbage_goes(site, path)
        elif path.startswith(paths.RETAINED_RECORD.folder) and MACHINE.looked_us:
            self._copy_goes(site, path)
        elif path.startswith(paths.ASIDE):
            self._second_name_goes(site, path)
        elif thread.rewind is not None:
            self._rewind_deletes(site, path)

    def _ticket_goes(self, site: Site, path: str) -> None:
        """Rule 2: it stays while a manifest of its generation, or of a lower one, is pending.

        What was flushed before a rewind has one attempt, so there is nothing to prove where the flusher has
        looked before.
        """
        generation = json.loads(site.log.get(path))["generation"] + 1
        pending = [
            name
            for name in site.log.paths(paths.MANIFEST.folder)
            if number(name) > site.settled() and number(name, 1) <= generation
            if not (site.looked_before_rewind and name in self._judge.updates.ever)
        ]
        if pending:
            self._wrong(f"{path} goes, and {pending} may need a proof of its run")

    def choice_goes(self, site: Site, path: str) -> None:
        """Rules 11, 18: several targets share a choice, which stays until all have the epoch."""
        epoch = number(path)
        if not path.startswith(paths.CHOICE.folder) or site.looked_before_rewind:
            return
        for target in self._judge.targets:
            done = max(site.recorded(target), default=-1) >= epoch or (
                (target, epoch) in site.given_up
            )
            if not done:
                self._wrong(f"{path} goes, and {target} lacks the epoch")

    def _note_goes(self, site: Site, path: str) -> None:
        """Rule 12: what Spark made without a sink is noted until it is flushed."""
        if number(path) > site.settled():
            self._wrong(f"{path} goes before its epoch is flushed")

    def _orphan_goes(self, site: Site, path: str) -> None:
        """Rule 18: a note comes before, and no manifest was there when its run listed them after that."""
        thread = MACHINE.thread
        assert thread is not None
        found = re.search(r"/\d+-\d+-(.{36})-[0-9a-f]{32}\.arrow$", path)
        assert found is not None, path
        run_id, epoch = found[1], number(path)
        if run_id == thread.run_id:
            return
        self._is_swept(site, path, run_id)
        attempt = self._judge.attempts.get((epoch, run_id))
        if attempt is not None and attempt.published_us:
            seen = attempt.published_us < thread.listed.get("manifests", 0)
            if seen and path in attempt.segments and site.log.has(attempt.manifest):
                self._wrong(f"{path} goes, which the manifest of {attempt.name} names")
            return
        generation = self._generation(site, run_id)
        if generation is None:
            return
        note = paths.TOMBSTONE.path(Attempt(epoch, generation))
        if not site.log.has(note):
            self._wrong(f"{path} goes, and no note in tombstones/ says so")
        listed_us = thread.listed.get("manifests", -1)
        if listed_us < self._noted_us.get((site, note), 0):
            self._wrong(f"{path} goes, and no manifests were listed after {note}")
        # A sweep that stands still before it deletes does not know what is completed or trimmed meanwhile.
        completed = epoch in site.kept and site.committed_us.get(epoch, 0) < listed_us
        flushed = max(map(number, site.log.paths(paths.FLUSHED.folder)), default=-1)
        there = {number(name) for name in site.log.paths(paths.MANIFEST.folder)}
        if completed and epoch > flushed and epoch not in there:
            self._wrong(f"{path} goes, of a checkpointed epoch without a manifest")

    def _is_swept(self, site: Site, path: str, run_id: str) -> None:
        """Rule 18: an orphan is of a run that Spark keeps no more, and of an epoch that is not flushed."""
        thread, ticket = MACHINE.thread, paths.TICKET.path(run_id)
        assert thread is not None
        if site.log.has(ticket):
            mine = json.loads(site.log.get(ticket))["generation"] + 1
            claims = {number(each): each for each in site.log.paths(paths.CLAIM.folder)}
            owner = json.loads(site.log.get(claims[mine]))["run_id"] if mine in claims else run_id
            if owner == run_id and max(claims, default=0) <= mine:
                self._wrong(f"{path} goes, which its run may publish")
        for record, us in self.recorded_us.items() if not self._judge.old_listings else ():
            flushed = record.startswith(paths.FLUSHED.folder) and number(record) >= number(path)
            if flushed and us < thread.looked.get("flushed", 0) and site.log.has(record):
                self._wrong(f"{path} goes as an orphan, and {record} was there")

    def _garbage_goes(self, site: Site, path: str) -> None:
        """Rules 17, 18: a flusher deletes nothing of an epoch that any target lacks; copies are true ones."""
        epoch = number(path)
        if path.startswith(paths.MANIFEST.folder):
            self._is_copied(site, epoch)
            thread, made_us = self._copied.get(paths.RETAINED_RECORD.path(epoch), (None, 0))
            if thread is MACHINE.thread and made_us > MACHINE.looked_us:
                self.listed("moves a manifest to its copy", made_us)
        if site.rewound_us or self._judge.disasters or self._judge.cloned:
            return
        attempt = site.kept.get(epoch)
        if epoch not in site.kept or (attempt is not None and site.lacking(attempt)):
            self._wrong(f"{path} goes, and its epoch is not flushed everywhere")

    def _copy_goes(self, site: Site, path: str) -> None:
        """Rule 18: a record has a copy as long as its manifest is retained; segments go before both."""
        there = [n for n in site.log.paths(paths.RETAINED_RECORD.folder) if MANIFEST.search(n)]
        attempt = site.kept.get(number(path))
        left = attempt is not None and any(site.log.has(each) for each in attempt.segments)
        if left and not MANIFEST.search(path) and any(number(n) == number(path) for n in there):
            self._wrong(f"{path} goes, and the manifest of its epoch is retained")

    def _second_name_goes(self, site: Site, path: str) -> None:
        """It stays until its epoch is flushed again (`docs/protocol/operators.md`)."""
        parts = path.split("/")
        target = parts[1] if len(parts[1]) == 1 else ""  # the simulator's have names of one letter
        found = re.search(r"(?:segments|manifests)/([0-9]{20})", path)
        if found is None or self._judge.disasters or self._judge.cloned:
            return
        record = site.records(target).get(int(found[1]))
        us = re.search(r"/([0-9]{20})/", path)
        if record and us and last_us(record) <= int(us[1]) and not self._judge.set_back:
            self._wrong(f"{path} goes, and the record of its epoch is from before it")
        attempt = site.kept.get(int(found[1]))
        if attempt is None or target not in site.lacking(attempt):
            return
        if path.endswith((attempt.manifest, *attempt.segments)):
            self._wrong(f"{path} goes, and {attempt.name} is to be flushed again")

    def _rewind_deletes(self, site: Site, path: str) -> None:
        """A rewind deletes no last name of a manifest, and no record without a look at its row."""
        if path.startswith((paths.FLUSHED.folder, paths.RETAINED_RECORD.folder)):
            self._takes_back(path)
        if not MANIFEST.search(path):
            return
        name = f"{paths.MANIFEST.folder}{path.rpartition('/')[2]}"
        if any(
            number(decision) == number(path) for decision in site.log.paths(paths.DECISION.folder)
        ):
            return  # `skip` has copied it, and its segments are gone
        if not any(other.endswith(f"/{name}") for other in site.log.paths(paths.ASIDE)):
            self._wrong(f"a rewind deletes {path}, which has no second name")

    def _takes_back(self, path: str) -> None:
        """A rewind looks at its row before the records of each window, after it has listed them."""
        thread = MACHINE.thread
        rewind = thread.rewind if thread is not None else None
        if thread is None or rewind is None or not rewind.row:
            return
        self.listed("takes records back", rewind.moved_us)
        before, deleted_us = rewind.deleted
        since_us = max(thread.listed.get("flushed", 0), deleted_us if number(path) != before else 0)
        if thread.looked.get("ledger", 0) < since_us:
            self._wrong(f"a rewind deletes {path}, and has not looked at its row again")
        if path.startswith(paths.FLUSHED.folder):
            rewind.deleted = number(path), MACHINE.true_us

    def may_rewind(self, site: Site, target: str, to: int) -> bool:
        """Whether a rewind means something: ledger and log agree, and all above has a record of its own."""
        row, recorded = self._judge.read_ledger(target), site.recorded(target)
        if self._judge.disasters or self._judge.cloned or self._judge.old_listings:
            return False
        if row is None or row.begun is not None or to not in recorded:
            return False
        return to < max(recorded) == row.flushed and {*range(to, row.flushed)} <= {*recorded}

    def rewound(self, site: Site, target: str, to: int) -> None:
        """Look at a log as a rewind sets the ledger row back: what comes again has second names.

        A flusher that stood still deletes only what it has finished: what was merely begun needs none, as in
        a row that was shadowed, where no finish takes effect (rule 16).
        """
        aside = site.log.paths(paths.of_target(target, paths.ASIDE))
        for attempt in site.kept.values():
            if attempt is None or attempt.epoch <= to or target not in site.lacking(attempt):
                continue
            if not attempt.at(target).flushed_us:
                continue
            for path in (*attempt.segments, attempt.manifest):
                if site.log.has(path) and not any(name.endswith(f"/{path}") for name in aside):
                    self._wrong(f"a rewind to {to} gives {path} no second name")

    def record_deleted(self, site: Site, epoch: int) -> None:
        """Look at a record that a flusher deletes."""
        if MACHINE.looked_us:
            self._is_copied(site, epoch)

    def _is_copied(self, site: Site, epoch: int) -> None:
        """Look, as a record or its manifest goes, whether a copy is of the record that counts (rule 18)."""
        path, newest = paths.RETAINED_RECORD.path(epoch), site.record(epoch)
        if newest is None or not site.log.has(path):
            return
        if json.loads(site.log.get(path))["base_us"] < newest["base_us"]:
            self._wrong(f"{path} is no copy of the record that counts")


def number(path: str, at: int = 0) -> int:
    """Return a number of a path."""
    return int(re.findall(r"[0-9]+", path)[at])
