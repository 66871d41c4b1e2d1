"""What the rules demand of single updates of the ledger, and of a row that is sent.

They are judged as steps upon the log are (`steps.py`): while others have acted on the history at most once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.protocol.raw import last_us, manifest_digest, parsed
from tests.simulator.machine import MACHINE
from tests.simulator.steps import number
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Window
from wal_sink.model.manifest import Attempt

if TYPE_CHECKING:
    from tests.simulator.attempts import Computed
    from tests.simulator.judge import Judge
    from tests.simulator.site import Site

_CLOCKS_DIFFER_US = 60_000_000
"""How far two clocks may lie apart before one of them is taken to be wrong (rule 14)."""

_PATIENCE_US = 30_000_000
"""How long a flusher leaves a window to the one that has taken it, at least (rule 15)."""


class Updates:
    """Looks at single updates of the ledger."""

    def __init__(self, judge: Judge) -> None:
        self._judge, self._wrong = judge, judge.violate_step
        self.reset_us: dict[str, int] = {}
        """When the timestamps of a target went back to the present last."""
        self._brought_back: set[str] = set()
        """Targets whose timestamps a backup from before that may have brought back."""
        self.finished_us: dict[tuple[str, int, int], int] = {}
        """When a ledger row has said first that an epoch is flushed, by target, epoch and base timestamp."""
        self.ever: set[str] = set()
        """The manifests of all these."""
        self._sent: dict[str, list[tuple[str, int]]] = {}
        """By target, which processes have begun the sendings of its window, and when (rule 15)."""

    def finished(self, target: str, window: Window) -> None:
        """Learn that a ledger row says of a window that it is flushed."""
        for each in window.epochs:
            self.finished_us.setdefault((target, each.epoch, each.base_us), MACHINE.true_us)
        self.ever |= {each.manifest for each in window.epochs}

    def begins_from(
        self, target: str, seen: LedgerState | None, window: Window, ahead_us: int
    ) -> None:
        """Look at the row from which a window is begun, and at the clocks (rules 10, 14, 16 and 26).

        :param ahead_us: by how much the target's clock is ahead.
        """
        thread, last = MACHINE.thread, seen.last if seen is not None else None
        if thread is None or not thread.looked_us or seen is None:
            return
        if last is not None and last.last != seen.flushed:
            self._wrong(f"epoch {window.first} is begun, and the row was updated in part")
        if window.sending > 1:
            self._takes(target, thread.process.name)
            return
        self._sent[target] = [(thread.process.name, MACHINE.true_us)]
        self.nothing_recorded(target, window.first, "begins a window")
        host_us = thread.process.host.ahead_us
        agree = abs(host_us - ahead_us) < _CLOCKS_DIFFER_US
        agree &= self._judge.clocks_set_us < thread.looked_us
        right = (
            not (host_us or ahead_us) and self.reset_us.get(target, 0) > self._judge.clocks_set_us
        )
        present_us = MACHINE.true_us + 2 * _CLOCKS_DIFFER_US
        goes_on = seen.last_us > present_us and target in self._brought_back
        if right and window.last_us > present_us and not goes_on:
            self._wrong(f"epoch {window.first} is begun as of the future that was left behind")
        if agree and window.begun_us < thread.looked_us + host_us:
            self._wrong(f"epoch {window.first} is begun as of long ago")

    def _takes(self, target: str, name: str) -> None:
        """A flusher from which a window was taken waits before it takes it back (rule 15)."""
        sent = self._sent.setdefault(target, [])
        taken = sent and sent[-1][0] != name and name in {each for each, _ in sent}
        if taken and MACHINE.true_us < sent[-1][1] + _PATIENCE_US:
            self._wrong(f"{name} takes a window back at once")
        sent.append((name, MACHINE.true_us))

    def nothing_recorded(self, target: str, first: int, step: str) -> None:
        """Demand that a flusher's last fresh listing had no record from an epoch on (rules 9 and 13)."""
        thread, site = MACHINE.thread, self._judge.sites[0]
        if thread is None or not thread.looked_us or target or len(self._judge.sites) > 1:
            return
        for path, us in self._judge.steps.recorded_us.items():
            newer = path.startswith(paths.FLUSHED.folder) and number(path) >= first
            if newer and us < thread.listed.get("flushed", 0) and site.log.has(path):
                self._wrong(f"{thread.process.name} {step}, and {path} was there")

    def begins(self, target: str, window: Window) -> None:
        """Look at a window that is begun: what was listed before, and what is chosen (rules 9, 11, 26)."""
        site = self._judge.sites[0]
        if not MACHINE.looked_us:
            return
        if window.sending <= 1:
            self._judge.steps.listed("begins a window", MACHINE.looked_us)
            self._alike(site, target, window)
        for begun in window.epochs:
            if not begun.manifest:
                continue
            if target:
                choice = paths.CHOICE.path(begun.epoch)
                chosen: dict[str, Any] = (
                    json.loads(site.log.get(choice)) if site.log.has(choice) else {}
                )
                trimmed = not chosen and not site.log.has(begun.manifest)
                if chosen.get("generation") != begun.generation and not trimmed:
                    self._wrong(f"{begun.manifest} is begun for {target}: {choice} says {chosen}")
            if window.sending <= 1 and not target:
                self._is_proven(site, begun.epoch)
            attempt = Attempt(begun.epoch, begun.generation)
            note = paths.TOMBSTONE.path(attempt)
            beside = [n for n in site.log.paths(paths.MANIFEST.folder) if number(n) == begun.epoch]
            here = site.log.has(begun.manifest)  # a clone has its own of this name
            here = here and manifest_digest(site.log.get(begun.manifest)) == begun.digest
            doubtful = site.log.has(note) and not site.has_proof(attempt)
            if window.sending <= 1 and len(beside) > 1 and doubtful and here:
                self._wrong(f"{begun.manifest} is begun, and {note} is there")
            if window.sending and self._judge.clocks_agree and begun.base_us < MACHINE.looked_us:
                self._wrong(f"epoch {begun.epoch} is sent with timestamps before now")

    def _is_proven(self, site: Site, epoch: int) -> None:
        """Of several attempts none is begun without a fresh listing of what proves one (rules 9 and 11)."""
        rivals = [
            each
            for each in self._judge.attempts.values()
            if each.epoch == epoch and 0 < each.published_us < MACHINE.looked_us
            if site.log.has(each.manifest)
        ]
        names = {each.manifest for each in rivals}  # a clone has its own of one name
        decided = any(number(each) == epoch for each in site.log.paths(paths.DECISION.folder))
        thread = MACHINE.thread
        assert thread is not None
        late = thread.listed.get("proofs", 0) < MACHINE.looked_us
        if len(names) > 1 and late and not decided and len(self._judge.sites) == 1:
            self._wrong(f"one of {sorted(names)} is begun, and proofs/ was not listed freshly")

    def _alike(self, site: Site, target: str, window: Window) -> None:
        """Epochs that share a window are written in the same way, and chosen for good (rule 10)."""
        thread = MACHINE.thread
        assert thread is not None
        for begun in window.epochs if len(window.epochs) > 1 else ():
            if self._may_be_overturned(site, begun.epoch) and not thread.process.name.startswith(
                "driver"
            ):
                self._wrong(f"epoch {begun.epoch} shares a window, and nothing proves its attempt")
        plans = {
            parsed(site.log.get(begun.manifest))["plan"]
            for begun in window.epochs
            if begun.manifest and site.log.has(begun.manifest)
        }
        if len(plans) > 1:
            self._wrong(f"epochs {window.epochs[0].epoch} on share a window of the plans {plans}")

    def _may_be_overturned(self, site: Site, epoch: int) -> bool:
        """Whether one of several attempts is begun that no note and no later manifest proves (rule 11)."""
        there = [_attempt(path) for path in site.log.paths(paths.MANIFEST.folder)]
        rivals = [
            each
            for each in there
            if each.epoch == epoch and not site.log.has(paths.TOMBSTONE.path(each))
        ]
        offsets = {
            parsed(site.log.get(paths.MANIFEST.path(each)))["offsets_digest"] for each in rivals
        }
        proven = any(site.has_proof(each) for each in rivals) or any(
            each.epoch > epoch and each.generation == max(rivals).generation
            for each in (there if rivals else ())
        )
        chosen = site.log.has(paths.CHOICE.path(epoch))
        return len(rivals) > 1 and len(offsets) == 1 and not proven and not chosen

    def reset(self, target: str) -> None:
        """Learn that the timestamps of a target went back from the future to the present."""
        self.reset_us[target] = MACHINE.true_us
        self._brought_back.discard(target)

    def restored(self, target: str, made_us: int) -> None:
        """Learn that a backup of target or log is restored: one from before a reset has nothing of it.

        Such a ledger row has the timestamps that were left behind, and a rewind from such a log counts them.

        :param made_us: when the backup was made.
        """
        if made_us < self.reset_us.get(target, 0):
            self._brought_back.add(target)

    def used_since_reset(self, target: str) -> list[int]:
        """Return the recorded timestamps of what was flushed since those of the future were left behind."""
        since_us = self.reset_us.get(target, 0)
        used_us = [
            last_us(record)
            for epoch, record in self._judge.sites[0].records(target).items()
            if self.finished_us.get((target, epoch, record["base_us"]), 0) > since_us > 0
        ]
        return [us for us in used_us if us <= MACHINE.true_us]

    def row_made(self, target: str, row: LedgerState, used_us: int) -> None:
        """Look at a ledger row that an operator has made: its timestamps go on (rule 14)."""
        if row.last_us < used_us:
            self._wrong(
                f"the ledger row of {target or 'the query'} is made with the timestamp {row.last_us};"
                f" {used_us} was used"
            )

    def written(self, target: str, key: str, attempt: Computed) -> None:
        """Look at a row that a flusher sends: none is in quarantine since before its step (rule 24).

        In an old listing an entry may be missing.
        """
        if self._judge.old_listings:
            return
        for site in self._judge.sites:
            made_us = site.entries.get((target, attempt.value, key), MACHINE.looked_us)
            if made_us < MACHINE.looked_us:
                self._wrong(f"row {key} of {attempt.name} is sent, and is in quarantine")


def _attempt(path: str) -> Attempt:
    """Return the attempt of a manifest."""
    return Attempt(number(path), number(path, 1))
