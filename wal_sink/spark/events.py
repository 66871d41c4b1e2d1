"""Receives Spark's events: a run that starts takes its ticket, a checkpointed epoch wakes the flush.

Events are hints. They are late, one thread delivers all of them, and a crash loses them; `commits/` says
what is checkpointed. But only events say at once whose attempt at an epoch Spark kept: the `RunHistory`
keeps them (rule 11). And `onQueryStarted` must arrive: Spark calls it inside `start()`, before the run
reads the checkpoint, and there the run takes its ticket (rule 2).

The driver also polls each run, since events may be missed, and reach no other process:

*A run that is told to stop.* Spark's `stop()` waits for the micro-batch, and the micro-batch for a `commit`
that waits for space in the log, in a Python worker that no interrupt and no event reaches (measured with
4.3.0: `stop()` took as long as the commit did). Driver and worker both reach the log, though. So the driver
notes in the log that a run is told to stop and has not ended, and a waiting `commit` reads the note (rule
2). The run keeps its ticket: at its next epoch it may be the one run that can prove which attempt Spark has
kept (rule 11).

*An event that was missed.* Spark drops events when a listener is slow, and sends none to a handle that was
closed and made anew. While the source is idle no further event comes, and a flush that waits for a proof
(rule 11) would wait for ever. So the driver polls how far each run is, and whether it has ended.

*A query that is done.* An application may start any number of queries, one after the other. The handle
releases a query when run and flush have ended and nothing is pending.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from pyspark.sql.streaming.listener import QueryIdleEvent, QueryStartedEvent, QueryTerminatedEvent
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.errors import WalSinkError
from wal_sink.flush.run_history import RUN_HISTORY, RunHistory
from wal_sink.model import paths
from wal_sink.model.records import Stop
from wal_sink.spark.errors import failure_in
from wal_sink.spark.internals import streaming_query
from wal_sink.spark.internals.streaming_query import CheckpointListener
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)

_GAVE_WAY = "CONCURRENT_STREAM_LOG_UPDATE"
"""Spark's error class for a run that finds `offsets/N` or `commits/N` written by another one (4.3.0)."""


class Handler(Protocol):
    """Acts on the events; `Queries` does."""

    def started(self, query_id: str, run_id: str) -> None:
        """Handle a query, of any format, that starts; Spark waits for it."""

    def progressed(self, query_id: str) -> None:
        """Handle an epoch of a query, of any format, that is checkpointed."""

    def has_caught_up(self, query_id: str, run_id: str) -> bool:
        """Ask a run, before its end is handled, what it has checkpointed; whether it answers."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """Handle a query, of any format, that has ended."""


class Listener(CheckpointListener):
    """Passes events on as plain values, quickly."""

    def __init__(self, handler: Handler, run_history: RunHistory = RUN_HISTORY) -> None:
        self._handler = handler
        self._run_history = run_history
        self._foretold: dict[str, str] = {}
        """The errors that were logged as runs started, by run."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Take the ticket. An error here does not stop the query; `commit` does, for want of a ticket."""
        try:
            self._handler.started(str(event.id), str(event.runId))
        except Exception as error:
            logger.error(  # noqa: TRY400 - what planning the query will raise needs no traceback
                "query %s will fail at its first micro-batch: %s",
                event.id,
                error.one_line if isinstance(error, WalSinkError) else error,
                exc_info=None if isinstance(error, WalSinkError) else error,
            )
            if isinstance(error, WalSinkError):
                self._foretold[str(event.runId)] = error.one_line
        # Last: the history remembers queries that a flusher of this process watches, as one does by now.
        self._run_history.started(str(event.id), str(event.runId))

    def checkpointed(self, query_id: str, run_id: str, epoch: int) -> None:
        """Note which run has checkpointed an epoch, and wake the flush."""
        self._run_history.progressed(query_id, run_id, epoch)
        self._handler.progressed(query_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: no epoch was checkpointed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Let the flush finish; say in one line with which error of this sink the query has failed."""
        foretold = self._foretold.pop(str(event.runId), "")
        failure = failure_in(event.exception or "")
        if failure is not None and failure.one_line != foretold:
            logger.error("query %s failed: %s", event.id, failure.one_line)
        gave_way = event.errorClassOnException == _GAVE_WAY
        # Over `offsets/N + 1` it gives way when it has written `commits/N`, of which the event may be missed.
        gave_way = gave_way and self._handler.has_caught_up(str(event.id), str(event.runId))
        self._run_history.terminated(str(event.id), str(event.runId), gave_way=gave_way)
        self._handler.terminated(str(event.id), str(event.runId))


_LOOK_S = 1.0

_LOOKS = 2
"""A stop is noted when so many looks in a row find the run stopping. Nearly every run has ended by then,
whatever it was doing, and nothing is noted."""

_MISSED_LOOKS = 10
"""An event counts as missed after so many looks: Spark delivers most within one, a busy one within a few."""


class Missed(Protocol):
    """Handles what no event has reported; `Queries` does."""

    def catch_up(self, query_id: str, run_id: str, query: StreamingQuery) -> None:
        """Handle a run that may have gone on."""

    def end_missed(self, query_id: str, run_id: str) -> None:
        """Handle the end of a run."""

    def drop_done(self) -> None:
        """Drop queries that have ended and are flushed."""


class _Run(NamedTuple):
    query_id: str
    query: StreamingQuery
    log: Log
    looks: int = 0
    stopping: int = 0
    """How many looks in a row have found it told to stop, or failed."""
    noted: bool = False
    """Whether the log says so."""


class RunWatcher(threading.Thread):
    """A thread that watches the runs of one handle, from the first run on."""

    def __init__(self, missed: Missed) -> None:
        super().__init__(name="wal_sink-runs", daemon=True)
        self._missed = missed
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._ended = threading.Event()

    def watch(self, query_id: str, run_id: str, query: StreamingQuery, log: Log) -> None:
        """Watch a run until `unwatch`."""
        with self._lock:
            self._runs[run_id] = _Run(query_id, query, log)
            if self.ident is None and not self._ended.is_set():
                self.start()

    def query(self, run_id: str) -> StreamingQuery | None:
        """Return a run that is watched."""
        with self._lock:
            run = self._runs.get(run_id)
        return run and run.query

    def unwatch(self, run_id: str) -> None:
        """Stop watching a run: it has ended."""
        with self._lock:
            self._runs.pop(run_id, None)

    def end(self, join_s: float) -> None:
        """End the thread.

        :param join_s: seconds to wait for the thread.
        """
        self._ended.set()
        if self.ident is not None:
            self.join(join_s)

    def run(self) -> None:
        """Look at every run, again and again."""
        for look in itertools.count(1):
            if self._ended.wait(_LOOK_S):
                return
            with self._lock:
                runs = dict(self._runs)
            for run_id, run in runs.items():
                with _noted(f"run {run_id} cannot be looked at"):
                    self._look(run_id, run)
            if look % _MISSED_LOOKS == 0:
                with _noted("what has ended cannot be looked at"):
                    self._missed.drop_done()

    def _look(self, run_id: str, run: _Run) -> None:
        looks = run.looks + 1
        stopping = 0 if streaming_query.is_active(run.query) else run.stopping + 1
        ended = stopping >= _LOOKS and streaming_query.has_ended(run.query)
        noted = run.noted or (stopping >= _LOOKS and not ended and _note_stop(run.log, run_id))
        if stopping >= _MISSED_LOOKS and ended:
            self._missed.end_missed(run.query_id, run_id)
            self.unwatch(run_id)
            return
        if looks % _MISSED_LOOKS == 0:
            self._missed.catch_up(run.query_id, run_id, run.query)
        with self._lock:
            if run_id in self._runs:
                self._runs[run_id] = run._replace(looks=looks, stopping=stopping, noted=noted)


@contextlib.contextmanager
def _noted(what: str) -> Iterator[None]:
    """Log an error: it is of one run, or of one moment, and the thread goes on."""
    try:
        yield
    except Exception:
        logger.warning("%s", what, exc_info=True)


def _note_stop(log: Log, run_id: str) -> bool:
    try:
        log.create(paths.STOP, run_id, Stop(run_id=run_id))
    except OSError as error:
        logger.warning(
            "the note that run %s is stopping could not be written to the log: %r", run_id, error
        )
        return False
    return True
