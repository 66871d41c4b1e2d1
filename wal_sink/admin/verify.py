"""`verify`: looks for everything that would stop the flush, and changes nothing.

It reads as a flusher does, in the same order (rule 9) and with the same decisions, but every byte of every
epoch that is not flushed. The query may run meanwhile: at the end, `verify` drops findings about epochs that
were flushed since. A row that the target refuses is found only by a flusher: `verify` repeats its report.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from types import TracebackType

import msgspec

from wal_sink import errors
from wal_sink.admin.query import Progress, Query, no_progress, summing_progress
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import (
    LogUnavailable,
    MissingManifest,
    MissingSegment,
    TargetRefused,
    WalSinkError,
    restore_or_skip,
    skip_lost,
)
from wal_sink.flush.connection import target_errors
from wal_sink.flush.lineage import LineageCheck, named_record
from wal_sink.flush.rows import FileGoneError, begun_manifest, plan_of
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, LedgerState, Owner, Window
from wal_sink.model.manifest import Attempt, Manifest, SegmentRef
from wal_sink.model.plan import Plan
from wal_sink.model.records import ErrorReport, FlushedEpoch, FlusherReport, LogIdentity
from wal_sink.progress.backlog import read_manifests, unnamed_segments
from wal_sink.progress.decisions import given_up_since_begun, in_force, outdated
from wal_sink.progress.heartbeat import reported_ago
from wal_sink.protocol.attempts import missing_manifest
from wal_sink.protocol.ledger import refuse_shadowed
from wal_sink.protocol.next_step import (
    Begin,
    Choose,
    ManifestMissing,
    Observation,
    PassOver,
    RecordFlushed,
    RecordsBehind,
    Resume,
    idle_step,
    next_step,
)
from wal_sink.targets.base import Target
from wal_sink.text import counted
from wal_sink.wal.aside import names_aside
from wal_sink.wal.location import owned, refuse_vanished
from wal_sink.wal.segment import check_segment
from wal_sink.wal.trim import refuse_diverged


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that stops the flush, or will."""

    kind: str
    """Name of the error, see `wal_sink.errors`."""
    exit_code: int
    epoch: int | None
    file: str | None
    """URL of the object that it is about."""
    what: str
    remedy: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of `verify`; epoch ids are -1 for none."""

    query_id: str
    target: str = ""
    """Name of the target, if it is one of several."""
    checkpoint: str
    log: str
    checkpointed: int
    published: int
    flushed: int
    """As the log says."""
    ledger: int | None
    """The same as the target says; None when it was not asked, or has no row."""
    epochs: int
    """How many epochs were looked into: those above the mark that are checkpointed, or published."""
    segments: int
    """How many segments were read to the last byte."""
    bytes: int
    set_back: bool
    """Whether the checkpoint is behind the flushed epochs (rule 19). No finding: until the query has caught
    up nothing is flushed, and a note says so."""
    flusher_error: str | None = None
    """Kind of the error in the flusher's last report; it may be repaired by now."""
    findings: tuple[Finding, ...]
    """In the order in which a flusher meets them; a target that does not answer comes last."""
    notes: tuple[str, ...]
    """For the operator, and no damage."""


class Findings:
    """Collects findings: an error inside `catching` becomes one, and `verify` goes on."""

    def __init__(self) -> None:
        self.found: list[Finding] = []

    def catching(self, epoch: int | None = None, file: str | None = None) -> _Catching:
        """Turn an error of the block into a finding about an epoch, or a file."""
        return _Catching(self, epoch, file)

    def add(self, error: WalSinkError, epoch: int | None = None, file: str | None = None) -> None:
        """Add a finding."""
        self.found.append(
            Finding(
                kind=type(error).__name__,
                exit_code=error.exit_code,
                epoch=epoch,
                file=file,
                what=error.what,
                remedy=error.remedy,
            )
        )


class _Catching:
    """A context manager that swallows errors of ours; a class, so that type checkers know that."""

    def __init__(self, findings: Findings, epoch: int | None, file: str | None) -> None:
        self._findings = findings
        self._epoch = epoch
        self._file = file

    def __enter__(self) -> None:
        """Nothing to do."""

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if isinstance(exc, OSError):
            exc = LogUnavailable(
                f"{self._file or 'The store'} cannot be read: {exc!r}",
                "See to the store: whether this host reaches it, and this user may read it.",
            )
        if not isinstance(exc, WalSinkError):
            return False
        self._findings.add(exc, self._epoch, self._file)
        return True


class EpochCheck:
    """Checks the manifests, segments and plans that a flusher would read.

    :param attempts: those with a manifest.
    :param progress: called with how many bytes of how many are read.
    """

    def __init__(
        self,
        query: Query,
        attempts: Sequence[Attempt],
        findings: Findings,
        progress: Progress,
    ) -> None:
        self._query = query
        self._log = query.log
        self._attempts = tuple(attempts)
        self._findings = findings
        self._progress = progress
        self._chooser = query.chooser()
        self._aside: frozenset[str] = frozenset()
        self.segments = 0
        self.bytes = 0
        self.plans: list[tuple[int, Plan]] = []
        """The plans of these epochs, each with its first epoch."""

    def check(self, epochs: Sequence[int], checkpointed: int, begun: Window | None) -> None:
        """Check epochs, ascending.

        :param begun: the window that is begun: of its epochs only those attempts count (rule 10).
        """
        begun_epochs = {epoch.epoch: epoch for epoch in begun.epochs} if begun else {}
        needed: list[tuple[Manifest, bool]] = []
        missing: list[int] = []
        given_up = set(self._log.decided())
        self._aside = names_aside(self._log)
        for epoch in epochs:
            if epoch in given_up and self._is_given_up(epoch, begun):
                continue
            if epoch in begun_epochs:
                needed += self._check_inline_segments(self._begun(begun_epochs[epoch]), begun=True)
            else:
                found = self._manifests(epoch, missing if epoch <= checkpointed else None)
                needed += self._check_inline_segments(found, begun=False)
        self._report_missing(missing)
        self._read(needed)

    def _is_given_up(self, epoch: int, begun: Window | None) -> bool:
        """Whether a decision about an epoch is in force; if not, attempts from before it do not count."""
        with self._findings.catching(
            epoch, self._log.url_of(paths.DECISION.path(paths.DecisionName(epoch, 0)))
        ):
            if begun is not None and begun.first <= epoch <= begun.last:
                given_up = given_up_since_begun(self._log, begun)
                return not begun.epochs[epoch - begun.first].manifest or epoch in given_up
            decision, step = self._chooser.since_decided(Choose(epoch, self._attempts))
            self._attempts = step.attempts
            return decision is not None
        return True  # it is unreadable: a flusher would stop there

    def _begun(self, begun: BegunEpoch) -> list[Manifest]:
        self._readable(begun.epoch)
        with self._findings.catching(begun.epoch, f"{self._log.url}/{begun.manifest}"):
            try:
                return [begun_manifest(self._log, begun)] if begun.manifest else []
            except FileGoneError as gone:
                if gone.path in self._aside:  # a flusher brings it back
                    return []
                raise MissingSegment(
                    f"Epoch {begun.epoch} is begun and needs {gone.path}, which is gone",
                    restore_or_skip(begun.epoch, begun=True),
                ) from gone
        return []

    def _manifests(self, epoch: int, missing: list[int] | None) -> list[Manifest]:
        """Return the manifests that may be flushed as an epoch.

        :param missing: takes an epoch without any; None when it is not checkpointed.
        """
        readable = self._readable(epoch)
        if readable is None:
            return []  # a finding already: a flusher would stop there
        if missing is None:
            swept = self._log.tombstones({each.attempt: each.run_id for each in readable})
            return [each for each in readable if each.attempt not in swept]
        with self._findings.catching(epoch):
            match self._chooser.epoch(Choose(epoch, self._attempts)):
                case Begin(attempts):
                    return [found for found in readable if found.attempt in attempts]
                case ManifestMissing():
                    if epoch not in {a.epoch for a in map(paths.MANIFEST.parse, self._aside) if a}:
                        missing.append(epoch)
                case PassOver():
                    return []
            return readable
        return []

    def _readable(self, epoch: int) -> list[Manifest] | None:
        """Read every manifest of an epoch; None when one of them cannot be used."""
        found, whole = [], True
        for attempt in self._attempts:
            if attempt.epoch != epoch:
                continue
            read = None
            before = len(self._findings.found)
            with self._findings.catching(epoch, f"{self._log.url}/{paths.MANIFEST.path(attempt)}"):
                read = self._log.manifest(attempt)
            whole = whole and len(self._findings.found) == before
            if read is not None:  # else it was trimmed meanwhile
                found.append(read[0])
        return found if whole else None

    def _report_missing(self, epochs: list[int]) -> None:
        """Report epochs without a manifest; a whole folder that is lost is one finding."""
        for _, run in groupby(enumerate(epochs), key=lambda item: item[1] - item[0]):
            first, *others = [epoch for _, epoch in run]
            file = f"{self._log.url}/{paths.MANIFEST.folder}"
            with self._findings.catching(first, file):
                if others:
                    last = others[-1]
                    raise MissingManifest(
                        f"Epochs {first} to {last} are checkpointed but have no manifest in the log",
                        "Restore the log's manifests/ folder from a copy. To give their rows up, one"
                        f" after the other: {skip_lost(first)}.",
                    )
                raise missing_manifest(first)

    def _check_inline_segments(
        self, manifests: list[Manifest], *, begun: bool
    ) -> list[tuple[Manifest, bool]]:
        """Check the rows inside of manifests; return these without them, since there may be thousands."""
        for manifest in manifests:
            for segment in manifest.all_segments:
                if not segment.is_file:
                    self._segment(manifest, segment, lambda _size: None, begun=begun)
        return [(manifest.without_data(), begun) for manifest in manifests]

    def _read(self, needed: list[tuple[Manifest, bool]]) -> None:
        total = sum(segment.bytes for manifest, _ in needed for segment in manifest.files)
        read = summing_progress(self._progress, total)
        plans: set[str] = set()
        for manifest, begun in needed:
            if manifest.plan not in plans:
                plans.add(manifest.plan)
                file = self._log.url_of(paths.PLAN.path(manifest.plan))
                with self._findings.catching(manifest.epoch, file):
                    self.plans.append((manifest.epoch, plan_of(self._log, manifest)))
            for segment in manifest.files:
                self._segment(manifest, segment, read, begun=begun)

    def _segment(
        self, manifest: Manifest, segment: SegmentRef, read: Callable[[int], None], *, begun: bool
    ) -> None:
        epoch = manifest.epoch
        file = segment.path if segment.is_file else paths.MANIFEST.path(manifest.attempt)
        with self._findings.catching(epoch, f"{self._log.url}/{file}"):
            try:
                check_segment(self._log.backend, segment, read)
            except FileNotFoundError as error:
                if segment.path in self._aside:
                    return
                raise MissingSegment(
                    f"Epoch {epoch} needs {segment.path}, which is gone from {self._log.url}",
                    restore_or_skip(epoch, begun=begun),
                ) from error
        self.segments += 1
        self.bytes += segment.bytes


def verify(
    query: Query,
    target: Callable[[], Target] | None,
    now_us: int,
    progress: Progress = no_progress,
) -> Verified:
    """Look at checkpoint, log and ledger.

    :param target: makes the target; None to leave the ledger out.
    :param now_us: microseconds since 1970.
    """
    return _Verification(query, now_us, progress).run(target)


class _Verification:
    """Collects the findings of one call, and drops those about epochs that are flushed meanwhile."""

    def __init__(self, query: Query, now_us: int, progress: Progress) -> None:
        self._query = query
        self._log = query.log
        self._now_us = now_us
        self._progress = progress
        self._findings = Findings()
        self._unreached = Findings()
        self._set_back = ""

    def run(self, target: Callable[[], Target] | None) -> Verified:
        report = self._log.last_report()  # now, since its age is asked
        checkpointed = self._checkpointed()
        flushed, recorded = self._recorded()
        identity = self._identity()
        asked, row = False, None
        if target is not None and identity is not None:
            asked, row = self._ledger(target, identity)
        attempts = self._log.attempts()
        if flushed < 0 or recorded is not None:  # else its record is unreadable: found already
            self._agreement(
                Observation(
                    *(checkpointed, recorded, identity),
                    asked=asked,
                    row=row,
                    attempts=attempts,
                    rewound=row is None
                    and recorded is None
                    and bool(self._log.interventions("rewind")),
                    named=named_record(self._log, recorded, row),
                )
            )
        self._check_flushed_manifests(flushed, attempts)
        floor = max(flushed, row.flushed if row else -1)
        if identity is not None:
            floor = identity.mark(floor)
        needed = range(floor + 1, checkpointed + 1 if identity else 0)
        epochs = sorted(
            {*needed, *(attempt.epoch for attempt in attempts if attempt.epoch > floor)}
        )
        epoch_check = EpochCheck(self._query, attempts, self._findings, self._progress)
        epoch_check.check(epochs, checkpointed, row.begun if row and row.flushed == floor else None)
        if target is not None and identity is not None and asked:
            self._tables(target, identity, epoch_check.plans)
        if report is not None and report.error is not None:
            self._refused_row(report.error, range(floor + 1, checkpointed + 1), attempts)
        return Verified(
            query_id=self._query.query_id,
            target=self._log.target,
            checkpoint=self._query.checkpoint.url,
            log=self._log.url,
            checkpointed=checkpointed,
            published=max([flushed, *(attempt.epoch for attempt in attempts)]),
            flushed=flushed,
            ledger=row.flushed if row else None,
            epochs=len(epochs),
            segments=epoch_check.segments,
            bytes=epoch_check.bytes,
            set_back=bool(self._set_back),
            findings=tuple(self._still_true(flushed) + self._unreached.found),
            flusher_error=report.error.kind if report and report.error else None,
            notes=tuple(self._notes(flushed, report, reached=asked or target is None)),
        )

    def _checkpointed(self) -> int:
        with self._findings.catching(file=f"{self._query.checkpoint.url}/commits"):
            return self._query.checkpoint.last_commit()
        return -1

    def _recorded(self) -> tuple[int, FlushedEpoch | None]:
        """Read every record; return the log's mark and its record, None when that is unreadable."""
        mark, newest = -1, None
        for name in self._log.keys(paths.FLUSHED):
            found: tuple[FlushedEpoch, ...] = ()
            with self._findings.catching(name.last, self._log.url_of(paths.FLUSHED.path(name))):
                found = self._log.records(name)
            mark, newest = name.last, found[-1] if found else None
        return mark, newest

    def _identity(self) -> LogIdentity | None:
        """Read to which checkpoint the log belongs; `verify` goes on although it is another one."""
        location = f"{self._query.checkpoint.url}/{Checkpoint.LOG_URL}"
        noted: str | None = None
        with self._findings.catching(file=location):
            noted = self._query.checkpoint.log_url()
            moved = noted not in (None, self._log.url)
            file = location if moved else f"{self._log.url}/{paths.LOG}"
            with self._findings.catching(file=file):
                found = owned(self._log, self._query.checkpoint)
                if found is not None or self._log.keys(paths.CLAIM):
                    return found  # where claims are left without it, `idle_step` finds it lost
                return refuse_vanished(self._log, self._query.checkpoint)
        with Findings().catching():  # an error is a finding already
            return self._log.identity()
        return None

    def _ledger(
        self, target: Callable[[], Target], identity: LogIdentity
    ) -> tuple[bool, LedgerState | None]:
        """Read the ledger row. That the target does not answer is reported last."""
        with self._unreached.catching():
            made = target()
            with target_errors(made), made.connect(self._query.owner(identity)) as session:
                row = session.read_ledger()
                written = session.written_us() if row else None
            if row is not None:
                with self._findings.catching():
                    refuse_shadowed(row, written, self._now_us)
            return True, row
        return False, None

    def _tables(
        self,
        target: Callable[[], Target],
        identity: LogIdentity,
        plans: Sequence[tuple[int, Plan]],
    ) -> None:
        """Compare the tables with the plans of pending epochs, if the session does that.

        By another connection than that of the ledger: to read every segment in between may take hours.
        """
        if not plans:
            return
        with self._unreached.catching():
            made = target()
            with target_errors(made), made.connect(self._query.owner(identity)) as session:
                for epoch, plan in plans:
                    with self._findings.catching(epoch), target_errors(made):
                        session.compare(plan)

    def _refused_row(
        self, error: ErrorReport, pending: range, attempts: tuple[Attempt, ...]
    ) -> None:
        """Find whether the flusher has stopped at a row that the target refuses: only its report shows that.

        :param pending: the epochs that are checkpointed and not flushed.
        """
        epoch = pending.start if error.epoch is None else error.epoch
        if error.kind != TargetRefused.__name__ or epoch not in pending:
            return
        decision = self._log.decision(epoch)
        if not (decision and in_force(self._log, decision, attempts, self._query.checkpoint)):
            self._findings.add(TargetRefused(error.what, error.remedy), epoch)

    def _agreement(self, observed: Observation) -> None:
        """Check that checkpoint, records and ledger fit together, as a flusher does."""
        identity = observed.identity
        owner = Owner(self._query.query_id, "", "")
        if identity is not None:
            owner = self._query.owner(identity)
        with self._findings.catching():
            step = next_step(observed, owner) if observed.asked else None
            lineage = LineageCheck(self._log, self._query.chooser())
            if isinstance(step, RecordFlushed | RecordsBehind):
                lineage.follows_this_log(step, observed)
            elif isinstance(step, Resume):
                lineage.refuse_gone_back(step, observed)
            idle = idle_step(observed.checkpointed, observed.recorded, identity, observed.attempts)
            if idle is not None and idle.warn and self._still_behind(observed):
                self._set_back = idle.why

    def _still_behind(self, observed: Observation) -> bool:
        """Whether the checkpoint is behind for good: a query that runs commits and flushes meanwhile."""
        return self._query.checkpoint.last_commit() < observed.flushed

    def _check_flushed_manifests(self, flushed: int, attempts: tuple[Attempt, ...]) -> None:
        """Check that manifests of flushed epochs may be trimmed, which a flusher does first."""
        for attempt in attempts:
            if attempt.epoch <= flushed:
                file = f"{self._log.url}/{paths.MANIFEST.path(attempt)}"
                with self._findings.catching(attempt.epoch, file):
                    refuse_diverged(self._log, attempt.epoch, [attempt])

    def _still_true(self, flushed: int) -> list[Finding]:
        """Drop findings about epochs that are flushed by now; sort by epoch, as a flusher meets them."""
        done = self._log.mark()
        stay = [
            finding
            for finding in self._findings.found
            if finding.epoch is None or not flushed < finding.epoch <= done
        ]
        return sorted(stay, key=lambda finding: -1 if finding.epoch is None else finding.epoch)

    def _notes(self, flushed: int, report: FlusherReport | None, *, reached: bool) -> list[str]:
        notes = []
        if not reached:
            notes.append("the ledger was not compared with the log")
        if self._set_back:
            notes.append(self._set_back)
        if given_up := self._log.decided():
            listed = ", ".join(map(str, given_up))
            notes.append(f"operators gave up these epochs, see decisions/ in the log: {listed}")
        if again := outdated(self._log, self._query.checkpoint, flushed, self._log.attempts()):
            listed = ", ".join(map(str, again))
            notes.append(
                "the checkpoint was set back, and Spark has computed these epochs again after operators gave"
                f" them up: what was published since is flushed: {listed}"
            )
        if self._log.backend.open_to_others():
            notes.append(errors.open_to_others(self._log.url))
        segments = self._log.segments()
        if late := sum(epoch <= flushed for epoch, _ in segments):
            gone = counted(late, "segment of a flushed epoch goes", "segments of flushed epochs go")
            notes.append(f"{gone} when a flusher starts")
        above = [attempt for attempt in self._log.attempts() if attempt.epoch > flushed]
        waiting = [(epoch, path) for epoch, path in segments if epoch > flushed]
        if orphans := len(unnamed_segments(waiting, read_manifests(self._log, above))):
            notes.append(
                f"{counted(orphans, 'segment is', 'segments are')} named by no manifest: of failed tasks, or"
                " of a batch under way; such go when a newer run publishes, or with their epoch"
            )
        if report is not None:
            ago = reported_ago(report, self._now_us)
            error = f"; its error: {report.error.summary}" if report.error else ""
            notes.append(
                f"{report.flusher} flushed last, {ago}; it last said: {report.doing}{error}"
            )
        return notes
