"""Brings checkpointed epochs into the target, in order: read, let the protocol decide, do that one step.

A flusher can be interrupted at any point, and any flusher can go on from there: what is durable decides
where. `docs/protocol/argument.md` argues why that is exactly-once.

*An error* may come of what others did in the middle of the pass: another flusher has flushed and trimmed what
this one misses, an operator has given it up, or detached the target. So the flusher looks again, and stops
only when that ends with the same error. A flusher that had stood still may have deleted what a rewind flushes
again; then the second pass brings it back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from wal_sink import errors
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.checkpoint.watcher import EarlySync
from wal_sink.clock import now_us
from wal_sink.errors import (
    LogUnavailable,
    MissingManifest,
    MissingSegment,
    OptionError,
    TargetRefused,
    WalSinkError,
    WrongOwner,
)
from wal_sink.flush.connection import Takeovers, TargetConnection
from wal_sink.flush.lineage import LineageCheck, named_record
from wal_sink.flush.report import Reporter
from wal_sink.flush.rows import (
    FileGoneError,
    RowsRefused,
    WindowWrite,
    WriteInThread,
    WriteRows,
    begun_manifest,
    keep_refused,
)
from wal_sink.flush.run_history import RUN_HISTORY, RunHistory
from wal_sink.flush.trimmer import Trimmer
from wal_sink.flush.window import Clocks, WindowChooser, make_window
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.ledger import BegunEpoch, LedgerState, Owner, PassedRow, Window, ledger_key
from wal_sink.model.manifest import Attempt, Manifest, attempts_at
from wal_sink.observer import Delivered
from wal_sink.progress.decisions import given_up_since_begun
from wal_sink.protocol.attempts import missing_manifest
from wal_sink.protocol.ledger import flushed_records
from wal_sink.protocol.next_step import (
    Begin,
    Choose,
    CreateLedger,
    Idle,
    ManifestMissing,
    Observation,
    PassOver,
    RecordFlushed,
    RecordsBehind,
    Resume,
    Stale,
    Step,
    Trim,
    idle_step,
    next_step,
)
from wal_sink.protocol.windows import to_sync
from wal_sink.targets.base import Delivery, Target
from wal_sink.wal.aside import attempts_aside, bring_back, offsets_aside
from wal_sink.wal.location import owned, refuse_vanished, unflushed
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import passed_us
from wal_sink.wal.targets import not_attached

logger = line_logger(__name__)

_MOST_LOOKS = 5
"""After so many an error counts, also if each look has ended with another text: it may name a host."""


@dataclass(frozen=True)
class Pipeline:
    """What a flusher works on: one query's epochs, on their way from its log to its target."""

    query_id: str
    log: Log
    checkpoint: Checkpoint
    target: Target
    retention_s: float = 0.0
    """Seconds that a flushed epoch stays in the log."""
    quarantine: bool = False
    """Whether a row that the target refuses goes into quarantine; else the flush stops at it."""

    @property
    def billed(self) -> bool:
        """Whether every look at log or checkpoint costs a request over a network."""
        return self.log.backend.billed or self.checkpoint.billed


class Flusher:
    """Flushes one query. One thread at a time; any number of flushers may act on one query.

    Making one loads the target's driver; it connects when it has to.

    :param reporter: told what the flusher does, before it does it, and what it has delivered; None: silent.
    :param clock_us: microseconds since 1970.
    :param run_history: what this process saw of the query's runs (rule 11).
    :param write_rows: writes the rows of a begun window.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        reporter: Reporter | None = None,
        *,
        clock_us: Callable[[], int] = now_us,
        run_history: RunHistory = RUN_HISTORY,
        write_rows: WriteRows = WriteInThread(),  # noqa: B008 - without a rate it keeps nothing
    ) -> None:
        self.pipeline = pipeline
        self.reporter = reporter or Reporter(None)
        self._log, self._checkpoint = pipeline.log, pipeline.checkpoint
        self._clock_us = clock_us
        self.sync = EarlySync(pipeline.checkpoint)
        self._write_rows = write_rows
        self._ledger_key = ledger_key(pipeline.query_id, pipeline.log.target)
        owner = Owner(self._ledger_key, "", pipeline.checkpoint.url)
        self._connection = TargetConnection(pipeline.target, owner, self.reporter, clock_us)
        clocks = Clocks(self._connection, clock_us)
        self._clocks = clocks
        self._chooser = WindowChooser(
            pipeline.log, pipeline.checkpoint, pipeline.query_id, run_history
        )
        self._lineage = LineageCheck(pipeline.log, self._chooser)
        self._takeovers = Takeovers(self._connection, clocks.now_us)
        self.trimmer = Trimmer(pipeline.log, pipeline.retention_s, clock_us)
        self._looked_s, self._started = 0.0, False
        self._doubts = False
        """Whether this pass looks again, after an error."""
        self._aside: dict[Attempt, str] = {}
        """What can be brought back, with its second names; listed anew when others have moved the row."""
        self._begun: Window | None = None
        """The window that this flusher has begun last."""
        self.mark = -1
        """The newest epoch with a record, as it was looked up or written last."""
        run_history.watch(pipeline.query_id)
        pipeline.target.load()

    def run_once(self) -> Step:
        """Look, decide, do one step; return it. An `Idle` means that there is nothing to do now.

        :raises WalSinkError: the flush stops here; calling again takes up the same step. An error of the
            target or of an option is raised at once; any other one when a second pass ends with it, too
            (rule 9).
        """
        self._looked_s = time.monotonic()
        try:
            return self._pass_until_sure()
        except OSError as error:
            raise LogUnavailable(
                f"The log or the checkpoint cannot be used: {error!r}",
                f"See to {self._log.url} and {self._checkpoint.url}; the flush goes on by itself.",
            ) from error

    def _pass_until_sure(self) -> Step:
        """Do a pass; do another one where it ends with an error that others may have caused meanwhile."""
        self._doubts, doubted, looks = False, "", 0
        while True:
            before, looks = self.mark, looks + 1
            try:
                step = self._pass()
            except WalSinkError as error:
                if error.transient or isinstance(error, TargetRefused | OptionError):
                    raise  # what the target says of a row or of a login follows from no look
                gone = isinstance(error, MissingManifest | MissingSegment)
                # Another error is a sign that others have acted; and a quicker flusher may be ahead at each
                # look, or while this one stands still in it, as long as its records come.
                same = error.summary == doubted or looks >= _MOST_LOOKS
                if same and not (gone and self._log.mark(fresh=True) != before):
                    raise
                doubted = error.summary
                logger.info("looking again, as others may have acted meanwhile: %s", error.summary)
                self.close()
                self._doubts, self._started = True, False
            else:
                return step

    def _pass(self) -> Step:
        observed = self._look()
        step = next_step(observed, self._connection.owner)
        if isinstance(step, Stale):
            return step
        if not observed.absent:
            self.trimmer.sweep(observed.trimmable)
            self.trimmer.sweep_aside(observed.agreed)
        if isinstance(step, Choose):
            step = self._chooser.window(step, observed)
        elif isinstance(step, Resume):
            step = self._takeovers.due(step)
        self._do(step, observed)
        self._started |= observed.asked  # else it looked at an old listing, or was detached
        return step

    def interrupt(self) -> None:
        """Stop before the next slice; called from another thread. What is begun stays begun."""
        self._connection.interrupt()

    def close(self) -> None:
        """Release the connection to the target; raises nothing. The flusher can go on; it connects again."""
        try:
            self._connection.close()
        except Exception:
            logger.warning(
                "the connection to the target could not be closed cleanly", exc_info=True
            )

    # --- look -------------------------------------------------------------------------------------

    def _look(self) -> Observation:
        """Read everything afresh, in the order of rule 9: `commits/` first, manifests last."""
        query_id = self.pipeline.query_id
        checkpointed = self._checkpoint.last_commit()
        if (found := self._checkpoint.query_id()) != query_id:
            raise WrongOwner(
                f"{self._checkpoint.url} is now the checkpoint of query {found}, not of {query_id}",
                "The checkpoint was deleted and made anew, and its new query has a log of its own. "
                + errors.abandoned_log(self._log.url, unflushed(self._log)),
            )
        if (why := not_attached(self._log, fresh=self._doubts)) is not None:
            return Observation(
                checkpointed, None, None, asked=False, row=None, attempts=(), absent=why.what
            )
        recorded = self._log.newest_flushed()
        self.mark = recorded.epoch if recorded else -1
        identity = owned(self._log, self._checkpoint) or refuse_vanished(
            self._log, self._checkpoint
        )
        row, asked, known = None, False, False
        if identity is not None:
            self._connection.owner = Owner(self._ledger_key, identity.log_id, identity.checkpoint)
            # At start-up the ledger may be ahead of the records (rule 17), once there is an epoch to flush.
            at_start = not self._started and checkpointed >= identity.first_epoch
            asked = at_start or not idle_step(checkpointed, recorded, identity)
            if asked:
                self.sync.start(checkpointed)
                row, known = self._connection.row(identity.mark(self.mark) if recorded else None)
        attempts = self._log.attempts(fresh=asked)
        # After the manifests: a flusher makes the record before it deletes the manifest.
        stale = asked and self._log.mark(fresh=True) > self.mark
        fresh = asked and row is None and recorded is None
        rewound = fresh and bool(self._log.interventions("rewind", fresh=True))
        trimmable = self.trimmer.trimmable(recorded, attempts)
        return Observation(
            checkpointed,
            recorded,
            identity,
            asked,
            row,
            attempts,
            rewound,
            trimmable,
            retained=self.trimmer.due(trimmable),
            stale=stale,
            named=named_record(self._log, recorded, row),
            known=known,
        )

    # --- do ---------------------------------------------------------------------------------------

    def _do(self, step: Step, observed: Observation) -> None:
        match step:
            case Idle():
                self._idle(step, observed)
            case CreateLedger(flushed):
                self._connection.create(flushed)
            case RecordFlushed(window) | RecordsBehind(window):
                if self._lineage.follows_this_log(step, observed):
                    self._record(window, given_up_since_begun(self._log, window))
            case Trim(epochs):
                self.reporter.say("trimming", epochs[0])
                self.trimmer.trim(epochs)
            case Resume(window):
                self.reporter.say("resuming", window.first)
                logger.info("resuming epochs %d to %d", window.first, window.last)
                self._lineage.refuse_gone_back(step, observed)
                assert observed.row is not None
                if (taken := self._takeovers.take(observed.row)) is not None:
                    self._flush(taken, given_up=given_up_since_begun(self._log, window))
            case Begin() | PassOver():
                self._begin(step, observed)
            case ManifestMissing(epoch):
                self._refuse_missing(missing_manifest(epoch), [epoch])

    def _refuse_missing(self, error: WalSinkError, epochs: Collection[int]) -> None:
        """Raise the error of a missing object, unless a second look misses it, too, and brings it back."""
        if not (self._doubts and self._brought_back(epochs)):
            raise error

    def _brought_back(self, epochs: Collection[int]) -> bool:
        """Whether objects were missing that a rewind has set aside, and are there again."""
        if back := bring_back(self._log, epochs):
            logger.warning(
                "%d objects of epochs %d to %d are needed again, and a flusher that had"
                " stood still deleted them. They are restored from %s",
                len(back),
                min(epochs),
                max(epochs),
                self._log.url_of(paths.ASIDE),
            )
        return bool(back)

    def _lacks_aside(self, step: Begin | PassOver, observed: Observation) -> bool:
        """Whether what a rewind flushes again was missing at the look; it is brought back.

        What was chosen may be an attempt that a fenced run published late, or follow from a record about an
        older attempt. An attempt with other source offsets is of a history that Spark went back behind.
        """
        assert observed.row is not None
        last = observed.row.last
        if last is None or last != self._begun:
            self._aside = attempts_aside(self._log)
        lacking = {each for each in self._aside if each.epoch in step.epochs} - {*observed.attempts}
        if isinstance(step, Begin) and lacking:
            chosen = {(one.manifest.epoch, one.manifest.offsets_digest) for one in step.manifests}
            lacking = {
                each
                for each in lacking
                if (each.epoch, offsets_aside(self._log, self._aside[each])) in chosen
            }
        elif attempts_at(observed.attempts, step.epochs[0]):
            lacking = set()
        if lacking:
            self._brought_back({each.epoch for each in lacking})
            self._aside = attempts_aside(self._log)
        return bool(lacking)

    def _idle(self, idle: Idle, observed: Observation) -> None:
        if idle.warn and self._checkpoint.last_commit() > observed.checkpointed:
            return  # another flusher was quick since the look: nothing is odd
        self.reporter.say(idle.why, None)
        if idle.warn:
            logger.warning("%s: %s", self._checkpoint.url, idle.why)

    def _begin(self, step: Begin | PassOver, observed: Observation) -> None:
        """Begin a window from the row that was seen; if the ledger has moved on, nothing is begun."""
        assert observed.row is not None
        if self._lacks_aside(step, observed):
            return
        window, chosen = make_window(self._log, self._clocks, step, observed.row)
        self._takeovers.begins(window)
        self.reporter.say("beginning", window.first)
        manifests = {each.manifest.epoch: each.manifest for each in chosen}
        write = self._window_write(window, window.epochs, manifests)
        self.sync.make_durable(to_sync(window.first, window.last, observed.checkpointed))  # rule 8
        if not self._chooser.record(step, chosen):
            return
        if (begun := self._connection.begin(window, observed.row, write.ahead())) is not None:
            self._begun = window
            self._flush(begun, write)

    def _flush(
        self,
        row: LedgerState,
        write: WindowWrite | None = None,
        given_up: frozenset[int] = frozenset(),
    ) -> None:
        """Write what is begun, finish, record, trim. Wherever this ends, the next `Resume` goes on.

        :param row: the ledger row that names the window.
        :param write: of the window, if this flusher began it just now.
        :param given_up: epochs that an operator has given up since they were begun (rule 22). A decision
            that comes after `begin` is looked up by the next `Resume`.
        """
        window = row.begun
        assert window is not None
        try:
            self._connection.start(window)
            if not self._write(window, write, given_up):
                self._connection.give_up_rows()
                return
            if not self._connection.finish(row):
                return
        except TargetRefused as error:
            passes_over = self.pipeline.target.delivery is not Delivery.STAGED
            ways = errors.while_refused(
                may_quarantine=passes_over and not (self.pipeline.quarantine or window.sent_once)
            )
            raise TargetRefused(error.what, f"{error.remedy} {ways}") from error
        self._record(window, given_up)
        if epochs := self.trimmer.trimmable_at_once(window):
            attempts = {Attempt(begun.epoch, begun.generation) for begun in window.epochs}
            self.trimmer.trim(epochs, attempts)

    def _write(self, window: Window, write: WindowWrite | None, given_up: frozenset[int]) -> bool:
        """Write the rows; False when that is interrupted, or was finished by another flusher."""
        try:
            write = write or self._begun_write(window, given_up)
            keep_refused(self._log, write.epochs, write.manifests)
            if write.quarantine or write.passed:
                pieces = [piece for begun in write.epochs for piece in write.pieces(begun)]
                passed = [PassedRow(piece.epoch, us) for piece in pieces for us in piece.passed]
                refused = RowsRefused(self._log, pieces) if write.quarantine else None
                self._connection.pass_over(refused, passed)
            return self._write_rows(write)
        except FileGoneError as gone:
            missing = MissingSegment(
                f"Epoch {gone.epoch} needs {gone.path}, which is gone from {self._log.url}",
                f"{errors.restore_or_skip(gone.epoch, begun=True)}"
                f" {errors.rewind_if_restored(window.first - 1)}",
            )
            self._refuse_missing(missing, [epoch.epoch for epoch in window.epochs])
            return False

    def _begun_write(self, window: Window, given_up: frozenset[int]) -> WindowWrite:
        """Return what is to be written of a window that was found begun; reads its manifests.

        :raises FileGoneError, CorruptLog: see `begun_manifest`.
        """
        epochs = [epoch for epoch in window.epochs if epoch.epoch not in given_up]
        manifests = {
            each.epoch: begun_manifest(self._log, each) for each in epochs if each.manifest
        }
        # Of a window that was begun just now, no row can have been refused.
        passed = passed_us(self._log, {*manifests}, window.epochs[0].base_us, window.last_us)
        return self._window_write(window, epochs, manifests, passed)

    def _window_write(
        self,
        window: Window,
        epochs: Sequence[BegunEpoch],
        manifests: Mapping[int, Manifest],
        passed: Collection[int] = (),
    ) -> WindowWrite:
        return WindowWrite(
            *(self._log, self._connection, self.reporter, window, epochs, manifests, passed),
            quarantine=self.pipeline.quarantine and not window.sent_once,
            checked=self._chooser.checked,
        )

    def _record(self, window: Window, given_up: frozenset[int]) -> None:
        """Write the `flushed/` records: from here on the log says that the epochs are done (rule 17)."""
        if self._connection.may_count(window):
            delivered = [
                Delivered(epoch.epoch, epoch.rows, epoch.bytes, epoch.published_us)
                for epoch in window.epochs
                if epoch.epoch not in given_up
            ]
            self.reporter.observer.flushed(delivered, time.monotonic() - self._looked_s)
        records = flushed_records(window, self._clock_us(), given_up)
        self._log.record_flushed(records)
        self.mark = window.last
        for record in records:
            self.reporter.say("recording", record.epoch)
            logger.info("flushed %d rows", record.rows)
        self.trimmer.retain(window, records)
