"""Keeps a flusher going: one daemon thread for each query, woken by events, never trusting them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import tenacity

from state_backends import StateBackendError
from wal_sink.checkpoint.commit_watcher import CommitWatcher
from wal_sink.errors import WalSinkError
from wal_sink.flush.failure_log import FailureLog
from wal_sink.flush.flusher import Flusher
from wal_sink.log_context import about, at, line_logger
from wal_sink.model.records import ErrorReport, FlusherReport
from wal_sink.observer import Observer
from wal_sink.progress.heartbeat import living_flusher, this_process
from wal_sink.protocol.steps import Rest, Step
from wal_sink.wal.log import Log

logger = line_logger(__name__)

POLL_S, POLL_BILLED_S = 1.0, 10.0
"""How often the checkpoint is looked at when no event comes: events are late, and lost in a crash.
Less often where each look is paid for."""

WATCH_S = 0.01
"""How often a local checkpoint is glimpsed at meanwhile."""

_RETRY_FIRST_S, _RETRY_MOST_S = 0.5, 10.0

_REPORT_EVERY_S = 5.0


class Reporter:
    """Writes `flusher.json`: hints for people and for `await_flushed`.

    :param log: the query's log. That a hint cannot be written never stops the flush.
    :param gives_way: write nothing while another process reports: one that flushes for a moment must
        not hide, by ending, that the query's own flusher lives.
    :param observer: told of failures, too; None: nobody counts them.
    """

    def __init__(
        self,
        log: Log,
        clock_us: Callable[[], int],
        *,
        gives_way: bool = False,
        observer: Observer | None = None,
    ) -> None:
        self._log = log
        self.observer = observer or Observer()
        self._clock_us = clock_us
        self._gives_way = gives_way
        self._doing = "starting"
        self._epoch: int | None = None
        self._error: ErrorReport | None = None
        self._waits = ""
        self._written_s = 0.0

    def say(self, doing: str, epoch: int | None) -> None:
        """Note what is done now; written at once when it is not about an epoch, else now and then."""
        if epoch is not None:
            at(epoch)
        at_once = epoch is None and doing != self._doing
        self._doing, self._epoch = doing, epoch
        if at_once or time.monotonic() - self._written_s > _REPORT_EVERY_S:
            self._write()

    def succeeded(self) -> None:
        """Note that a step was done: the error, if there was one, is over."""
        at(None)
        self.observer.succeeded()
        if self._error is not None:
            self.forget_error()

    def failed(self, error: BaseException, *, tried: int = 1, wait_s: float | None = None) -> None:
        """Note an error.

        :param tried: how often in a row by now.
        :param wait_s: seconds until the next try; None: there is none.
        """
        ours = isinstance(error, WalSinkError)
        transient = isinstance(error, WalSinkError) and error.transient
        self.observer.failed(type(error).__name__ if ours else "bug", transient=transient)
        if wait_s is not None:
            where = "" if self._epoch is None else f" at epoch {self._epoch}"
            self._waits = f"stopped by an error{where}: {tried} tries, the next in {wait_s:.0f} s"
        self._error = ErrorReport(
            kind=type(error).__name__,
            what=error.what if isinstance(error, WalSinkError) else repr(error),
            remedy=error.remedy if isinstance(error, WalSinkError) else "Report this as a bug.",
            epoch=self._epoch,
            at_us=self._clock_us(),
            transient=transient,
        )
        self._write()
        self._waits = ""

    def forget_error(self) -> None:
        """Drop the error, before another try whose outcome somebody waits for."""
        self._error = None
        self._write()

    def _write(self) -> None:
        self._written_s = time.monotonic()
        doing = self._doing if self._epoch is None else f"{self._doing} epoch {self._epoch}"
        report = FlusherReport(
            flusher=this_process(),
            doing=self._waits or doing,
            heartbeat_us=self._clock_us(),
            error=self._error,
        )
        try:
            if not (self._gives_way and self._another_reports()):
                self._log.report(report)
        except (OSError, StateBackendError) as error:
            logger.warning("%s/flusher.json cannot be written: %r", self._log.url, error)

    def _another_reports(self) -> bool:
        last = living_flusher(self._log, self._clock_us())
        return last is not None and last.flusher != this_process()


class FlushLoop(threading.Thread):
    """Runs a flusher until it is told to end, or to stop.

    An error stops the line: the same step is tried again until it succeeds; nothing is ever skipped
    (rule 21). Before the n-th try it waits a random time of up to 0.5 s times 2 to the n, 10 s at most: so
    queries that fail together do not come back in step, and the line goes on by itself within seconds of a
    repair. A try that is refused costs a connection and a few reads. A step that succeeds ends the count: in
    a backlog under an overloaded target each window has its own.
    """

    def __init__(
        self, flusher: Flusher, reporter: Reporter, name: str, commit_watcher: CommitWatcher
    ) -> None:
        super().__init__(name=f"wal_sink-flush-{name}", daemon=True)
        self._query_id = name
        self._flusher = flusher
        self._reporter = reporter
        self._poll_s = POLL_BILLED_S if flusher.billed else POLL_S
        self._commit_watcher = commit_watcher
        self._woken = threading.Event()
        self._hurried = threading.Event()
        self._ending = False
        self._stopping = threading.Event()
        self._tries = tenacity.Retrying(
            wait=tenacity.wait_random_exponential(multiplier=_RETRY_FIRST_S, max=_RETRY_MOST_S),
            stop=tenacity.stop_when_event_set(self._stopping),
            sleep=self._sleep,
            before_sleep=self._failed,
        )
        self._failures = FailureLog()

    def wake(self) -> None:
        """Look now: something may be checkpointed."""
        self._woken.set()

    def hurry(self) -> None:
        """Try now, even if the last try failed a moment ago: somebody waits for the outcome."""
        self._reporter.forget_error()
        self._hurried.set()
        self._woken.set()

    def end(self) -> None:
        """Finish what is checkpointed, then end: the query has terminated."""
        self._ending = True
        self._woken.set()

    def stop(self) -> None:
        """End after the step under way."""
        self._stopping.set()
        self._flusher.interrupt()
        self._hurried.set()
        self._woken.set()

    def run(self) -> None:
        """Flush, rest, flush."""
        with about(self._query_id):
            self._reporter.observer.started()
            try:
                self._go_on()
            except tenacity.RetryError:
                return  # told to stop while failing; the error is reported
            finally:
                self._reporter.observer.ended()
                self._disconnect()

    def _go_on(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            ending = self._ending  # before looking: what came later is not seen by this look
            self._flush_until_rest()
            if ending:
                return
            self._rest()

    def _rest(self) -> None:
        """Wait until there may be something to do."""
        if not self._commit_watcher.possible:
            self._woken.wait(self._poll_s)
            return
        until_s = time.monotonic() + self._poll_s
        while not self._woken.wait(WATCH_S):
            if self._commit_watcher.news() or time.monotonic() > until_s:
                return

    def _flush_until_rest(self) -> None:
        while (step := self._tries(self._step)) is not None:
            self._reporter.succeeded()
            self._failures.over()
            if isinstance(step, Rest):
                return

    def _step(self) -> Step | None:
        """Do a step, unless told to stop: then the last error is not over."""
        return None if self._stopping.is_set() else self._flusher.run_once()

    def _failed(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None
        self._disconnect()  # the next try connects, and compares the plan with the table, anew
        self._reporter.failed(error, tried=state.attempt_number, wait_s=state.upcoming_sleep)
        self._failures.met(error, tried=state.attempt_number)
        at(None)

    def _disconnect(self) -> None:
        try:
            self._flusher.close()
        except Exception:
            logger.warning("could not disconnect in order", exc_info=True)

    def _sleep(self, seconds: float) -> None:
        self._hurried.wait(seconds)
        self._hurried.clear()
