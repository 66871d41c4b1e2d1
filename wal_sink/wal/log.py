"""Reads and writes the log of one query, object by object, over a state backend.

`Log` knows what each object is for, not when it may be written: `publish`, `flush` and `trim` decide that.
An object that is created twice keeps its first content.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from state_backends import StateBackend
from wal_sink import remedies
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt, Manifest, Published
from wal_sink.model.plan import Plan
from wal_sink.model.records import (
    Chosen,
    Claim,
    Decision,
    FlusherReport,
    Intervention,
    Kept,
    LogIdentity,
    Stop,
    Swept,
    TargetState,
    Ticket,
    WithoutSink,
)
from wal_sink.wal.flush_records import FlushRecords


class Log(FlushRecords):
    """The folder `<wal.location>/<query id>`, as one of the log's targets sees it; see `LogObjects`."""

    def __init__(self, backend: StateBackend, target: str = "", *, several: bool = False) -> None:
        """:param several: whether the log has targets with names, be it one. It is for ever so, or not."""
        super().__init__(backend, target)
        self.several = several or bool(target)
        self._plans: dict[str, Plan] = {}

    def __reduce__(self) -> tuple[object, ...]:
        # It travels to tasks, without what it remembers.
        return partial(type(self), several=self.several), (self.backend, self.target)

    def of(self, target: str) -> Log:
        """Return the same log as one of its targets sees it; empty: as the publisher does."""
        if target == self.target:
            return self
        return type(self)(self.backend, target, several=self.several)

    # --- whose log it is (rule 1) ---

    def identity(self) -> LogIdentity | None:
        """Read `log.json`; None before the first publish. One of several targets may begin later."""
        identity = self.read(LogIdentity, paths.LOG)
        if identity is None or not self.target:
            return identity
        states = (self.read(TargetState, path) for path in self._states())
        attached = [state.epoch for state in states if state and state.verb == "attached"]
        return replace(identity, first_epoch=max([identity.first_epoch, *attached]))

    def _states(self) -> list[str]:
        """List the states of this target."""
        return self.names(paths.target_states(self.target))

    def create_identity(self, identity: LogIdentity) -> LogIdentity:
        """Create `log.json` unless it is there; return the one that is there."""
        return self._settle(paths.LOG, identity)

    def replace_identity(self, identity: LogIdentity) -> None:
        """Put another `log.json` in its place, whole: an operator adopts the log (rule 22).

        A crash may bring the old one back; then the log is as wrongly owned as before.
        """
        self.backend.replace(paths.LOG, identity.to_json())

    # --- who may publish (rules 2 and 3) ---

    def create_ticket(self, ticket: Ticket) -> None:
        """Write a run's ticket, once."""
        self.create(paths.ticket(ticket.run_id), ticket)

    def ticket(self, run_id: str) -> Ticket | None:
        """Read a run's ticket."""
        return self.read(Ticket, paths.ticket(run_id))

    def create_stop(self, run_id: str) -> None:
        """Note that a run is told to stop."""
        self.create(paths.stop(run_id), Stop(run_id=run_id))

    def is_stopping(self, run_id: str) -> bool:
        """Whether a run was told to stop."""
        return self.read(Stop, paths.stop(run_id)) is not None

    def highest_generation(self) -> int:
        """Return the highest generation claimed, 0 for none."""
        return max(self.generations(), default=0)

    def generations(self, *, fresh: bool = True) -> list[int]:
        """List the generations claimed that are left, ascending; `fresh` may write (`list_fresh`)."""
        return self._listed(paths.RUNS, paths.parse_run, fresh=fresh)

    def claim(self, generation: int, claim: Claim) -> Claim:
        """Claim a generation unless it is claimed, which is read first; return the claim that stands."""
        return self._settle(paths.run(generation), claim)

    def claimed(self, generation: int) -> Claim | None:
        """Read the claim of a generation; None: no run has claimed it, or its claim was deleted since."""
        return self.read(Claim, paths.run(generation))

    # --- what was agreed with the target ---

    def plan(self, key: str) -> Plan | None:
        """Read a plan; once, as none ever changes."""
        plan = self._plans.get(key) or self.read(Plan, paths.plan(key))
        if plan is not None:
            self._plans[key] = plan
        return plan

    def plans(self) -> Iterator[Plan]:
        """Read every plan by which rows of this log were ever published."""
        for key in self._listed(paths.PLANS, paths.parse_plan):
            if (plan := self.plan(key)) is not None:
                yield plan

    def create_plan(self, plan: Plan) -> None:
        """Keep a plan."""
        self.create(paths.plan(plan.key), plan)

    # --- what was published (rule 6) ---

    def attempts(self, *, fresh: bool = False) -> tuple[Attempt, ...]:
        """List the manifests there are, ascending; `fresh` to choose among them, see `newest_flushed`."""
        return tuple(self._listed(paths.MANIFESTS, paths.parse_manifest, fresh=fresh))

    def manifest(self, attempt: Attempt) -> Published | None:
        """Read a manifest, also a retained one, and its digest; None when it is gone."""
        path = paths.manifest(attempt)
        data = self.read_bytes(path, paths.retained_manifest(attempt))
        if data is None:
            return None
        found = Manifest.from_file(data, self.where(path))
        manifest = found.manifest
        if manifest.attempt != attempt:
            raise CorruptLog(
                f"{self.where(path)} holds the manifest of {manifest.attempt}",
                "Restore the file from a copy; manifests must not be renamed.",
            )
        if not _names_only_its_own(manifest):
            raise CorruptLog(
                f"{self.where(path)} names a plan or a segment that is not its own",
                "The file was edited. " + remedies.lost_manifest(attempt.epoch),
            )
        return found

    def create_manifest(self, manifest: Manifest) -> Manifest | None:
        """Create a manifest unless it is there; return the one that is there.

        None when it is gone again: the epoch was flushed from another attempt, and trimmed.
        """
        self.create_bytes(paths.manifest(manifest.attempt), manifest.to_file())
        return found.manifest if (found := self.manifest(manifest.attempt)) else None

    def segments(self) -> list[tuple[int, str]]:
        """List epoch and path of the segments there are, ascending, named by a manifest or not."""
        found = ((paths.parse_segment_epoch(p), p) for p in self.backend.list(paths.SEGMENTS))
        return [(epoch, path) for epoch, path in found if epoch is not None]

    # --- what Spark kept (rule 11) ---

    def create_note(self, path: str, note: Kept | Swept) -> None:
        """Create a note about an attempt, once; one about a run of a history that was lost goes (rule 23)."""
        if (present := self.read(type(note), path)) and present.run_id != note.run_id:
            self.delete([path])
        self.create(path, note)

    def kept(self, epoch: int) -> list[Kept]:
        """Read the notes that fenced and waiting runs have left about an epoch."""
        notes = self._listed(paths.KEPT, paths.parse_kept)
        found = (self.read(Kept, paths.kept(note)) for note in notes if note.epoch == epoch)
        return [note for note in found if note is not None]

    def create_kept(self, kept: Kept) -> None:
        """Note that Spark kept an attempt, once."""
        self.create_note(paths.kept(Attempt(kept.epoch, kept.generation)), kept)

    # --- what Spark made without a sink (rule 12) ---

    def without_sink(self, epoch: int) -> WithoutSink | None:
        """Read the note that Spark's offline state repartition made an epoch, or passed over it."""
        return self.read(WithoutSink, paths.without_sink(epoch))

    def without_sinks(self) -> list[int]:
        """List the epochs that have such a note; freshly, to conclude from one that is missing."""
        return list(self._listed(paths.WITHOUT_SINK, paths.parse_without_sink, fresh=True))

    def create_without_sink(self, note: WithoutSink) -> None:
        """Note that Spark made an epoch, or passed over it, without a sink; one that is there stays."""
        self.create(paths.without_sink(note.epoch), note)

    # --- what every target gets (rule 11) ---

    def chosen(self, epoch: int) -> Chosen | None:
        """Read which attempt at an epoch each of several targets gets; None: it is not decided yet."""
        return self.read(Chosen, paths.chosen(epoch))

    def settle_chosen(self, chosen: Sequence[Chosen]) -> bool:
        """Decide about epochs for all targets, unless that was done; whether it is decided so."""
        self.backend.create_missing({paths.chosen(each.epoch): each.to_json() for each in chosen})
        return all(self.chosen(each.epoch) == each for each in chosen)

    # --- what operators have decided (rule 22) ---

    def decisions(self, epoch: int) -> list[Decision]:
        """Read the decisions to give an epoch up, oldest first; only the last one can be in force."""
        found: list[Decision] = []
        while (decision := self.read(Decision, paths.decision(epoch, len(found)))) is not None:
            found.append(decision)
        return found

    def decided(self, *, fresh: bool = False) -> list[int]:
        """List the epochs that were given up, ascending.

        :param fresh: to conclude from a decision that is missing, see `newest_flushed`.
        """
        return sorted(set(self._listed(paths.DECISIONS, paths.parse_decision, fresh=fresh)))

    def create_decision(self, decision: Decision, number: int = 0) -> Decision:
        """Record a decision unless there is one; return the one that stands.

        :param number: how many decisions about the epoch there are, none of them in force.
        """
        return self._settle(paths.decision(decision.epoch, number), decision)

    def record_intervention(self, intervention: Intervention) -> str:
        """Record what an operator is about to do; return the record's path."""
        path = paths.intervention(intervention.verb, intervention.at_us)
        self.create(path, intervention)
        return path

    def interventions(self, verb: str) -> list[Intervention]:
        """Read what operators were about to do, by one of the verbs, oldest first."""
        listed = self.names(paths.DECISIONS)
        records = [path for path in listed if paths.parse_intervention(path) == verb]
        return [record for path in records if (record := self.read(Intervention, path)) is not None]

    # --- hints ---

    def report(self, report: FlusherReport) -> None:
        """Say what the flusher does."""
        self.backend.replace(self.own(paths.FLUSHER), report.to_json())

    def last_report(self) -> FlusherReport | None:
        """Read what a flusher said last."""
        return self.read(FlusherReport, paths.FLUSHER)


def _names_only_its_own(manifest: Manifest) -> bool:
    """Whether all that a manifest names lies in its own log: what it names is read, and sent."""
    return paths.is_plan_key(manifest.plan) and all(
        paths.is_segment_of(segment.path, manifest.epoch) and min(segment.rows, segment.bytes) >= 0
        for segment in manifest.all_segments
    )
