"""`flush`: a flusher in a process of its own, without Spark. Any number of them may act on one query."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec
import tenacity

from state_backends import StateBackendError
from wal_sink.admin.heartbeat_history import HeartbeatHistory
from wal_sink.admin.query import Query
from wal_sink.checkpoint.commit_watcher import CommitWatcher
from wal_sink.clock import now_us
from wal_sink.errors import NoFlusher, NotDrained, WalSinkError
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop, Reporter
from wal_sink.log_context import about
from wal_sink.observer import Observer
from wal_sink.progress.backlog import waiting_epochs
from wal_sink.protocol.steps import Begin, PassOver, Rest, Resume, Step
from wal_sink.targets.base import Target
from wal_sink.wal.log import Log

_TRIES = 4
"""How often one step is tried, when trying again is the remedy; then the caller decides."""

_LOOK_S = 1.0
"""How often progress is told, of a flush that goes on."""

_SIGNAL_S = 0.1
"""How soon a signal is noticed."""

Progress = Callable[[int, int], None]
"""Told how many epochs of how many are flushed."""


class FlushDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was flushed meanwhile, by this process or another."""

    query_id: str
    log: str
    flushed: int
    """The last epoch that is in the target, -1 for none."""
    epochs: int
    rows: int
    bytes: int
    pending_epochs: int
    """Checkpointed and not flushed, at the end."""
    seconds: float
    why: str
    """Why it ended."""


class OwnFlusher:
    """Hosts a flusher. Used by one thread, but for `stop`.

    :param observer: counts; None: nobody does.
    """

    def __init__(
        self,
        query: Query,
        target: Target,
        trim_delay_s: float = 0.0,
        observer: Observer | None = None,
    ) -> None:
        self._query = query
        self._reporter = Reporter(query.log, now_us, gives_way=True, observer=observer)
        target.load()
        self._flusher = Flusher(
            query.log,
            query.checkpoint,
            target,
            query_id=query.query_id,
            clock_us=now_us,
            say=self._reporter.say,
            run_history=HeartbeatHistory(query.log),
            observer=observer,
            trim_delay_s=trim_delay_s,
        )
        self._tally = _Tally(query.log)
        self._started_s = time.monotonic()
        # No Event: a signal handler calls `stop` while this thread may hold the lock of it.
        self._stopping = False

    def stop(self) -> None:
        """End after the slice under way. What is begun stays begun; called from a signal handler."""
        self._stopping = True
        self._flusher.interrupt()

    def drain(self, progress: Progress = lambda _done, _total: None) -> FlushDone:
        """Flush what is checkpointed now.

        :raises NotDrained: it was stopped before.
        :raises WalSinkError: at which the line stops; a transient one after some tries.
        """
        goal = self._query.checkpoint.last_commit()
        total = max(0, goal - max(self._tally.flushed, self._before_first()))
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_transient),
            wait=tenacity.wait_random_exponential(multiplier=0.5, max=5),
            stop=lambda state: self._stopping or state.attempt_number >= _TRIES,
            before_sleep=self._failed,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            while not self._stopping:
                progress(self._tally.epochs, total)
                with about(self._query.query_id):
                    step = tries(self._flusher.run_once)
                self._reporter.succeeded()
                self._tally.look()
                if isinstance(step, Rest):
                    return self._done(step.why)
                if self._tally.flushed >= goal and _is_flush(step):
                    return self._done("everything that was checkpointed at the start is flushed")
        except WalSinkError as error:
            self._reporter.failed(error)
            raise
        finally:
            self._flusher.close()
        raise NotDrained(
            f"Interrupted after {self._tally.epochs} epochs; {self._waiting()} wait",
            "Nothing is lost: run it again.",
        )

    def follow(self, progress: Progress = lambda _done, _total: None) -> FlushDone:
        """Flush until `stop`. An error stops the line, is reported, and is tried again (rule 21)."""
        loop = FlushLoop(
            self._flusher,
            self._reporter,
            self._query.query_id,
            CommitWatcher(self._query.checkpoint.url),
        )
        loop.start()
        try:
            while not self._stopping:
                self._sleep(_LOOK_S)
                if not loop.is_alive():
                    raise NoFlusher("The flush has ended by itself", "Report this as a bug.")
                # What cannot be read stops the flusher as well, which says so.
                with contextlib.suppress(WalSinkError, StateBackendError, OSError):
                    self._tally.look()
                progress(self._tally.epochs, self._tally.epochs)
        finally:
            loop.stop()
            loop.join()
        self._tally.look()
        return self._done("stopped")

    def _before_first(self) -> int:
        identity = self._query.log.identity()
        return identity.first_epoch - 1 if identity else -1

    def _failed(self, state: tenacity.RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        assert error is not None
        self._reporter.failed(error)
        self._flusher.close()  # the next try connects anew

    def _sleep(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not self._stopping and time.monotonic() < until_s:
            time.sleep(_SIGNAL_S)

    def _waiting(self) -> int:
        return waiting_epochs(self._query.checkpoint, self._query.log)

    def _done(self, why: str) -> FlushDone:
        return FlushDone(
            query_id=self._query.query_id,
            log=self._query.log.url,
            flushed=self._tally.flushed,
            epochs=self._tally.epochs,
            rows=self._tally.rows,
            bytes=self._tally.bytes,
            pending_epochs=self._waiting(),
            seconds=time.monotonic() - self._started_s,
            why=why,
        )


class _Tally:
    """Adds up records on the way: of a long backlog the older ones are forgotten meanwhile."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.flushed = max(log.flushed_epochs(), default=-1)
        self.epochs = self.rows = self.bytes = 0

    def look(self) -> None:
        """Add what was flushed since."""
        for record in self._log.flushed_since(self.flushed):
            self.flushed = record.epoch
            self.epochs += 1
            self.rows += record.rows
            self.bytes += record.bytes


def _transient(error: BaseException) -> bool:
    return isinstance(error, WalSinkError) and error.transient


def _is_flush(step: Step) -> bool:
    """Whether the step was not only one that clears up before: those are taken to their end."""
    return isinstance(step, Begin | PassOver | Resume)
