"""Runs a flusher in a daemon thread of its own: one thread for each target of a query.

Events wake the thread. After an error the pass is tried again (rule `stop`). A query that another process
flushes has no loop in this process. `wal-sink flush` runs a loop until everything is flushed, or forever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import tenacity

from wal_sink.checkpoint.checkpoint import READ_S, CommitWatcher
from wal_sink.errors import WalSinkError
from wal_sink.flush.flusher import Flusher, Pass
from wal_sink.telemetry import line_logger, log_epoch, logging_query

logger = line_logger(__name__)

POLL_S = 1.0
"""Seconds between two reads of `commits/` without an event. Events may be late or lost."""

POLL_BILLED_S = 15.0
"""Seconds between two reads of `commits/` if each request costs money. An idle query then sends 240 requests
an hour to a bucket, and 144 for reports."""

_RETRY_FIRST_S, _RETRY_MOST_S = 0.5, 10.0


class FlushLoop(threading.Thread):
    """Runs a flusher until `end` or `stop` is called.

    After an error the loop tries the same pass again until the pass succeeds, and skips nothing (rule
    `stop`). The pauses between tries are random and grow up to 10 s (`docs/recover.md`). A pass that succeeds
    resets the pauses, so under an overloaded target each window of a backlog begins with short pauses.

    :param is_last: called with each pass; True ends the loop.
    :param gives_up: called after each failed try; True ends the loop, and `error` has the error.
    """

    def __init__(
        self,
        flusher: Flusher,
        is_last: Callable[[Pass], bool] = lambda _pass: False,
        gives_up: Callable[[tenacity.RetryCallState], bool] = tenacity.stop_never,
    ) -> None:
        self._pipeline = flusher.pipeline
        super().__init__(name=f"wal_sink-flush-{self._pipeline.query_id}", daemon=True)
        self.target_name = self._pipeline.target_name
        self._flusher = flusher
        self._reporter = flusher.reporter
        self._poll_s = POLL_BILLED_S if self._pipeline.billed else POLL_S
        self._commit_watcher = CommitWatcher(self._pipeline.checkpoint.url)
        self._woken = threading.Event()
        self._hurried = threading.Event()
        self._tried = threading.Event()
        self._ending = False
        self._stopping = threading.Event()
        self._is_last = is_last
        self.error: BaseException | None = None
        """The error that has ended the loop; None for none."""
        self._tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(BaseException),  # such as a panic of delta-rs
            wait=tenacity.wait_random_exponential(multiplier=_RETRY_FIRST_S, max=_RETRY_MOST_S),
            stop=lambda state: self._stopping.is_set() or gives_up(state),
            sleep=self._sleep,
            before_sleep=self._failed,
            reraise=True,
        )

    def wake(self) -> None:
        """Read `commits/` now, since an epoch may be checkpointed."""
        self._woken.set()

    def hurry(self) -> None:
        """Try now, without the pause after a failed try, since a caller waits for the result."""
        self._tried.clear()
        self._flusher.recheck()
        self._hurried.set()
        self.wake()

    def has_tried(self) -> bool:
        """Return True if a pass has ended or failed since the last `hurry`, or if the loop has ended."""
        return self._tried.is_set() or not self.is_alive()

    def end(self) -> None:
        """Flush every checkpointed epoch, then end. Called after the query has terminated."""
        self._ending = True
        self.wake()

    def stop(self) -> None:
        """End after the current pass."""
        self._stopping.set()
        self._flusher.interrupt()
        self._hurried.set()
        self.wake()

    def run(self) -> None:
        """Flush until `end` or `stop` is called, and wait while there is nothing to flush."""
        with logging_query(self._pipeline.query_id, self._pipeline.label):
            self._reporter.metrics.started()
            try:
                with self._reporter.beating():
                    self._run_passes()
            except BaseException as error:
                if not self._stopping.is_set():  # otherwise the error is reported already
                    self.error = error
                    self._reporter.failed(error)
                    if not isinstance(error, WalSinkError):
                        logger.exception("the flush has ended. Report this as a bug")
            finally:
                self._reporter.metrics.ended()
                self._flusher.close()
                self._reporter.ended()

    def _run_passes(self) -> None:
        while not self._stopping.is_set():
            self._woken.clear()
            ending = self._ending  # read before the pass, which does not see later commits
            if self._flush_until_idle() or ending:
                return
            self._wait()

    def _wait(self) -> None:
        """Wait for an event, for a new file in `commits/`, or for the time of the next poll."""
        until_s = time.monotonic() + self._poll_s
        step_s = READ_S if self._commit_watcher.can_watch else self._poll_s
        while (left_s := until_s - time.monotonic()) > 0:
            if self._woken.wait(min(step_s, left_s)) or self._commit_watcher.has_new_commit():
                return

    def _flush_until_idle(self) -> bool:
        """Flush while there is something to flush. Return True after a pass for which `is_last` is True."""
        while (done := self._tries(self._pass)) is not None:
            self._reporter.succeeded(None if done.idle else self._flusher.mark)
            self._tried.set()
            if self._is_last(done):
                return True
            if done.idle:
                break
        return False

    def _pass(self) -> Pass | None:
        """Do a pass. Return None after `stop`, so that the last error stays reported."""
        return None if self._stopping.is_set() else self._flusher.run_once()

    def _failed(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None
        self._flusher.close()  # the next try connects and compares the plan with the table again
        self._reporter.failed(error, tried=state.attempt_number, wait_s=state.upcoming_sleep)
        self._tried.set()
        log_epoch(None)

    def _sleep(self, seconds: float) -> None:
        self._hurried.wait(seconds)
        self._hurried.clear()
