"""The real transitions over numbered states, and switches that turn single conditions off.

States and manifests have small numbers, and every answer is kept, so a transition is called once for each
input. A refusal is the name of its error. A switch changes the input of a transition, so that its condition
always holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from typing import Any, TypeVar

import msgspec

from tests.protocol.state_model.world import QUERY, Setting
from wal_sink.errors import LogFull, WalSinkError
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerRow, claim_sending
from wal_sink.model.state import (
    Change,
    EpochManifest,
    Predecessor,
    Run,
    State,
    Sums,
    TargetState,
)
from wal_sink.protocol import flush_decisions
from wal_sink.protocol import state as transitions
from wal_sink.protocol.flush_decisions import Chain, Decision, Step
from wal_sink.protocol.retention import Retention, trimmable
from wal_sink.protocol.state import Actor, Opening

SWITCHES = {
    "identity": "identity: a log is used by a copy of its checkpoint, and a ledger row of any log id",
    "state": "state: a change is made though the state has moved since it was read",
    "fence": "one-publisher: any run publishes",
    "planned": "one-publisher: a run opens though another one has since its batch was planned",
    "reopen": "one-publisher: a run that was superseded opens again",
    "sync_segments": "segments: a segment is reported before it is durable",
    "unsettled": "publish: what is settled is published again",
    "offsets": "publish: a replay from other source offsets passes",
    "sync_offsets": "publish: offsets/N is not durable before it",
    "sync_commits": "publish: commits/N-1 is not durable before it",
    "budget_completed": "publish: the budget counts epochs that are not completed",
    "settle": "settle: nobody settles, what commits/ covers is taken",
    "state_first": "settle: by commits/ that were read before the state",
    "exact_settle": "settle: from any newer state, too",
    "missing": "order: a missing manifest is an empty epoch",
    "whole": "repeatable: the ledger row moves before the last row is acknowledged",
    "same_time": "repeatable: a row is written with the time of the write",
    "sending": "repeatable: a sending of a list is not claimed",
    "compare": "ledger: finish does not compare",
    "kept": "ledger: a row of an earlier pass serves though it is not that of the mark",
    "ahead": "restored: a row ahead is recorded with any digest",
    "chain": "restored: a row ahead is compared with any manifest, not with the chain",
    "mark_settles": "restored: a mark does not settle",
    "trimmed": "restored: a target goes back to what may be trimmed",
    "says_first": "trim: the state does not say first what may be deleted",
    "all_marks": "trim: what one of the targets has",
    "marked": "trim: what is settled",
    "opened_before": "trim: what any other run left goes",
    "given_up_stay": "trim: the files of epochs that were given up",
    "stop": "stop: an error gives the epoch up by itself",
    "confirm": "stop: an error counts though the state has moved",
    "drained": "targets: others at an open though one lacks an epoch",
    "live": "targets: an open with only targets that were given up",
    "lift": "targets: one that comes back keeps its old row",
    "lift_log": "targets: a row before the first epoch of a log is lifted, too",
    "entry_first": "rows: the ledger moves before refused rows are durable",
    "pass_over": "rows: a row in refused/ is written again",
    "adopted_digest": "adopt: the row keeps its digest before the first epoch of a new log",
}
"""What happens if a condition is switched off, by the name of the switch. Each text begins with the rule."""

NAMES = ("a", "b", "c")
ACTOR = Actor("model", 0)
MUCH = 10**6
StructT = TypeVar("StructT", bound=msgspec.Struct)


class Protocol:
    """Calls the transitions for a setting, with the conditions that are switched on."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.off = frozenset(setting.off)
        assert self.off <= SWITCHES.keys(), self.off
        self._ids: dict[bytes, int] = {}
        self._values: list[Any] = []
        self._answers: dict[tuple[Any, ...], Any] = {}
        self.retention = Retention(1, MUCH) if setting.ticks else Retention(0, 0)

    def alone(self, place: int) -> Protocol:
        """Return the protocol for a fresh run and a fresh flusher at a place, with no other event."""
        other = copy(self)
        other.setting = self.setting._replace(
            lost=False, accept=False, cached=False, trim=False, swallow=False, power=0, sendings=16,
            places=(place,) if self.setting.places else (),
        )  # fmt: skip
        return other

    def intern(self, value: msgspec.Struct) -> int:
        """Return the number of a manifest, or of a state without its own number and author."""
        if isinstance(value, State):
            value = msgspec.structs.replace(value, number=0, changed=Change())
        key = msgspec.json.encode(value)
        number = self._ids.get(key)
        if number is None:
            number = self._ids[key] = len(self._values)
            self._values.append(value)
        return number

    def state(self, number: int) -> State:
        """Return a state by its number."""
        value = self._values[number]
        assert isinstance(value, State)
        return value

    def manifest(self, number: int) -> EpochManifest:
        """Return a manifest by its number."""
        value = self._values[number]
        assert isinstance(value, EpochManifest)
        return value

    def ask(self, what: Callable[..., Any], *inputs: Any) -> Any:
        """Return the answer of a transition: a number for a state, the name of the error for a refusal."""
        key = (what.__name__, *inputs)
        try:
            return self._answers[key]
        except KeyError:
            pass
        try:
            answer = what(*inputs)
        except WalSinkError as error:
            answer = type(error).__name__
        if isinstance(answer, State):
            answer = self.intern(answer)
        self._answers[key] = answer
        return answer

    # --- the log and its runs ----------------------------------------------------------------

    def opening(self, run: int, place: int) -> Opening:
        lists = self.setting.lists
        named = lists[min(run, len(lists) - 1)] if lists else range(self.setting.targets)
        return Opening(QUERY, f"place {place}", f"r{run}", tuple(NAMES[t] for t in named), {})

    def create(self, place: int, run: int, ids: int, committed: int) -> State:
        return transitions.create(self.opening(run, place), f"log {ids}", committed, ACTOR)

    def open_run(self, st: int, run: int, place: int, n: int, now: int, after: int) -> State | None:
        previous, opening = self.state(st), self.opening(run, place)
        opening = opening._replace(after=f"r{after}" if after >= 0 else "")
        if "planned" in self.off:
            opening = opening._replace(after=transitions.last_opened(previous))
        earlier = previous
        if "identity" in self.off:
            earlier = msgspec.structs.replace(earlier, checkpoint=opening.checkpoint)
        if "reopen" in self.off:
            earlier = _replace(
                earlier, opened=tuple(r for r in earlier.opened if r != opening.run_id)
            )
            opening = opening._replace(after=transitions.last_opened(earlier))
        if "drained" in self.off:
            at_last = tuple(
                _replace(t, mark=_replace(t.mark, epoch=earlier.last.epoch))
                for t in earlier.targets
            )
            earlier = _replace(earlier, targets=at_last, settled=earlier.last.epoch)
        if "live" in self.off:
            waiting = tuple(_replace(t, given_up=False) for t in earlier.targets)
            earlier = _replace(earlier, targets=waiting)
        new = transitions.open_run(earlier, opening, n, n - 1, Actor("model", now))
        if new is None:
            return None
        new = _replace(new, checkpoint=previous.checkpoint)
        if "drained" in self.off or "live" in self.off:
            targets = tuple(previous.target(t.name) or t for t in new.targets)
            new = _replace(new, targets=targets, settled=previous.settled)
        return new

    def last_opened(self, st: int) -> int:
        """Return the run that opened last; -1 for none."""
        return int(transitions.last_opened(self.state(st))[1:] or -1)

    def link(self, st: int, run: int, n: int, v: int) -> Predecessor | None:
        """Return the answer of `predecessor_for`."""
        changed = self._told_publish(self.state(st), run, n, v)
        return transitions.predecessor_for(changed, f"r{run}", n, f"v{v}", n - 1)

    def _told_publish(self, state: State, run: int, n: int, v: int) -> State:
        if "fence" in self.off:
            state = _replace(state, run=Run(number=1, run_id=f"r{run}"))
        if "unsettled" in self.off:
            state = _replace(state, settled=min(state.settled, n - 1))
        if "offsets" in self.off and n == state.last.epoch <= state.settled:
            state = _replace(state, last=_replace(state.last, offsets_digest=f"v{v}"))
        return state

    def make_manifest(self, predecessor: Predecessor, run: int, n: int, v: int) -> int:
        """Return the number of a new manifest of a run, with one row and one byte."""
        earlier, time = predecessor.sums, predecessor.last_us + 1
        return self.intern(
            EpochManifest(
                epoch=n,
                manifest=paths.MANIFEST.path(paths.ManifestName(n, f"r{run}")),
                digest=f"{n}.{run}.{v}{predecessor.digest and ' '}{predecessor.digest}",
                offsets_digest=f"v{v}",
                first_us=time,
                last_us=time,
                sums=Sums(rows=earlier.rows + 1, bytes=earlier.bytes + 1),
                predecessor=predecessor,
            )
        )

    def publish(self, st: int, run: int, m: int) -> State | None:
        earlier, manifest = self.state(st), self.manifest(m)
        n, v = manifest.epoch, int(manifest.offsets_digest[1:])
        changed = self._told_publish(earlier, run, n, v)
        budget = self.setting.budget or MUCH
        new = transitions.publish(changed, f"r{run}", manifest, n - 1, budget, ACTOR)
        if new is None:
            return None
        if "budget_completed" in self.off and not transitions.has_space(
            earlier, earlier.last.as_predecessor(), budget
        ):
            raise LogFull("what a dead run has published counts")
        return _replace(new, run=earlier.run, settled=max(earlier.settled, new.settled))

    # --- the flusher -------------------------------------------------------------------------

    def settle(self, st: int, committed: int) -> State | None:
        return transitions.settle(self.state(st), committed, ACTOR)

    def chain(self, state: State, man: frozenset[int]) -> Chain:
        return chain_of(state, [self.manifest(m) for m in man])

    def _row(self, state: State, row: LedgerRow) -> LedgerRow:
        return row._replace(log_id=state.log_id) if "identity" in self.off else row

    def decide(
        self, st: int, t: int, com: int, row: LedgerRow | None, man: frozenset[int]
    ) -> Decision:
        state = self.state(st)
        target = state.target(NAMES[t])
        if "settle" in self.off:
            state = _replace(state, settled=min(com, state.last.epoch))
        if row is not None and target is not None:
            row = self._row(state, row)._replace(sending=0)
        chain = self.chain(state, man)
        try:
            decision = flush_decisions.decide(state, NAMES[t], com, row, chain, self.setting.window)
        except WalSinkError as error:
            return self._skipped(state, target, row, type(error).__name__)
        if decision.warning and "lift" in self.off:
            return self._refused("LedgerBehindLog")
        return decision

    def may_keep(self, st: int, t: int, row: LedgerRow | None) -> bool:
        if row is not None and "kept" in self.off:
            return True
        return flush_decisions.may_keep(self.state(st), NAMES[t], row)

    def _refused(self, error: str) -> Decision:
        return Decision(Step.WAIT, warning=error)

    def _skipped(
        self, state: State, target: TargetState | None, row: LedgerRow | None, error: str
    ) -> Decision:
        """Return the decision after an error that does not stop the flush, if a switch says so."""
        assert target is not None
        at_mark = row is not None and row.epoch == target.mark.epoch
        on = LedgerRow(QUERY, state.log_id, target.mark.epoch + 1, "none")
        if self.off & {"missing", "stop"} and error == "MissingManifest" and at_mark:
            return Decision(Step.SET_ROW, on)
        if "lift_log" in self.off and error == "LedgerBehindLog" and row is not None:
            start = LedgerRow(QUERY, state.log_id, target.first - 1, target.mark.digest)
            return Decision(Step.SET_ROW, start)
        return self._refused(error)

    def mark(self, st: int, t: int, row: LedgerRow, man: frozenset[int], now: int) -> State:
        state_before = self.state(st)
        row = self._row(state_before, row)._replace(sending=0)
        chain, changed = self.chain(state_before, man), row
        manifests = [self.manifest(m) for m in man]
        link = flush_decisions.link_at(state_before, row.epoch, chain)
        known = "chain" in self.off and any(
            (m.epoch, m.digest) == (row.epoch, row.digest) for m in manifests
        )
        if self.off & {"missing", "stop"} and row.digest == "none":
            known = True
        if link is not None and (known or "ahead" in self.off):
            changed = row._replace(digest=link.digest)
        new = transitions.mark(
            state_before, NAMES[t], changed, chain, self.retention, Actor("model", now)
        )
        if "mark_settles" in self.off:
            new = _replace(new, settled=state_before.settled)
        if self.off & {"all_marks", "marked", "says_first"}:
            new = _replace(new, trimmed=state_before.trimmed)
        return self._marked(new, t, row)

    def went_back(self, st: int, t: int, row: LedgerRow, man: frozenset[int], now: int) -> State:
        state_before = self.state(st)
        row = self._row(state_before, row)._replace(sending=0)
        chain, changed = self.chain(state_before, man), state_before
        if "trimmed" in self.off:
            changed = _replace(changed, trimmed=-1)
        new = transitions.went_back(changed, NAMES[t], row, chain, Actor("model", now))
        return self._marked(_replace(new, trimmed=state_before.trimmed), t, row)

    def _marked(self, state: State, t: int, row: LedgerRow) -> State:
        targets = tuple(
            _replace(target, mark=_replace(target.mark, digest=row.digest))
            if target.name == NAMES[t]
            else target
            for target in state.targets
        )
        return _replace(state, targets=targets)

    def trim(self, st: int, now: int) -> State | None:
        state_before = self.state(st)
        earlier = state_before
        if "marked" in self.off:
            earlier = _replace(earlier, targets=())
        elif "all_marks" in self.off:
            far = max(earlier.targets, key=lambda target: target.mark.epoch)
            earlier = _replace(earlier, targets=(far,))
        if trimmable(earlier, self.retention, now) <= state_before.trimmed:
            return None
        new = transitions.trim(earlier, self.retention, Actor("model", now))
        return None if new is None else _replace(new, targets=state_before.targets)

    def is_garbage(self, st: int, epoch: int, run: int, opener: int = -1) -> bool:
        state = self.state(st)
        if "opened_before" in self.off and state.run is not None:
            others = state.run.run_id != f"r{run}"
            opened = (f"r{run}", state.run.run_id) if others else state.opened
            state = _replace(state, opened=opened)
        if "given_up_stay" in self.off:
            state = _replace(state, given_up=())
        return transitions.is_garbage(state, epoch, f"r{run}")

    # --- operators ---------------------------------------------------------------------------

    def give_up_epoch(self, st: int, t: int, n: int) -> State | None:
        return transitions.give_up_epoch(self.state(st), NAMES[t], n, ACTOR)

    def give_up_missing(self, st: int, m: int, com: int) -> State | None:
        return transitions.give_up_missing(self.state(st), self.manifest(m), com, ACTOR)

    def give_up_target(self, st: int, t: int) -> State | None:
        return transitions.give_up_target(self.state(st), NAMES[t], ACTOR)

    def adopt(self, st: int, ids: int, place: int) -> State:
        return transitions.adopt(self.state(st), f"log {ids}", f"place {place}", ACTOR)

    def adopted_row(self, st: int, row: LedgerRow) -> LedgerRow:
        new = transitions.adopted_row(self.state(st), row)
        return new._replace(digest=row.digest) if "adopted_digest" in self.off else new

    def row_at(self, st: int, n: int, man: frozenset[int]) -> LedgerRow:
        """Return the ledger row that `set-mark` sets."""
        state = self.state(st)
        return flush_decisions.row_at(state, n, self.chain(state, man))

    def claim_sending(self, row: LedgerRow) -> LedgerRow:
        return row if "sending" in self.off else claim_sending(row)


def _replace(value: StructT, **changes: Any) -> StructT:
    return msgspec.structs.replace(value, **changes)


def chain_of(state: State, manifests: Iterable[EpochManifest]) -> Chain:
    """Return the manifests to which `last` leads, by epoch. The chain ends where a manifest is missing.

    A manifest of the same epoch with another digest belongs to another attempt, and is ignored.

    :param manifests: the manifests that were read.
    """
    by_digest = {manifest.digest: manifest for manifest in manifests}
    chain: dict[int, EpochManifest] = {}
    digest = state.last.digest
    while (manifest := by_digest.get(digest)) is not None and digest:
        chain[manifest.epoch] = manifest
        digest = manifest.predecessor.digest
    return chain
