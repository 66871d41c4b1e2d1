"""Keeps a flusher going, in a daemon thread of its own: for each target of a query, woken by events.

A query that another process flushes has no loop here. `wal-sink flush` has one, with or without an end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import tenacity

from wal_sink.checkpoint.watcher import CommitWatcher
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher
from wal_sink.log_context import line_logger, log_epoch, logging_query
from wal_sink.protocol.next_step import Idle, Step

logger = line_logger(__name__)

POLL_S, POLL_BILLED_S = 1.0, 10.0
"""How often the loop looks at the checkpoint when no event comes: events are late, and lost in a crash.
Less often where each look is paid for."""

_RETRY_FIRST_S, _RETRY_MOST_S = 0.5, 10.0


class FlushLoop(threading.Thread):
    """Runs a flusher until it is told to end, or to stop.

    An error stops the flush: the loop tries the same step again until it succeeds, and never skips one
    (rule 21). The pauses between tries are random and grow to 10 s: `docs/recover.md` has them. A
    step that succeeds ends the count: in a backlog under an overloaded target each window has its own.

    :param is_last: asked after each step, whether to end with it.
    :param prepare: done before the first step, and tried as a step is.
    :param gives_up: asked after each try that failed, whether to end with its error, which `error` has then.
    """

    def __init__(
        self,
        flusher: Flusher,
        is_last: Callable[[Step], bool] = lambda _step: False,
        prepare: Callable[[], object] = lambda: None,
        gives_up: Callable[[tenacity.RetryCallState], bool] = tenacity.stop_never,
    ) -> None:
        self._pipeline = flusher.pipeline
        super().__init__(name=f"wal_sink-flush-{self._pipeline.query_id}", daemon=True)
        self.target_name = self._pipeline.log.target
        """Empty where the query has one target."""
        self._flusher = flusher
        self._reporter = flusher.reporter
        self._poll_s = POLL_BILLED_S if self._pipeline.billed else POLL_S
        self._commit_watcher = CommitWatcher(self._pipeline.checkpoint.url)
        self._woken = threading.Event()
        self._hurried = threading.Event()
        self._tried = threading.Event()
        self._ending = False
        self._stopping = threading.Event()
        self._is_last, self._prepare = is_last, prepare
        self.error: BaseException | None = None
        """At which it has ended."""
        self._tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(BaseException),  # a panic of delta-rs is one
            wait=tenacity.wait_random_exponential(multiplier=_RETRY_FIRST_S, max=_RETRY_MOST_S),
            stop=lambda state: self._stopping.is_set() or gives_up(state),
            sleep=self._sleep,
            before_sleep=self._failed,
            reraise=True,
        )

    def wake(self) -> None:
        """Look now: something may be checkpointed."""
        self._woken.set()
        self._commit_watcher.interrupt()

    def hurry(self) -> None:
        """Try now, even if the last try failed a moment ago: a caller waits for the outcome."""
        self._tried.clear()
        self._hurried.set()
        self.wake()

    def has_tried(self) -> bool:
        """Whether a step was done, or has failed, since the last `hurry`; or none comes any more."""
        return self._tried.is_set() or not self.is_alive()

    def end(self) -> None:
        """Finish what is checkpointed, then end: the query has terminated."""
        self._ending = True
        self.wake()

    def stop(self) -> None:
        """End after the step under way."""
        self._stopping.set()
        self._flusher.interrupt()
        self._hurried.set()
        self.wake()

    def run(self) -> None:
        """Flush until told to end, and wait while there is nothing to flush."""
        with logging_query(self._pipeline.query_id, self._pipeline.log.target):
            self._reporter.observer.started()
            try:
                with self._reporter.beating():
                    self._tries(self._prepare)
                    self._go_on()
            except BaseException as error:
                if not self._stopping.is_set():  # else it is reported
                    self.error = error
                    self._reporter.failed(error)
                    if not isinstance(error, WalSinkError):
                        logger.exception("the flush has ended. Report this as a bug")
            finally:
                self._reporter.observer.ended()
                self._commit_watcher.close()
                self._flusher.close()
                self._reporter.ended()

    def _go_on(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            ending = self._ending  # before looking: what came later is not seen by this look
            if self._flush_until_idle() or ending:
                return
            self._wait()

    def _wait(self) -> None:
        """Wait until there may be something to do."""
        if not self._commit_watcher.can_watch:
            self._woken.wait(self._poll_s)
            return
        until_s = time.monotonic() + self._poll_s
        while not self._woken.is_set() and (left_s := until_s - time.monotonic()) > 0:
            if self._commit_watcher.wait(left_s):
                return
            if self._commit_watcher.others_wrote:
                self._flusher.sync.ahead()

    def _flush_until_idle(self) -> bool:
        """Flush while there is something to flush; whether a step was the last one."""
        while (step := self._tries(self._step)) is not None:
            self._reporter.succeeded(None if isinstance(step, Idle) else self._flusher.mark)
            self._tried.set()
            if self._is_last(step):
                return True
            if isinstance(step, Idle):
                break
        return False

    def _step(self) -> Step | None:
        """Do a step, unless told to stop: then the last error is not over."""
        return None if self._stopping.is_set() else self._flusher.run_once()

    def _failed(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None
        self._flusher.close()  # the next try connects, and compares the plan with the table, anew
        self._reporter.failed(error, tried=state.attempt_number, wait_s=state.upcoming_sleep)
        self._tried.set()
        log_epoch(None)

    def _sleep(self, seconds: float) -> None:
        self._hurried.wait(seconds)
        self._hurried.clear()
