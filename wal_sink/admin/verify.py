"""`verify`: looks for everything that would stop the flush, and changes nothing.

It looks as a flusher does, in the same order (rule 9) and with the same decisions, but at every epoch that is
not flushed instead of the next one, and at every byte of it. The query may run meanwhile: what a flusher has
flushed and trimmed since is no finding, so `verify` drops it at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wal_sink import remedies
from wal_sink.admin.check_epochs import EpochCheck
from wal_sink.admin.findings import Finding, Findings, Verified
from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.counted import counted
from wal_sink.flush.choose_window import WindowChooser
from wal_sink.flush.other_log import History
from wal_sink.flush.target_connection import target_errors
from wal_sink.model import paths
from wal_sink.model.ledger import Mark, Owner
from wal_sink.model.manifest import Attempt
from wal_sink.model.plan import Plan
from wal_sink.model.records import FlushedEpoch, FlusherReport, LogIdentity
from wal_sink.progress.given_up import outdated
from wal_sink.progress.heartbeat import read_report, said_ago
from wal_sink.progress.scan import read_manifests, unnamed_segments
from wal_sink.protocol.ledger_updates import refuse_shadowed
from wal_sink.protocol.next_step import next_step, resting
from wal_sink.protocol.steps import RecordFlushed, RecordsBehind, View
from wal_sink.targets.base import Target
from wal_sink.targets.compared import Compares
from wal_sink.wal.attached import lacking, views
from wal_sink.wal.ownership import owned
from wal_sink.wal.trim import refuse_diverged

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are read."""


def verify(
    query: Query,
    target: Callable[[], Target] | None,
    now_us: int,
    progress: Progress = lambda _done, _total: None,
) -> Verified:
    """Look at checkpoint, log and ledger.

    :param target: makes the target; None to leave the ledger out.
    :param now_us: microseconds since 1970.
    """
    return _Verification(query, now_us, progress).run(target)


class _Verification:
    """One run of `verify`."""

    def __init__(self, query: Query, now_us: int, progress: Progress) -> None:
        self._query = query
        self._log = query.log
        self._now_us = now_us
        self._progress = progress
        self._findings = Findings()
        self._unreached = Findings()
        self._set_back = ""

    def run(self, target: Callable[[], Target] | None) -> Verified:
        report = read_report(self._log)  # now, since its age is asked
        checkpointed = self._checkpointed()
        flushed, recorded = self._recorded()
        identity = self._identity()
        asked, mark = False, None
        if target is not None and identity is not None:
            asked, mark = self._ledger(target, identity)
        attempts = self._log.attempts()
        if flushed < 0 or recorded is not None:  # else its record is unreadable: found already
            self._agreement(View(checkpointed, recorded, identity, asked, mark, attempts))
        self._left_over(flushed, attempts)
        floor = max(flushed, mark.flushed if mark else -1)
        if identity is not None:
            floor = max(floor, identity.first_epoch - 1)
        needed = range(floor + 1, checkpointed + 1 if identity else 0)
        epochs = sorted(
            {*needed, *(attempt.epoch for attempt in attempts if attempt.epoch > floor)}
        )
        epoch_check = EpochCheck(self._query, attempts, self._findings, self._progress)
        epoch_check.check(
            epochs, checkpointed, mark.begun if mark and mark.flushed == floor else None
        )
        if target is not None and identity is not None and asked:
            self._tables(target, identity, epoch_check.plans)
        return Verified(
            query_id=self._query.query_id,
            target=self._log.target,
            checkpoint=self._query.checkpoint.url,
            log=self._log.url,
            checkpointed=checkpointed,
            published=max([flushed, *(attempt.epoch for attempt in attempts)]),
            flushed=flushed,
            ledger=mark.flushed if mark else None,
            epochs=len(epochs),
            segments=epoch_check.segments,
            bytes=epoch_check.bytes,
            set_back=bool(self._set_back),
            findings=tuple(self._still_true(flushed) + self._unreached.found),
            flusher_error=report.error.kind if report and report.error else None,
            notes=tuple(self._notes(flushed, report, reached=asked or target is None)),
        )

    def _checkpointed(self) -> int:
        with self._findings.noting(file=f"{self._query.checkpoint.url}/commits"):
            return self._query.checkpoint.last_commit()
        return -1

    def _recorded(self) -> tuple[int, FlushedEpoch | None]:
        """Read every record; return the log's mark and its record, None when that is unreadable."""
        mark, newest = -1, None
        for each in self._log.recorded():
            found: tuple[FlushedEpoch, ...] = ()
            with self._findings.noting(each.last, self._log.where(each.path)):
                found = self._log.read_recorded(each)
            if each.is_mark:
                mark, newest = each.last, found[0] if found else None
        return mark, newest

    def _identity(self) -> LogIdentity | None:
        """Read to which checkpoint the log belongs; `verify` goes on although it is another one."""
        location = f"{self._query.checkpoint.url}/{Checkpoint.LOG_URL}"
        noted: str | None = None
        with self._findings.noting(file=location):
            noted = self._query.checkpoint.log_url()
            moved = noted not in (None, self._log.url)
            file = location if moved else f"{self._log.url}/{paths.LOG}"
            with self._findings.noting(file=file):
                return owned(self._log, self._query.checkpoint)
        with Findings().noting():  # what is unreadable is a finding already
            return self._log.identity()
        return None

    def _ledger(
        self, target: Callable[[], Target], identity: LogIdentity
    ) -> tuple[bool, Mark | None]:
        """Read the ledger row, if the target can be asked. That it cannot is reported last."""
        with self._unreached.noting():
            made = target()
            with target_errors(made), made.connect(self._query.owner(identity)) as session:
                mark = session.read_ledger()
                written = session.written_us() if mark else None
            if mark is not None:
                with self._findings.noting():
                    refuse_shadowed(mark, written, self._now_us)
            return True, mark
        return False, None

    def _tables(
        self,
        target: Callable[[], Target],
        identity: LogIdentity,
        plans: Sequence[tuple[int, Plan]],
    ) -> None:
        """See that the tables are what the plans of waiting epochs say, if the target can tell.

        Another connection than that of the ledger: to read every segment in between may take hours.
        """
        if not plans:
            return
        with self._unreached.noting():
            made = target()
            with target_errors(made), made.connect(self._query.owner(identity)) as session:
                if not isinstance(session, Compares):
                    return
                for epoch, plan in plans:
                    with self._findings.noting(epoch), target_errors(made):
                        session.compare(plan)

    def _agreement(self, view: View) -> None:
        """See that checkpoint, records and ledger fit together, as a flusher does."""
        identity = view.identity
        owner = Owner(self._query.query_id, "", "")
        if identity is not None:
            owner = self._query.owner(identity)
        with self._findings.noting():
            step = next_step(view, owner) if view.asked else None
            if isinstance(step, RecordFlushed | RecordsBehind):
                chooser = WindowChooser(self._log, self._query.checkpoint, self._query.query_id)
                History(self._log, chooser).refuse_other_log(step, view)
            rest = resting(view.checkpointed, view.recorded, identity, view.attempts)
            if rest is not None and rest.odd and self._still_behind(view):
                self._set_back = rest.why

    def _still_behind(self, view: View) -> bool:
        """Whether the checkpoint is behind for good: a query that runs commits and flushes meanwhile."""
        recorded = view.recorded.epoch if view.recorded else -1
        return self._query.checkpoint.last_commit() < recorded

    def _left_over(self, flushed: int, attempts: tuple[Attempt, ...]) -> None:
        """See that manifests of flushed epochs, which a flusher trims first, may go."""
        for attempt in attempts:
            if attempt.epoch <= flushed:
                file = f"{self._log.url}/{paths.manifest(attempt)}"
                with self._findings.noting(attempt.epoch, file):
                    refuse_diverged(self._log, attempt.epoch, [attempt])

    def _still_true(self, flushed: int) -> list[Finding]:
        """Drop what a flusher has settled since; sort by epoch, the order in which it meets the rest."""
        done = max(self._log.flushed_epochs(), default=-1)
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
        notes += self._missing()
        if again := outdated(self._log, self._query.checkpoint, flushed, self._log.attempts()):
            listed = ", ".join(map(str, again))
            notes.append(
                "the checkpoint was set back, and Spark has computed these epochs again after operators gave"
                f" them up: what was published since is flushed: {listed}"
            )
        if self._log.backend.open_to_others():
            notes.append(remedies.open_to_others(self._log.url))
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
            ago = said_ago(report, self._now_us)
            error = f"; its error: {report.error.kind}: {report.error.what}" if report.error else ""
            notes.append(
                f"{report.flusher} flushed last, {ago}; it last said: {report.doing}{error}"
            )
        return notes

    def _missing(self) -> list[str]:
        """Say what targets lack since they were detached."""
        return [
            f"target {view.target} was detached, and lacks these epochs: "
            + (f"all from {first} on" if last is None else f"{first} to {last}")
            for view in views(self._log.of(""))
            for first, last in lacking(view)
        ]
