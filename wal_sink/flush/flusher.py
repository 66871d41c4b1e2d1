"""Writes settled epochs into one target, in order.

`Flusher._pass` has the steps of the protocol in their order: state, commits, settle, ledger, read, write,
finish, mark, trim. The rest of the module decides when a pass runs, and how an error of a pass is handled.

A flusher may die at any point, and several flushers may act on one query. So log, checkpoint and ledger row
decide where a flusher continues, and not the flusher's memory (`docs/protocol/README.md`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from wal_sink.errors import (
    LogUnavailable,
    TargetRefused,
    TargetUnavailable,
    WalSinkError,
    while_refused,
)
from wal_sink.flush.pipeline import Pipeline, plan_of
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.window import WINDOW_EPOCHS, Window, manifests_of_window
from wal_sink.flush.write import WriteInThread, WriteRows
from wal_sink.model.ledger import LedgerRow, claim_sending
from wal_sink.model.plan import Plan
from wal_sink.model.state import State
from wal_sink.progress.flusher_report import this_process
from wal_sink.protocol import state as protocol
from wal_sink.protocol.flush_decisions import (
    Chain,
    Decision,
    Step,
    decide,
    may_keep,
    row_at,
)
from wal_sink.protocol.retention import next_trim_us
from wal_sink.targets.base import RefusedRow, RowsRefused
from wal_sink.telemetry import line_logger
from wal_sink.units import now_us
from wal_sink.wal.location import refuse_vanished
from wal_sink.wal.manifests import ManifestChain
from wal_sink.wal.segment import (
    TEXTS,
    keep_refused,
    keep_row,
    read_segment,
    refused_us,
    with_reasons,
)
from wal_sink.wal.store import advance, delete_garbage, newest

logger = line_logger(__name__)


class Pass(NamedTuple):
    """The result of one pass of a flusher."""

    idle: bool
    """True if there is nothing to do now."""
    reason: str = ""
    """Why there is nothing to do, for people."""


class _IdlePeriod(NamedTuple):
    """A time in which a flusher reads `commits/` only, since its target has every completed epoch."""

    committed: int
    """The last completed epoch. A newer completed epoch ends the period."""
    until_s: float
    """End of the period by the monotonic clock. A period ends when epochs may be trimmed, but after at most
    15 minutes, since an operator may have changed the state."""


_IDLE_S = 900.0
_ALL_FLUSHED = "everything checkpointed is flushed"

_AGAIN = Pass(idle=False)


class Flusher:
    """Flushes one query into one target. Used by one thread at a time.

    Making a flusher loads the target's driver. The flusher connects when it needs the target.

    :param reporter: reports each step before the step, and counts the epochs that were flushed; None for no
        reports.
    :param clock_us: returns the time in microseconds since 1970.
    :param monotonic_s: returns seconds of a clock that is never set back.
    :param write_rows: writes the rows of a window.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        reporter: Reporter | None = None,
        *,
        clock_us: Callable[[], int] = now_us,
        monotonic_s: Callable[[], float] = time.monotonic,
        write_rows: WriteRows = WriteInThread(),  # noqa: B008 - it keeps no state without a rate
    ) -> None:
        self.pipeline = pipeline
        self.reporter = reporter or Reporter(None, pipeline.target_name)
        self._store, self._name = pipeline.store, pipeline.target_name
        self._clock_us = clock_us
        self._monotonic_s = monotonic_s
        self._write_rows = write_rows
        self._connection = TargetConnection(pipeline, self.reporter)
        self._manifests = ManifestChain(pipeline.store)
        self._plans: dict[str, Plan] = {}
        self._refused: dict[int, tuple[int, ...]] | None = None
        """Write timestamps of rows that the server refused, by epoch; None if `refused/` must be listed."""
        self.mark = -1
        """The target's mark when it was last read or written."""
        self._unanswered: LedgerRow | None = None
        """The new ledger row of a `finish` without an answer. If a later pass reads this row, the pass counts
        the epochs of the window."""
        self._idle_period: _IdlePeriod | None = None
        self._rechecks = False
        self._state: State | None = None
        """The state on which the pass is based."""
        self._taken = range(0)
        """Epochs that the pass has decided to flush."""
        self._one_by_one_until = -1
        """Every epoch up to this number is flushed in a window of its own, so that the flush stops right
        before the epoch of an error."""
        self._deleted = -1
        """This flusher has deleted the objects of every epoch up to this number."""
        pipeline.target.load()

    def run_once(self) -> Pass:
        """Do one pass.

        :raises WalSinkError: the flush is stopped. The next call tries the same step again.
        """
        try:
            if self._stays_idle():
                return self._idle(_ALL_FLUSHED)
            try:
                return self._pass()
            except WalSinkError as error:
                if not self._may_succeed_at_once(error):
                    raise
                return _AGAIN
        except OSError as error:
            raise LogUnavailable(
                f"The log or the checkpoint cannot be used: {error!r}.",
                f"Check {self._store.url} and {self.pipeline.checkpoint.url}. The flush continues by itself.",
            ) from error

    def _pass(self) -> Pass:  # noqa: C901, PLR0911, PLR0912 -- each step may end the pass
        """Settle the epochs that Spark has completed, then do one step for the target."""
        name, checkpoint = self._name, self.pipeline.checkpoint
        self._state, self._taken = None, range(0)
        self._connection.begin_pass()

        self._state = state = newest(self._store)
        if state is None:
            refuse_vanished(self._store, checkpoint)
            return self._idle("no run of the query has published yet")
        protocol.refuse_other_place(state, self.pipeline.query_id, checkpoint.url)
        committed = checkpoint.last_commit()  # after the state: rule `settle`
        settled = protocol.settle(state, committed, self._actor())
        if settled is not None:
            # A new query in this folder writes its id before `commits/`, so `committed` may be its epoch.
            protocol.refuse_other_place(state, checkpoint.query_id(), checkpoint.url)
            if not advance(self._store, state, settled):
                return _AGAIN
            self._state = state = settled

        target = state.target(name)
        if target is None or target.given_up:
            self._trim(state)  # if all targets were given up, only such a pass trims the log
            return self._idle(f"the log has no target {name}, or the target was given up")
        self.mark = target.mark.epoch
        if committed < target.first:
            return self._idle("nothing is checkpointed yet")

        row = self._connection.row(lambda row: may_keep(state, name, row))
        after = target.mark.epoch if row is None else min(row.epoch, target.mark.epoch)
        chain = self._manifests.chain(state, after, state.epochs_given_up(name))
        max_epochs = 1 if self.mark < self._one_by_one_until else WINDOW_EPOCHS
        restores_together = self.pipeline.target.restores_together
        decision = decide(
            state, name, committed, row, chain, max_epochs, restores_together=restores_together
        )
        self._taken = decision.epochs
        if decision.warning:
            logger.warning("%s", decision.warning)
        if decision.row is None:
            return self._begin_idle_period(self._trim(state), committed)
        match decision.step:
            case Step.SET_ROW:
                self.reporter.report("setting the ledger row", decision.row.epoch)
                self._connection.finish(row, decision.row)
            case Step.MARK:
                if decision.row == self._unanswered:
                    self._count(chain, self.mark + 1, decision.row.epoch)
                self._unanswered = None
                self._mark(state, decision.row, chain)
            case Step.WENT_BACK:
                self._went_back(state, decision.row, chain)
            case Step.FLUSH:
                started_s = self._monotonic_s()
                window = self._read_window(state, decision, chain)
                if self._write_and_finish(window, row):
                    seconds = self._monotonic_s() - started_s
                    self._count(chain, window.first, window.last, seconds)
                    marked = self._mark(state, window.finishes, chain)
                    if marked is not None and self.mark >= committed:
                        return self._begin_idle_period(marked, committed)
        return _AGAIN

    def _may_succeed_at_once(self, error: WalSinkError) -> bool:
        """Return True if another pass may succeed at once; False if the error stops the flush."""
        if isinstance(error, TargetUnavailable) and self._connection.lost_while_idle:
            # Servers and proxies close idle connections. In an outage the next pass raises, too.
            logger.debug("the connection was closed while it was idle: %s", error.what)
            self.close()
            return True
        if error.transient:
            return False
        if newest(self._store) != self._state:
            return True  # the pass combined an old state with newer data
        if len(self._taken) > 1:
            self._one_by_one_until = self._taken[-1]
            return True
        return False

    def _stays_idle(self) -> bool:
        """Return True if the idle period continues.

        A newly completed epoch ends the period, and so do `recheck` and the end of its time.
        """
        period, rechecks = self._idle_period, self._rechecks
        self._idle_period, self._rechecks = None, False
        if period is not None and not rechecks:
            if self.pipeline.checkpoint.last_commit() != period.committed:
                return False
            if self._monotonic_s() < period.until_s:
                self._idle_period = period
                return True
        if period is not None or rechecks:
            self._connection.forget_row()  # the target may have gone back since
        return False

    def recheck(self) -> None:
        """End the idle period, so that the next pass reads state and ledger row. Thread-safe."""
        self._rechecks = True

    def interrupt(self) -> None:
        """Stop the flush before the next slice. Called from another thread."""
        self._connection.interrupted = True

    def close(self) -> None:
        """Release the connection to the target. An error is logged, and a later pass connects again."""
        self._refused = self._idle_period = None
        try:
            self._connection.close()
        except Exception:
            logger.warning("the connection to the target was not closed cleanly", exc_info=True)

    # --- the parts of a pass ---

    def _begin_idle_period(self, state: State, committed: int) -> Pass:
        """Begin an idle period, since the target has every completed epoch; return an idle pass."""
        due_us, idle_s = next_trim_us(state, self.pipeline.retention), _IDLE_S
        if due_us is not None:
            idle_s = min(idle_s, (due_us - self._clock_us()) / 1_000_000)
        self._idle_period = _IdlePeriod(committed, self._monotonic_s() + idle_s)
        return self._idle(_ALL_FLUSHED)

    def _read_window(self, state: State, decision: Decision, chain: Chain) -> Window:
        """Read the manifests of one window, and the plan of their rows."""
        published = (self._manifests.read(chain[epoch]) for epoch in decision.epochs)
        first = next(published)
        plan = self._plan(first.plan, first.epoch)
        # The ledger row counts the sendings of one epoch, so such a window has one epoch.
        manifests = (first,) if plan.sent_once else manifests_of_window(first, published)
        if self._refused is None:
            self._refused = refused_us(self._store, self._name, manifests[0].epoch - 1)
        return Window(
            self.pipeline,
            manifests=manifests,
            plan=plan,
            finishes=row_at(state, manifests[-1].epoch, chain),
            refused=self._refused,
        )

    def _write_and_finish(self, window: Window, row: LedgerRow | None) -> bool:
        """Write the rows of a window, and move the ledger row over it; return True if the row was moved.

        :param row: the ledger row before the window.
        """
        assert row is not None, "a window follows on the ledger row"
        self.reporter.report("writing", window.first)
        for manifest in window.manifests:
            keep_refused(self._store, manifest)
        if window.plan.sent_once:
            claimed = claim_sending(row)
            if not self._connection.finish(row, claimed):
                return False
            row, window = claimed, replace(window, sending=claimed.sending)
        try:
            if not self._write_rows(window, self._connection, self.reporter):
                self._connection.close()
                return False
            self.reporter.report("finishing", window.last)
            self._unanswered = window.finishes
            is_finished = self._connection.finish(row, window.finishes)
            self._unanswered = None
        except RowsRefused as refused:
            self._quarantine(window, refused)
            return False
        except BaseException:
            self.close()  # the session has a part of the window, to which the next try must not add
            raise
        return is_finished

    def _plan(self, key: str, epoch: int) -> Plan:
        if key not in self._plans:
            self._plans[key] = plan_of(self._store, self._name, key, epoch)
        return self._plans[key]

    def _quarantine(self, window: Window, refused: RowsRefused) -> None:
        """Keep refused rows in the log; the next pass writes the window without these rows.

        :raises TargetRefused: there is no quarantine, or a row is not in the window.
        """
        if not self.pipeline.quarantine:
            error = refused.rows[0].error
            raise TargetRefused(error.what, f"{error.remedy} {while_refused(window.first)}")
        for row in refused.rows:
            self._keep_row(window, row)
        self.close()

    def _keep_row(self, window: Window, row: RefusedRow) -> None:
        """Keep a row that the server refused, in a durable file below the log's `refused/`. Idempotent."""
        what, remedy = row.error.what, row.error.remedy
        place = window.row_at(row.us)
        if place is None:
            raise TargetRefused(
                f"{what} The row cannot be kept in the log, since epochs {window.first} to {window.last} have"
                f" no row with its write timestamp, {row.us}.",
                f"{remedy} If the target is your own, let it raise RowsRefused with the timestamps that"
                " `RowSlice` has.",
            )
        manifest, rows = place
        number = row.us - rows.first_us
        refused_row = next(read_segment(self._store, rows.segment, number, number + 1))
        texts = {
            "kind": "TargetRefused",
            "target": self._name,
            "column": "",
            "reason": what,
            "remedy": remedy,
        }
        keep_row(
            self._store,
            manifest.epoch,
            self._name,
            row.us - window.shift(manifest),
            with_reasons(refused_row, tuple(texts[column] for column in TEXTS)),
        )
        logger.warning(
            "the target refuses a row of epoch %d. The row is kept in %s/refused/, and the flush continues"
            " without it. Cause: %s",
            manifest.epoch,
            self._store.url,
            what,
        )

    def _mark(self, state: State, row: LedgerRow, chain: Chain) -> State | None:
        """Record the ledger row in the state. Return None if the state has changed meanwhile."""
        retention = self.pipeline.retention
        marked = protocol.mark(state, self._name, row, chain, retention, self._actor())
        if not advance(self._store, state, marked):
            return None
        self.mark = row.epoch
        self.reporter.report("marking", row.epoch)
        self._manifests.forget(row.epoch)
        self._delete_garbage(marked)
        return marked

    def _went_back(self, state: State, row: LedgerRow, chain: Chain) -> None:
        """Set the mark back, so that the epochs after the ledger row are flushed again."""
        self._refused = None
        back = protocol.went_back(state, self._name, row, chain, self._actor())
        mark = state.target(self._name)
        if advance(self._store, state, back) and mark is not None:
            self.mark = row.epoch
            logger.warning(
                "target %s went back to epoch %d: a backup was restored, or a lagging replica was promoted."
                " The log sends epochs %d to %d again",
                self._name,
                row.epoch,
                row.epoch + 1,
                mark.mark.epoch,
            )

    # --- deleting what every target has ---

    def _trim(self, state: State) -> State:
        """Record in the state what may be deleted now, and delete it; return the state."""
        trimmed = protocol.trim(state, self.pipeline.retention, self._actor())
        if trimmed is not None and not advance(self._store, state, trimmed):
            return state  # the next pass tries again
        state = trimmed or state
        self._delete_garbage(state)
        return state

    def _delete_garbage(self, state: State) -> None:
        if state.trimmed > self._deleted:
            self.reporter.report("trimming", state.trimmed)
            delete_garbage(self._store, state)
            self._deleted = state.trimmed

    def _count(self, chain: Chain, first: int, last: int, seconds: float | None = None) -> None:
        """Count the epochs of a window that this flusher has finished.

        :param seconds: duration of the window; None if an earlier pass wrote the rows.
        """
        self.reporter.flushed([chain[epoch] for epoch in range(first, last + 1)], seconds)

    def _idle(self, reason: str) -> Pass:
        # Until the next report is due, `status` shows this text beside epochs that were completed since.
        doing = "waiting for the next epoch" if reason is _ALL_FLUSHED else reason
        self.reporter.report(doing, None)
        return Pass(idle=True, reason=reason)

    def _actor(self) -> protocol.Actor:
        return protocol.Actor(by=this_process(), now_us=self._clock_us())
