"""Reads and writes the log of one query, object by object, over a state backend.

`Log` knows what each object is for, not when it may be written: `publish`, `flush` and `trim` decide that.
An object that is created twice keeps its first content.

Reads and writes any object of a query's log: once, whole, and each target's own in its own place.

Reads and writes the records of what is flushed: which epochs are in the target, and as what (rule 17).

The epochs of a window are recorded together. The last one has an object of its own; the newest of these is
the log's mark. The others share an object, which is made before that one and counts up to the mark: in a
backlog of small epochs it costs one sync, or one request, where a record for each cost up to 63.

Reads many objects of the log: side by side where each read is a request over a network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from state_backends import StateBackend
from wal_sink import errors
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import Record
from wal_sink.model.manifest import Attempt, Manifest, Published
from wal_sink.model.plan import Plan
from wal_sink.model.records import (
    Chosen,
    Claim,
    CommitProof,
    Decision,
    FlushedEpoch,
    FlushedWindow,
    FlusherReport,
    Intervention,
    LogIdentity,
    OrphanTombstone,
    Stop,
    TargetState,
    Ticket,
    WithoutSink,
    first_epoch,
)

R = TypeVar("R", bound=Record)
N = TypeVar("N", int, str, Attempt)


class LogObjects:
    """The objects of one log, as one of its targets sees them: what all targets share, and its own.

    Every path is given as in a log of one target. Of what each target has for itself, `own` says where it
    lies.

    :param backend: a state backend whose root is the log's folder.
    :param target: the target's name where the log has several; empty where it has one.
    """

    def __init__(self, backend: StateBackend, target: str = "") -> None:
        self.backend = backend
        self.target = target

    @property
    def url(self) -> str:
        """Where the log is, for messages."""
        return self.backend.url

    def own(self, path: str) -> str:
        """Return where an object lies: one that each target has for itself, in the place of this target."""
        return paths.of_target(self.target, path)

    def where(self, path: str) -> str:
        """Return an object's URL, for messages."""
        return f"{self.url}/{self.own(path)}"

    def names(self, folder: str, *, fresh: bool = False) -> list[str]:
        """List the objects of a folder, by their paths in a log of one target.

        :param fresh: see `StateBackend.list_fresh`.
        """
        mine = self.own(folder)
        found = self.backend.list_fresh(mine) if fresh else self.backend.list(mine)
        return found if mine == folder else [folder + path.removeprefix(mine) for path in found]

    def delete(self, objects: Iterable[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        self.backend.delete(map(self.own, objects))

    def read(self, kind: type[R], path: str) -> R | None:
        """Read a record; None when there is none.

        :raises CorruptLog: what is there is no such record.
        """
        try:
            return kind.from_json(self.backend.read(self.own(path)), self.where(path))
        except FileNotFoundError:
            return None

    def read_bytes(self, *places: str) -> bytes | None:
        """Read the first of several objects that is there; None when none is."""
        for path in places:
            with contextlib.suppress(FileNotFoundError):
                return self.backend.read(self.own(path))
        return None

    def create(self, path: str, record: Record) -> None:
        """Create a record; the first content stays, which callers read back where it matters to them."""
        self.create_bytes(path, record.to_json())

    def create_bytes(self, path: str, data: bytes) -> None:
        """Create an object of these bytes; the first content stays."""
        with contextlib.suppress(FileExistsError):
            self.backend.create(self.own(path), data)

    def _settle(self, path: str, record: R) -> R:
        """Create a record unless there is one; return the one that stands."""
        present = self.read(type(record), path)
        if present is None:
            self.create(path, record)
            present = self.read(type(record), path)
        if present is None:
            raise CorruptLog(f"{self.where(path)} vanished", "Do not edit the log by hand.")
        return present

    def _listed(
        self, folder: str, parse: Callable[[str], N | None], *, fresh: bool = False
    ) -> list[N]:
        """List what the names of a folder's objects say, ascending; foreign names are passed over.

        :param fresh: see `StateBackend.list_fresh`.
        """
        parsed = map(parse, self.names(folder, fresh=fresh))
        return sorted(name for name in parsed if name is not None)


class Recorded(NamedTuple):
    """An object of `flushed/`, by its name: of which epochs it has the records."""

    window_end: int
    """The last epoch of the window. That has a record of its own, which makes those of the others count."""
    first: int
    last: int
    """The same as `window_end` in the object of that epoch, else the one before it."""
    path: str

    @property
    def is_mark(self) -> bool:
        """Whether it has the record of the last epoch, which was the log's mark when it was made."""
        return self.last == self.window_end

    def covers(self, epoch: int) -> bool:
        """Whether it has the record of an epoch."""
        return self.first <= epoch <= self.last


class FlushRecords(LogObjects):
    """The records of flushed epochs, as one of the log's targets sees them."""

    def newest_flushed(self, *, fresh: bool = False) -> FlushedEpoch | None:
        """Read the newest record: the flushed mark of the log.

        :param fresh: to conclude from a record that is missing, see `StateBackend.list_fresh`.
        """
        newest = self.newest_flushed_epoch(fresh=fresh)
        if newest is None:
            return None
        path = paths.flushed(newest)
        data = self.read_bytes(path, paths.retained_record(newest))
        return None if data is None else FlushedEpoch.from_json(data, self.where(path))

    def newest_flushed_epoch(self, *, fresh: bool = False) -> int | None:
        """Return the epoch of the newest record; it is not read."""
        names = reversed(self.names(paths.FLUSHED, fresh=fresh))  # which ascend as the epochs do
        parsed = map(paths.parse_flushed, names)
        return next((epoch for epoch in parsed if epoch is not None), None)

    def flushed(self, epoch: int) -> FlushedEpoch | None:
        """Read the record of one epoch; None when it is not flushed, or long ago."""
        found = self._window_of(epoch)
        return found[-1] if found else self.read(FlushedEpoch, paths.retained_record(epoch))

    def flushed_since(self, epoch: int) -> list[FlushedEpoch]:
        """Read the records of all epochs above `epoch`, ascending; each object once."""
        found: dict[int, FlushedEpoch] = {}
        for each in self._counted():
            for record in self.read_recorded(each) if each.last > epoch else ():
                found[record.epoch] = max(found.get(record.epoch, record), record, key=_begun)
        return [found[each] for each in sorted(found) if each > epoch]

    def flushed_epochs(self, *, fresh: bool = False) -> list[int]:
        """List the epochs that have a record, ascending.

        :param fresh: see `newest_flushed`.
        """
        counted = self._counted(fresh=fresh)
        return sorted({epoch for each in counted for epoch in range(each.first, each.last + 1)})

    def record_flushed(self, records: Iterable[FlushedEpoch]) -> None:
        """Record that the epochs of a window are in the target; an object that is there stays.

        The record of the last one comes last, and makes the others count.

        :param records: at least one, contiguous and ascending.
        """
        *others, last = records
        objects = {}
        if others:
            path = paths.flushed_window(others[0].epoch, others[-1].epoch, others[0].base_us)
            objects[self.own(path)] = FlushedWindow(epochs=tuple(others)).to_json()
        objects[self.own(paths.flushed(last.epoch))] = last.to_json()
        self.backend.create_missing(objects)

    def cut_window(self, to: int) -> None:
        """Record the epochs of a window up to `to` as if that were all of it, so that `to` can be the mark.

        Changes nothing while there is a later mark.
        """
        if records := self._window_of(to):
            self.record_flushed(records)

    def recorded_above(self, to: int, copied: Iterable[int]) -> list[tuple[int, list[str]]]:
        """List what `rewind` deletes one after the other: the records of the epochs above `to`, newest first.

        By windows, each with its last epoch, since the mark goes down window by window. The record of the
        last epoch, which makes those of the others count, comes behind them and behind their copies.

        :param copied: epochs of which there may be a copy in `retained/`.
        """
        objects: dict[int, list[str]] = {}
        end_of: dict[int, int] = {}
        for each in self.recorded():
            objects.setdefault(each.window_end, []).append(each.path)
            end_of.update(dict.fromkeys(range(each.first, each.last + 1), each.window_end))
        for epoch in (epoch for epoch in copied if epoch > to):
            of_window = objects.setdefault(end_of.get(epoch, epoch), [])
            of_window.insert(0, paths.retained_record(epoch))
        return [(end, objects[end]) for end in sorted(objects, reverse=True) if end > to]

    def recorded(self, *, fresh: bool = False) -> list[Recorded]:
        """List the objects with records, ascending by the last epoch of their windows.

        :param fresh: see `newest_flushed`.
        """
        found = []
        for path in self.names(paths.FLUSHED, fresh=fresh):
            if (epoch := paths.parse_flushed(path)) is not None:
                found.append(Recorded(epoch, epoch, epoch, path))
            elif (window := paths.parse_flushed_window(path)) is not None:
                found.append(Recorded(window[1] + 1, *window, path))
        return sorted(found)

    def read_recorded(self, each: Recorded) -> tuple[FlushedEpoch, ...]:
        """Read the records of an object; none when it is gone.

        :raises CorruptLog: it has no such records.
        """
        found: tuple[FlushedEpoch, ...]
        if each.is_mark:
            record = self.read(FlushedEpoch, each.path)
            found = () if record is None else (record,)
        else:
            window = self.read(FlushedWindow, each.path)
            found = () if window is None else window.epochs
        if found and [record.epoch for record in found] != [*range(each.first, each.last + 1)]:
            raise CorruptLog(
                f"{self.where(each.path)} holds the records of other epochs",
                "Restore the file from a copy; records must not be renamed.",
            )
        return found

    def _counted(self, *, fresh: bool = False) -> list[Recorded]:
        """List the objects whose records count: those of windows up to the mark."""
        listed = self.recorded(fresh=fresh)
        mark = max((each.last for each in listed if each.is_mark), default=-1)
        return [each for each in listed if each.window_end <= mark]

    def _window_of(self, epoch: int) -> list[FlushedEpoch]:
        """Read the records of an epoch and of those that precede it in its object; none without a record.

        Several objects have one after a rewind, if a flusher that stood still has recorded its window late,
        or where a version that knows of no windows has made again what a power loss took. The record of the
        epoch as it was begun last counts.
        """
        read = [self.read_recorded(each) for each in self._counted() if each.covers(epoch)]
        found = [[record for record in records if record.epoch <= epoch] for records in read]
        return max(filter(None, found), key=lambda each: (_begun(each[-1]), len(each)), default=[])


def _begun(record: FlushedEpoch) -> int:
    """Return what tells which of two records of one epoch is the newer one: timestamps grow (rule 14)."""
    return record.base_us


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
        """Read `log.json`; None before the first start.

        One of several targets may begin later, or again behind epochs that it lacks.
        """
        identity = self.read(LogIdentity, paths.LOG)
        if identity is None or not self.target:
            return identity
        first = max(identity.first_epoch, first_epoch(self.states()))
        return replace(identity, first_epoch=first)

    def states(self) -> list[TargetState]:
        """Read all states of this one of several targets, oldest first."""
        listed = self.names(paths.target_states(self.target)) if self.target else []
        found = (self.read(TargetState, path) for path in listed if paths.parse_target_state(path))
        return [state for state in found if state is not None]

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
                "The file was edited. " + errors.lost_manifest(attempt.epoch),
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

    def create_note(self, path: str, note: CommitProof | OrphanTombstone) -> None:
        """Create a note about an attempt, once; one about a run of a history that was lost goes (rule 23)."""
        if (present := self.read(type(note), path)) and present.run_id != note.run_id:
            self.delete([path])
        self.create(path, note)

    def kept(self, epoch: int) -> list[CommitProof]:
        """Read the notes that fenced and waiting runs have left about an epoch."""
        notes = self._listed(paths.KEPT, paths.parse_kept)
        found = (self.read(CommitProof, paths.kept(note)) for note in notes if note.epoch == epoch)
        return [note for note in found if note is not None]

    def create_kept(self, kept: CommitProof) -> None:
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


T = TypeVar("T")
V = TypeVar("V")

_REQUESTS_AT_A_TIME = 16


def read_many(log: Log, read: Callable[[T], V], names: Iterable[T]) -> list[V]:
    """Read what each name stands for; return the results in the order of the names.

    :param read: reads one; what it raises is raised here.
    """
    if not log.backend.billed:
        return [read(name) for name in names]
    with ThreadPoolExecutor(_REQUESTS_AT_A_TIME) as pool:
        return list(pool.map(read, names))
