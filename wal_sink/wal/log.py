"""Reads and writes the log of one query, object by object, over a state backend.

`Log` knows what each object is for, not when it may be written: `publish`, `flush` and `trim` decide that.
An object that is created twice keeps its first content.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import TypeVar

from state_backends import StateBackend
from wal_sink import remedies
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import Record, digest
from wal_sink.model.manifest import Attempt, Manifest, Published
from wal_sink.model.plan import Plan
from wal_sink.model.records import (
    Claim,
    Decision,
    FlushedEpoch,
    FlusherReport,
    Intervention,
    Kept,
    LogIdentity,
    Stop,
    Swept,
    Ticket,
    WithoutSink,
)

R = TypeVar("R", bound=Record)
N = TypeVar("N", int, Attempt)


class Log:
    """The folder `<wal.location>/<query id>`.

    :param backend: a state backend whose root is that folder.
    """

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend
        self._plans: dict[str, Plan] = {}

    def __reduce__(self) -> tuple[type[Log], tuple[StateBackend]]:
        return type(self), (self.backend,)  # it travels to tasks, without what it remembers

    @property
    def url(self) -> str:
        """Where the log is, for messages."""
        return self.backend.url

    # --- any object ---

    def delete(self, objects: Iterable[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        self.backend.delete(objects)

    def read(self, kind: type[R], path: str) -> R | None:
        """Read a record; None when there is none.

        :raises CorruptLog: what is there is no such record.
        """
        try:
            return kind.from_json(self.backend.read(path), self._where(path))
        except FileNotFoundError:
            return None

    def read_bytes(self, *places: str) -> bytes | None:
        """Read the first of several objects that is there; None when none is."""
        for path in places:
            with contextlib.suppress(FileNotFoundError):
                return self.backend.read(path)
        return None

    def create(self, path: str, record: Record) -> None:
        """Create a record; the first content stays, which callers read back where it matters to them."""
        with contextlib.suppress(FileExistsError):
            self.backend.create(path, record.to_json())

    def create_note(self, path: str, note: Kept | Swept) -> None:
        """Create a note about an attempt, once; one about a run of a history that was lost goes (rule 23)."""
        if (present := self.read(type(note), path)) and present.run_id != note.run_id:
            self.delete([path])
        self.create(path, note)

    def _settle(self, path: str, record: R) -> R:
        """Create a record unless there is one; return the one that stands."""
        present = self.read(type(record), path)
        if present is None:
            self.create(path, record)
            present = self.read(type(record), path)
        if present is None:
            raise CorruptLog(f"{self._where(path)} vanished", "Do not edit the log by hand.")
        return present

    def _listed(
        self, folder: str, parse: Callable[[str], N | None], *, fresh: bool = False
    ) -> list[N]:
        """List what the names of a folder's objects say, ascending; foreign names are passed over.

        :param fresh: see `StateBackend.list_fresh`.
        """
        names = self.backend.list_fresh(folder) if fresh else self.backend.list(folder)
        parsed = map(parse, names)
        return sorted(name for name in parsed if name is not None)

    def _where(self, path: str) -> str:
        return f"{self.url}/{path}"

    # --- whose log it is (rule 1) ---

    def identity(self) -> LogIdentity | None:
        """Read `log.json`; None before the first publish."""
        return self.read(LogIdentity, paths.LOG)

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

    def create_plan(self, plan: Plan) -> None:
        """Keep a plan."""
        self.create(paths.plan(plan.key), plan)

    # --- what was published (rule 6) ---

    def attempts(self, *, fresh: bool = False) -> tuple[Attempt, ...]:
        """List the manifests there are, ascending; `fresh` to choose among them, see `newest_flushed`."""
        return tuple(self._listed(paths.MANIFESTS, paths.parse_manifest, fresh=fresh))

    def manifest(self, attempt: Attempt) -> Published | None:
        """Read a manifest, also a retained one, and the digest of its file; None when it is gone."""
        path = paths.manifest(attempt)
        data = self.read_bytes(path, paths.retained_manifest(attempt))
        if data is None:
            return None
        manifest = Manifest.from_json(data, self._where(path))
        if manifest.attempt != attempt:
            raise CorruptLog(
                f"{self._where(path)} holds the manifest of {manifest.attempt}",
                "Restore the file from a copy; manifests must not be renamed.",
            )
        if not _names_only_its_own(manifest):
            raise CorruptLog(
                f"{self._where(path)} names a plan or a segment that is not its own",
                "The file was edited. " + remedies.lost_manifest(attempt.epoch),
            )
        return Published(manifest, digest(data))

    def create_manifest(self, manifest: Manifest) -> Manifest | None:
        """Create a manifest unless it is there; return the one that is there.

        None when it is gone again: the epoch was flushed from another attempt, and trimmed.
        """
        self.create(paths.manifest(manifest.attempt), manifest)
        return found.manifest if (found := self.manifest(manifest.attempt)) else None

    def segments(self) -> list[tuple[int, str]]:
        """List epoch and path of the segments there are, ascending, named by a manifest or not."""
        found = ((paths.parse_segment_epoch(p), p) for p in self.backend.list(paths.SEGMENTS))
        return [(epoch, path) for epoch, path in found if epoch is not None]

    # --- what Spark kept (rule 11) ---

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

    def create_without_sink(self, note: WithoutSink) -> None:
        """Note that Spark made an epoch, or passed over it, without a sink; one that is there stays."""
        self.create(paths.without_sink(note.epoch), note)

    # --- what is flushed (rule 17) ---

    def newest_flushed(self, *, fresh: bool = False) -> FlushedEpoch | None:
        """Read the newest record: the flushed mark of the log.

        :param fresh: to conclude from a record that is missing, see `StateBackend.list_fresh`.
        """
        newest = max(self.flushed_epochs(fresh=fresh), default=None)
        return None if newest is None else self.flushed(newest)

    def flushed(self, epoch: int) -> FlushedEpoch | None:
        """Read the record of one epoch; None when it is not flushed, or long ago."""
        path = paths.flushed(epoch)
        data = self.read_bytes(path, paths.retained_record(epoch))
        return None if data is None else FlushedEpoch.from_json(data, self._where(path))

    def flushed_since(self, epoch: int) -> list[FlushedEpoch]:
        """Read the records of all epochs above `epoch`, ascending."""
        records = (self.flushed(e) for e in self.flushed_epochs() if e > epoch)
        return [record for record in records if record is not None]

    def record_flushed(self, records: Iterable[FlushedEpoch]) -> None:
        """Record that epochs are in the target, each once, in this order."""
        self.backend.create_missing(
            {paths.flushed(record.epoch): record.to_json() for record in records}
        )

    def flushed_epochs(self, *, fresh: bool = False) -> list[int]:
        """List the epochs that have a record, ascending.

        :param fresh: see `newest_flushed`.
        """
        return self._listed(paths.FLUSHED, paths.parse_flushed, fresh=fresh)

    # --- what operators have decided (rule 22) ---

    def decisions(self, epoch: int) -> list[Decision]:
        """Read the decisions to give an epoch up, oldest first; only the last one can be in force."""
        found: list[Decision] = []
        while (decision := self.read(Decision, paths.decision(epoch, len(found)))) is not None:
            found.append(decision)
        return found

    def decided(self) -> list[int]:
        """List the epochs that were given up, ascending."""
        return sorted(set(self._listed(paths.DECISIONS, paths.parse_decision)))

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
        listed = self.backend.list(paths.DECISIONS)
        records = [path for path in listed if paths.parse_intervention(path) == verb]
        return [record for path in records if (record := self.read(Intervention, path)) is not None]

    # --- hints ---

    def report(self, report: FlusherReport) -> None:
        """Say what the flusher does."""
        self.backend.replace(paths.FLUSHER, report.to_json())

    def last_report(self) -> FlusherReport | None:
        """Read what a flusher said last."""
        return self.read(FlusherReport, paths.FLUSHER)


def _names_only_its_own(manifest: Manifest) -> bool:
    """Whether all that a manifest names lies in its own log: what it names is read, and sent."""
    return paths.is_plan_key(manifest.plan) and all(
        paths.is_segment_of(segment.path, manifest.epoch) and min(segment.rows, segment.bytes) >= 0
        for segment in manifest.segments
    )
