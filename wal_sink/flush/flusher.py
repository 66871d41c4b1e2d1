"""Brings checkpointed epochs into the target, in order: looks, lets the protocol decide, does that one step.

A flusher can be interrupted at any point, and any flusher can go on from there: what is durable decides
where. Why that is exactly-once: `docs/protocol.md`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from state_backends import StateBackendError
from wal_sink import remedies
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.checkpoint.early_sync import EarlySync
from wal_sink.clock import now_us
from wal_sink.errors import LogUnavailable, WrongOwner
from wal_sink.flush.attempts import Attempts
from wal_sink.flush.choose_window import WindowChooser
from wal_sink.flush.clocks import Clocks
from wal_sink.flush.missing import Missing
from wal_sink.flush.other_log import History
from wal_sink.flush.plan_window import WindowPlanner
from wal_sink.flush.quarantine import RowsRefused, keep_refused
from wal_sink.flush.read_window import FileGoneError
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.run_history import RUN_HISTORY, RunHistory
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.trimmer import Trimmer
from wal_sink.flush.window_rows import WindowRows
from wal_sink.flush.write_window import WindowWrite, WriteInThread, WriteRows
from wal_sink.log_context import line_logger
from wal_sink.model.ledger import Owner, Window, ledger_key
from wal_sink.model.manifest import Attempt
from wal_sink.observer import Delivered
from wal_sink.progress.given_up import given_up_since_begun
from wal_sink.protocol.ledger_updates import flush_records
from wal_sink.protocol.next_step import next_step, resting
from wal_sink.protocol.steps import (
    Begin,
    Choose,
    CreateLedger,
    LookAgain,
    ManifestMissing,
    PassOver,
    RecordFlushed,
    RecordsBehind,
    Rest,
    Resume,
    Step,
    Trim,
    View,
)
from wal_sink.protocol.windows import to_sync
from wal_sink.targets.base import Target
from wal_sink.wal.attached import absent
from wal_sink.wal.left_behind import unflushed
from wal_sink.wal.log import Log
from wal_sink.wal.ownership import owned

logger = line_logger(__name__)


@dataclass(frozen=True)
class Pipeline:
    """What a flusher works on: one query's epochs, on their way from its log to its target."""

    query_id: str
    log: Log
    checkpoint: Checkpoint
    target: Target
    trim_delay_s: float = 0.0
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
        self._target = TargetConnection(pipeline.target, owner, self.reporter, clock_us)
        self._planner = WindowPlanner(pipeline.log, Clocks(self._target, clock_us))
        self._chooser = WindowChooser(
            pipeline.log, pipeline.checkpoint, pipeline.query_id, run_history
        )
        self._rows = WindowRows(
            pipeline.log,
            self._target,
            self.reporter,
            quarantine=pipeline.quarantine,
            checked=self._chooser.checked,
        )
        self._history = History(pipeline.log, self._chooser)
        self._missing = Missing(pipeline.log, self._target)
        self._attempts = Attempts(self._target)
        self.trimmer = Trimmer(pipeline.log, pipeline.trim_delay_s, clock_us)
        self._looked_s, self._started = 0.0, False
        run_history.watch(pipeline.query_id)
        pipeline.target.load()

    def run_once(self) -> Step:
        """Look, decide, do one step; return it. A `Rest` means that there is nothing to do now.

        :raises WalSinkError: the flush stops here; calling again takes up the same step.
        """
        self._looked_s = time.monotonic()
        try:
            view = self._look()
            step = next_step(view, self._target.owner)
            if isinstance(step, LookAgain):
                return step
            if not view.absent:
                self.trimmer.sweep(view.trimmable)
                self.trimmer.drop_aside(agreed=view.agreed)
            if isinstance(step, Choose):
                step = self._chooser.window(step, view)
            elif isinstance(step, Resume):
                step = self._attempts.due(step)
            self._do(step, view)
        except (OSError, StateBackendError) as error:
            raise LogUnavailable(
                f"The log or the checkpoint cannot be used: {error!r}",
                f"See to {self._log.url} and {self._checkpoint.url}; the flush goes on by itself.",
            ) from error
        return step

    def interrupt(self) -> None:
        """Stop before the next slice; called from another thread. What is begun stays begun."""
        self._target.interrupt()

    def close(self) -> None:
        """Release the connection to the target. The flusher can go on; it connects again."""
        self._target.close()

    # --- look -------------------------------------------------------------------------------------

    def _look(self) -> View:
        """Read everything afresh, in the order of rule 9: `commits/` first, manifests last."""
        query_id = self.pipeline.query_id
        checkpointed = self._checkpoint.last_commit()
        if (found := self._checkpoint.query_id()) != query_id:
            raise WrongOwner(
                f"{self._checkpoint.url} is now the checkpoint of query {found}, not of {query_id}",
                "The checkpoint was deleted and made anew, and its new query has a log of its own. "
                + remedies.left_behind(self._log.url, unflushed(self._log)),
            )
        if why := absent(self._log):
            return View(checkpointed, None, None, asked=False, mark=None, attempts=(), absent=why)
        recorded = self._log.newest_flushed()
        identity = owned(self._log, self._checkpoint)
        mark, asked, known = None, False, False
        if identity is not None:
            self._target.owner = Owner(self._ledger_key, identity.log_id, identity.checkpoint)
            # At start-up the ledger is read in any case: it may be ahead of the records (rule 17).
            asked = not self._started or not resting(checkpointed, recorded, identity)
            if asked:
                self.sync.start(checkpointed)
                mark, known = self._target.row(recorded.epoch if recorded else None)
            self._started = True
        attempts = self._log.attempts(fresh=asked)
        # After the manifests: a flusher makes the record before it deletes the manifest.
        newest = self._log.newest_flushed_epoch(fresh=True) if asked else None
        overtaken = newest is not None and newest > (recorded.epoch if recorded else -1)
        fresh = asked and mark is None and recorded is None
        rewound = fresh and bool(self._log.interventions("rewind"))
        trimmable = self.trimmer.trimmable(recorded, attempts)
        return View(
            checkpointed,
            recorded,
            identity,
            asked,
            mark,
            attempts,
            rewound,
            trimmable,
            retained=self.trimmer.due(recorded, trimmable),
            unrecorded=self.trimmer.unrecorded(mark, recorded),
            overtaken=overtaken,
            known=known,
        )

    # --- do ---------------------------------------------------------------------------------------

    def _do(self, step: Step, view: View) -> None:
        match step:
            case Rest():
                self._rest(step, view)
            case CreateLedger(flushed):
                self._target.create(flushed)
            case RecordFlushed(window):
                self._history.refuse_other_log(step, view)
                self._record(window, given_up_since_begun(self._log, window))
            case Trim(epochs):
                self.reporter.say("trimming", epochs[0])
                self.trimmer.trim(epochs)
            case Resume(window):
                self.reporter.say("resuming", window.first)
                logger.info("resuming epochs %d to %d", window.first, window.last)
                self._history.refuse_left(step, view)
                if (taken := self._attempts.take(window, view)) is not None:
                    self._flush(taken, given_up=given_up_since_begun(self._log, window))
            case Begin() | PassOver():
                self._begin(step, view)
            case ManifestMissing(epoch):
                self._missing.manifest(epoch)
            case RecordsBehind():
                self._history.refuse_other_log(step, view)

    def _rest(self, rest: Rest, view: View) -> None:
        if rest.odd and self._checkpoint.last_commit() > view.checkpointed:
            return  # another flusher was quick since the look: nothing is odd
        self.reporter.say(rest.why, None)
        if rest.odd:
            logger.warning("%s: %s", self._checkpoint.url, rest.why)

    def _begin(self, step: Begin | PassOver, view: View) -> None:
        """Begin a window at the mark that was seen; if the ledger has moved on, the target refuses."""
        assert view.mark is not None
        if isinstance(step, PassOver) and self._missing.was_deleted(step.epoch, view):
            return  # the record that passes it over may be about an older attempt
        window, chosen = self._planner.plan(step, view.mark)
        self._attempts.begins(window)
        self.reporter.say("beginning", window.first)
        rows = self._rows.chosen(window, chosen)
        self.sync.make_durable(to_sync(window.first, window.last, view.checkpointed))  # rule 8
        if not self._chooser.settle(step, chosen):
            return
        if self._target.begin(window, view.mark, rows.ahead()):
            self._flush(window, rows)

    def _flush(
        self,
        window: Window,
        rows: WindowWrite | None = None,
        given_up: frozenset[int] = frozenset(),
    ) -> None:
        """Write what is begun, finish, record, trim. Wherever this ends, the next `Resume` goes on.

        :param rows: of the window, if this flusher began it just now.
        :param given_up: epochs that an operator has given up since they were begun (rule 22). A decision
            that comes after `begin` is looked up by the next `Resume`.
        """
        self._target.start(window)
        if not self._write(window, rows, given_up):
            self._target.give_up_rows()
            return
        if not self._target.finish(window):
            return
        self._record(window, given_up)
        if trimmable := self.trimmer.at_once(window):
            attempts = {Attempt(begun.epoch, begun.generation) for begun in window.epochs}
            self.trimmer.trim(trimmable, attempts)

    def _write(self, window: Window, rows: WindowWrite | None, given_up: frozenset[int]) -> bool:
        """Write the rows; False when that is interrupted, or was finished by another flusher."""
        try:
            rows = rows or self._rows.begun(window, given_up)
            keep_refused(self._log, rows.epochs, rows.manifests)
            if rows.quarantine:
                pieces = [piece for begun in rows.epochs for piece in rows.pieces(begun)]
                self._target.pass_over(RowsRefused(self._log, pieces))
            return self._write_rows(rows)
        except FileGoneError as gone:
            self._missing.segment(gone, window)
            return False

    def _record(self, window: Window, given_up: frozenset[int]) -> None:
        """Write the `flushed/` records: from here on the log says that the epochs are done (rule 17)."""
        if self._target.claim_count(window):
            delivered = [
                Delivered(epoch.epoch, epoch.rows, epoch.bytes, epoch.published_us)
                for epoch in window.epochs
                if epoch.epoch not in given_up
            ]
            self.reporter.observer.flushed(delivered, time.monotonic() - self._looked_s)
        records = flush_records(window, self._clock_us(), given_up)
        self._log.record_flushed(records)
        for record in records:
            self.reporter.say("recording", record.epoch)
            logger.info("flushed, %d rows", record.rows)
        self.trimmer.retain(window, records)
