"""Reads and writes the objects of one query's log, each whole.

`Log` has a path and a type for each kind of object; `publish`, `flush` and `trim` decide when it is written.
An object that is created twice keeps its first content. Where each read is a request over a network, many
objects are read at a time.

The epochs of a window are recorded together, in one object (rule 17): one sync, or one request, and not up to
64. The newest epoch that has a record is the log's mark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from state_backends import StateBackend
from wal_sink import errors
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import Record
from wal_sink.model.manifest import Attempt, Manifest, Published, attempts_at
from wal_sink.model.paths import DecisionName, InterventionName, Kind, StateName, WindowName
from wal_sink.model.plan import Plan
from wal_sink.model.records import (
    LEFT_FIRST,
    LEFT_LAST,
    Chosen,
    CommitProof,
    Decision,
    FlushedEpoch,
    FlushedWindow,
    FlusherReport,
    Intervention,
    LogIdentity,
    OrphanTombstone,
    TargetState,
    first_epoch,
)

K = TypeVar("K")
R = TypeVar("R", bound=Record)


class Log:
    """The folder `<wal.location>/<query id>`, seen for one of the log's targets: a view.

    Callers give every path as in a log of one target. Some objects exist once for each target: `stored_path`
    puts them into the target's folder. All others are shared.

    :param backend: a state backend whose root is the log's folder.
    :param target: the target's name where the log has several; empty where it has one.
    :param several: whether the log has targets with names, be it one. That never changes.
    :param read: what `read_once` has read in this process, by path; all views of a log share it.
    """

    def __init__(
        self,
        backend: StateBackend,
        target: str = "",
        *,
        several: bool = False,
        read: dict[str, Record] | None = None,
    ) -> None:
        self.backend = backend
        self.target = target
        self.several = several or bool(target)
        self._read_once = {} if read is None else read

    def __reduce__(self) -> tuple[object, ...]:
        # It travels to tasks, without what it has read.
        return partial(type(self), several=self.several), (self.backend, self.target)

    def of(self, target: str) -> Log:
        """Return the view for one of the targets; empty: the publisher's."""
        if target == self.target:
            return self
        return type(self)(self.backend, target, several=self.several, read=self._read_once)

    # --- objects ---

    @property
    def url(self) -> str:
        """The log's URL, for messages."""
        return self.backend.url

    def stored_path(self, path: str) -> str:
        """Return the path at which an object is stored: in this target's folder, if each target has one."""
        return paths.of_target(self.target, path)

    def url_of(self, path: str) -> str:
        """Return an object's URL, for messages."""
        return f"{self.url}/{self.stored_path(path)}"

    def names(self, folder: str, *, fresh: bool = False) -> list[str]:
        """List the objects of a folder, by their paths in a log of one target.

        :param fresh: see `StateBackend.list_fresh`.
        """
        mine = self.stored_path(folder)
        found = self.backend.list_fresh(mine) if fresh else self.backend.list(mine)
        return found if mine == folder else [folder + path.removeprefix(mine) for path in found]

    def delete(self, objects: Iterable[str]) -> None:
        """Delete objects; those that are gone already are no error."""
        self.backend.delete(map(self.stored_path, objects))

    def read_bytes(self, *places: str) -> bytes | None:
        """Read the first of several objects that exists; None for none."""
        for path in places:
            with contextlib.suppress(FileNotFoundError):
                return self.backend.read(self.stored_path(path))
        return None

    # --- records, by their kind ---

    def read(self, kind: Kind[R, K], key: K) -> R | None:
        """Read a record; None when there is none.

        :raises CorruptLog: what is there is no such record.
        """
        return self._read(kind, kind.path(key))

    def _read(self, kind: Kind[R, Any], path: str) -> R | None:
        try:
            return kind.record.from_json(
                self.backend.read(self.stored_path(path)), self.url_of(path)
            )
        except FileNotFoundError:
            return None

    def readable(self, kind: Kind[R, K], key: K) -> R | None:
        """Read a record; None when there is none, or when what is there is damaged."""
        with contextlib.suppress(CorruptLog):
            return self.read(kind, key)
        return None

    def create(self, kind: Kind[R, K], key: K, record: R) -> None:
        """Create a record; an earlier content stays, and callers read it back where it matters to them."""
        self._create(kind.path(key), record.to_json())

    def create_or_read(self, kind: Kind[R, K], key: K, record: R) -> R:
        """Create a record unless there is one; return the one that is there."""
        present = self.read(kind, key)
        if present is None:
            self.create(kind, key, record)
            present = self.read(kind, key)
        if present is None:
            raise CorruptLog(
                f"{self.url_of(kind.path(key))} vanished", "Do not edit the log by hand."
            )
        return present

    def keys(self, kind: Kind[Any, K], *, fresh: bool = False) -> list[K]:
        """List the keys of the records there are, ascending; foreign names are ignored.

        :param fresh: to conclude from a record that is missing, see `StateBackend.list_fresh`.
        """
        parsed = map(kind.parse, self.names(kind.folder, fresh=fresh))
        return sorted(key for key in parsed if key is not None)  # type: ignore[type-var]

    def paths_of(self, kind: Kind[Any, K], wanted: Callable[[K], bool]) -> list[str]:
        """List the paths of the records with the keys that are wanted."""
        return [kind.path(key) for key in self.keys(kind) if wanted(key)]

    def read_once(self, kind: Kind[R, K], key: K) -> R | None:
        """Read a record; one that this process has read already is not read again."""
        place = self.stored_path(kind.path(key))
        record = cast("R | None", self._read_once.get(place)) or self.read(kind, key)
        if record is not None:
            self._read_once[place] = record
        return record

    def _create(self, path: str, data: bytes) -> None:
        with contextlib.suppress(FileExistsError):
            self.backend.create(self.stored_path(path), data)

    # --- whose log it is (rule 1) ---

    def identity(self) -> LogIdentity | None:
        """Read `log.json`; None before the first start.

        One of several targets may begin later, or again behind epochs that it lacks.
        """
        identity = self.read(paths.IDENTITY, ())
        if identity is None or not self.target:
            return identity
        first = max(identity.first_epoch, first_epoch(self.states()))
        return replace(identity, first_epoch=first)

    def replace_identity(self, identity: LogIdentity) -> None:
        """Put another `log.json` in its place, whole: an operator adopts the log (rule 22).

        A crash may bring the old one back; then the log is as wrongly owned as before.
        """
        self.backend.replace(paths.LOG, identity.to_json())

    def state_names(self, *, fresh: bool = False) -> list[StateName]:
        """List the states of this one of several targets, oldest first.

        :param fresh: to conclude from a state that is missing, see `keys`.
        """
        folder = paths.target_states(self.target)
        listed = self.names(folder, fresh=fresh) if self.target else []
        return [name for name in map(paths.TARGET_STATE.parse, listed) if name is not None]

    def states(self, *, fresh: bool = False) -> list[TargetState]:
        """Read all states of this one of several targets, as `state_names` lists them."""
        names = self.state_names(fresh=fresh)
        found = (self.read_once(paths.TARGET_STATE, name) for name in names)
        return [state for state in found if state is not None]

    # --- who may publish (rule 3) ---

    def highest_generation(self) -> int:
        """Return the highest generation claimed, 0 for none."""
        return max(self.keys(paths.CLAIM, fresh=True), default=0)

    # --- what was agreed with the target ---

    def plan(self, key: str) -> Plan | None:
        """Read a plan."""
        return self.read_once(paths.PLAN, key)

    def plans(self) -> Iterator[Plan]:
        """Read every plan by which rows of this log were ever published."""
        for key in self.keys(paths.PLAN):
            if (plan := self.plan(key)) is not None:
                yield plan

    # --- what was published (rule 6) ---

    def attempts(self, *, fresh: bool = False) -> tuple[Attempt, ...]:
        """List the manifests there are, ascending; `fresh` to choose among them, see `keys`."""
        return tuple(self.keys(paths.MANIFEST, fresh=fresh))

    def attempts_at(self, epoch: int) -> Sequence[Attempt]:
        """List the manifests there are of one epoch, ascending."""
        return attempts_at(self.attempts(), epoch)

    def manifest(self, attempt: Attempt) -> Published | None:
        """Read a manifest, also a retained one, and its digest; None when it is gone."""
        path = paths.MANIFEST.path(attempt)
        data = self.read_bytes(path, paths.RETAINED_MANIFEST.path(attempt))
        if data is None:
            return None
        found = Manifest.from_file(data, self.url_of(path))
        manifest = found.manifest
        if manifest.attempt != attempt:
            raise CorruptLog(
                f"{self.url_of(path)} holds the manifest of {manifest.attempt}",
                "Restore the file from a copy; manifests must not be renamed.",
            )
        if not _names_only_its_own(manifest):
            raise CorruptLog(
                f"{self.url_of(path)} names a plan or a segment that is not its own",
                "The file was edited. " + errors.restore_or_skip(attempt.epoch),
            )
        return found

    def create_manifest(self, manifest: Manifest) -> Manifest | None:
        """Create a manifest unless it is there; return the one that is there.

        None when it is gone again: the epoch was flushed from another attempt, and trimmed.
        """
        self._create(paths.MANIFEST.path(manifest.attempt), manifest.to_file())
        return found.manifest if (found := self.manifest(manifest.attempt)) else None

    def segments(self) -> list[tuple[int, str]]:
        """List epoch and path of the segments there are, ascending, named by a manifest or not."""
        found = ((paths.segment_epoch(p), p) for p in self.backend.list(paths.SEGMENT.folder))
        return [(epoch, path) for epoch, path in found if epoch is not None]

    # --- what Spark kept, and what was swept (rules 11 and 18) ---

    def proofs(self, epoch: int, *, fresh: bool = False) -> list[CommitProof]:
        """Read the proofs about an epoch: of fenced and waiting runs, of `rewind` and `attach`.

        :param fresh: to conclude from a note that is missing, see `StateBackend.list_fresh`.
        """
        listed = [
            path
            for folder in (paths.PROOF.folder, paths.ASIDE)
            for path in self.names(folder, fresh=fresh)
        ]
        found = []
        for path in listed:
            aside = paths.parse_aside(path)
            attempt = paths.PROOF.parse(aside.path if aside is not None else path)
            if attempt is not None and attempt.epoch == epoch:
                found.append(self._read(paths.PROOF, path))
        return [proof for proof in found if proof is not None]

    def create_proof(self, proof: CommitProof) -> None:
        """Note that Spark kept an attempt.

        Replaces a note about a run of a history that was lost (rule 23).
        """
        self._replace_foreign(paths.PROOF, Attempt(proof.epoch, proof.generation), proof)

    def create_tombstone(self, tombstone: OrphanTombstone) -> None:
        """Note that the segments of an attempt are about to be deleted; replaces as `create_proof` does."""
        attempt = Attempt(tombstone.epoch, tombstone.generation)
        self._replace_foreign(paths.TOMBSTONE, attempt, tombstone)

    def tombstones(self, runs: Mapping[Attempt, str]) -> frozenset[Attempt]:
        """Return the attempts that have a tombstone of their run.

        A restored log may have tombstones of runs that it has lost, and whose generations are used again.

        :param runs: who has published each attempt.
        :raises CorruptLog: a note cannot be read.
        """
        notes = ((attempt, self.read(paths.TOMBSTONE, attempt)) for attempt in runs)
        return frozenset(each for each, note in notes if note and note.run_id == runs[each])

    def _replace_foreign(self, kind: Kind[R, Attempt], attempt: Attempt, note: R) -> None:
        present = self.read(kind, attempt)
        if present and present.run_id != note.run_id:  # type: ignore[attr-defined]
            self.delete([kind.path(attempt)])
        self.create(kind, attempt, note)

    # --- what every target gets (rule 11) ---

    def create_choices(self, chosen: Sequence[Chosen]) -> bool:
        """Record choices about epochs for all targets, unless others are there; whether these count."""
        kind = paths.CHOICE
        self.backend.create_missing({kind.path(each.epoch): each.to_json() for each in chosen})
        return all(self.read(kind, each.epoch) == each for each in chosen)

    # --- what operators have decided (rule 22) ---

    def decisions(self, epoch: int) -> list[Decision]:
        """Read the decisions to give an epoch up, oldest first; only the last one can be in force."""
        found: list[Decision] = []
        while (decision := self.read(paths.DECISION, DecisionName(epoch, len(found)))) is not None:
            found.append(decision)
        return found

    def decision(self, epoch: int) -> Decision | None:
        """Read the last decision about an epoch; None: it was never given up."""
        found = self.decisions(epoch)
        return found[-1] if found else None

    def decided(self, *, fresh: bool = False) -> list[int]:
        """List the epochs that were given up, ascending.

        :param fresh: to conclude from a decision that is missing, see `keys`.
        """
        return sorted({name.epoch for name in self.keys(paths.DECISION, fresh=fresh)})

    def create_decision(self, decision: Decision, number: int = 0) -> Decision:
        """Record a decision unless there is one; return the one that stands.

        :param number: how many decisions about the epoch there are, none of them in force.
        """
        return self.create_or_read(paths.DECISION, DecisionName(decision.epoch, number), decision)

    def record_intervention(self, intervention: Intervention) -> str:
        """Record what an operator is about to do; return the record's path."""
        name = InterventionName(intervention.verb, intervention.at_us)
        self.create(paths.INTERVENTION, name, intervention)
        return paths.INTERVENTION.path(name)

    def interventions(self, verb: str, *, fresh: bool = False) -> list[Intervention]:
        """Read what operators were about to do, by one of the verbs, oldest first.

        :param fresh: to conclude from one that is missing, see `keys`.
        """
        named = [each for each in self.keys(paths.INTERVENTION, fresh=fresh) if each.verb == verb]
        found = (self.read(paths.INTERVENTION, name) for name in named)
        return [record for record in found if record is not None]

    def rewinds(self, *, fresh: bool = False) -> list[tuple[int, int]]:
        """Read to which epoch each rewind was to go, and the highest timestamp used before it.

        One that was left behind since says nothing: its time may come again.
        """
        rows = [done.after for done in self.interventions("rewind", fresh=fresh)]
        left = [(int(row[LEFT_FIRST]), int(row[LEFT_LAST])) for row in rows if LEFT_FIRST in row]
        found = [(int(row["flushed"]), int(row["last_us"])) for row in rows]
        return [(to, us) for to, us in found if not any(a <= us <= b for a, b in left)]

    # --- hints ---

    def report(self, report: FlusherReport) -> None:
        """Write what the flusher does."""
        self.backend.replace(self.stored_path(paths.FLUSHER), report.to_json())

    def last_report(self) -> FlusherReport | None:
        """Read the last report of a flusher; None also for an unreadable one, since it is a hint."""
        return self.readable(paths.REPORT, ())

    # --- what is flushed (rule 17) ---

    def newest_flushed(self, *, fresh: bool = False) -> FlushedEpoch | None:
        """Read the record of the log's mark.

        :param fresh: to conclude from a record that is missing, see `keys`.
        """
        names = self.keys(paths.FLUSHED, fresh=fresh)
        return self._record_of(names[-1].last, names) if names else None

    def mark(self, *, fresh: bool = False) -> int:
        """Return the epoch of the newest record, -1 for none; it is not read.

        :param fresh: see `newest_flushed`.
        """
        names = reversed(self.names(paths.FLUSHED.folder, fresh=fresh))  # they ascend as epochs do
        parsed = map(paths.FLUSHED.parse, names)
        return next((name.last for name in parsed if name is not None), -1)

    def flushed(self, epoch: int, *, fresh: bool = False) -> FlushedEpoch | None:
        """Read the record of one epoch; None when it is not flushed, or long ago.

        After a rewind several objects may have one: a flusher that stood still has recorded its window late.
        The one with the highest timestamps counts (rule 14).

        :param fresh: see `newest_flushed`.
        """
        return self._record_of(epoch, self.keys(paths.FLUSHED, fresh=fresh))

    def flushed_since(self, epoch: int, *, fresh: bool = False) -> list[FlushedEpoch]:
        """Read the records of all epochs above `epoch`, ascending; each object once.

        :param fresh: see `newest_flushed`.
        """
        found: dict[int, FlushedEpoch] = {}
        for name in self.keys(paths.FLUSHED, fresh=fresh):
            for record in self.records(name) if name.last > epoch else ():
                found[record.epoch] = max(
                    found.get(record.epoch, record), record, key=attrgetter("base_us")
                )
        return [found[each] for each in sorted(found) if each > epoch]

    def flushed_epochs(self) -> list[int]:
        """List the epochs that have a record, ascending."""
        return sorted({epoch for name in self.keys(paths.FLUSHED) for epoch in name.epochs})

    def record_flushed(self, records: Sequence[FlushedEpoch]) -> None:
        """Record that the epochs of a window are in the target; an object that is there stays.

        :param records: at least one, contiguous and ascending.
        """
        name = WindowName(records[-1].epoch, records[0].epoch, records[0].base_us)
        self.create(paths.FLUSHED, name, FlushedWindow(epochs=tuple(records)))

    def cut_window(self, to: int) -> None:
        """Record a window again, with its epochs up to `to` alone, so that `to` can become the mark.

        Where the window's record is gone, that of `to` is put back. A later mark stays the mark.
        """
        records = self._window_of(to, self.keys(paths.FLUSHED))
        if records or (records := [r for r in [self.read(paths.RETAINED_RECORD, to)] if r]):
            self.record_flushed(records)

    def recorded_above(
        self, to: int, retained: Mapping[int, Sequence[str]]
    ) -> list[tuple[int, list[str]]]:
        """List the objects that `rewind` deletes, in order: by windows above `to`, newest first.

        The mark goes down window by window, so each comes with its last epoch. What is retained of a window
        goes before its records. Listed freshly: an object that is missed stops the flush.

        :param retained: the paths of what is in `retained/`, by epoch.
        """
        objects: dict[int, list[str]] = {}
        end_of: dict[int, int] = {}
        for name in self.keys(paths.FLUSHED, fresh=True):
            objects.setdefault(name.last, []).append(paths.FLUSHED.path(name))
            end_of.update(dict.fromkeys(name.epochs, name.last))
        for epoch, copies in retained.items():
            if epoch > to:
                objects.setdefault(end_of.get(epoch, epoch), [])[:0] = copies
        return [(end, objects[end]) for end in sorted(objects, reverse=True) if end > to]

    def records(self, name: WindowName) -> tuple[FlushedEpoch, ...]:
        """Read the records of a window; none when they are gone.

        :raises CorruptLog: the object has no such records.
        """
        window = self.read(paths.FLUSHED, name)
        found = () if window is None else window.epochs
        if found and [record.epoch for record in found] != [*name.epochs]:
            raise CorruptLog(
                f"{self.url_of(paths.FLUSHED.path(name))} holds the records of other epochs",
                "Restore the file from a copy; records must not be renamed.",
            )
        return found

    def _record_of(self, epoch: int, names: Iterable[WindowName]) -> FlushedEpoch | None:
        found = self._window_of(epoch, names)
        return found[-1] if found else self.read(paths.RETAINED_RECORD, epoch)

    def _window_of(self, epoch: int, names: Iterable[WindowName]) -> list[FlushedEpoch]:
        """Read the records of an epoch and of those before it in its window; none without a record."""
        read = [self.records(name) for name in names if name.covers(epoch)]
        found = [[record for record in records if record.epoch <= epoch] for records in read]
        return max(filter(None, found), key=lambda each: (each[-1].base_us, len(each)), default=[])


def _names_only_its_own(manifest: Manifest) -> bool:
    """Whether all objects that a manifest names are its own log's: their rows are sent."""
    return paths.is_plan_key(manifest.plan) and all(
        paths.is_segment_of(segment.path, manifest.epoch) and min(segment.rows, segment.bytes) >= 0
        for segment in manifest.all_segments
    )


T = TypeVar("T")
V = TypeVar("V")

_REQUESTS_AT_A_TIME = 16


def read_many(log: Log, read: Callable[[T], V], names: Iterable[T]) -> list[V]:
    """Call `read` for each name, and return the results in order; in threads where reads are billed."""
    if not log.backend.billed:
        return [read(name) for name in names]
    with ThreadPoolExecutor(_REQUESTS_AT_A_TIME) as pool:
        return list(pool.map(read, names))
