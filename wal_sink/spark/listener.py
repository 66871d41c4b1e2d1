"""Hears Spark's events: a run that starts takes its ticket, an epoch that is checkpointed wakes the flush.

Events are hints. They are late, one thread delivers all of them, and a crash loses them; what is
checkpointed stands in `commits/`. Only events tell at once, though, whose attempt at an epoch Spark kept:
the `RunHistory` remembers them (rule 11). And `onQueryStarted` has to be heard: Spark calls it inside
`start()`, before the run reads the checkpoint, which is where the run takes its ticket (rule 2).
"""

from __future__ import annotations

import logging
from typing import Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from wal_sink.errors import WalSinkError
from wal_sink.flush.run_history import RUN_HISTORY, RunHistory
from wal_sink.spark.failure import failure_in
from wal_sink.spark.internals import CheckpointListener

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

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Take the ticket. An error here does not stop the query; `commit` does, for want of a ticket."""
        try:
            self._handler.started(str(event.id), str(event.runId))
        except Exception as error:
            logger.error(  # noqa: TRY400 - what planning the query will raise needs no traceback
                "query %s got no ticket, its first commit will fail: %s",
                event.id,
                error,
                exc_info=None if isinstance(error, WalSinkError) else error,
            )
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
        if (failure := failure_in(event.exception or "")) is not None:
            logger.error("query %s failed: %s", event.id, failure.one_line)
        gave_way = event.errorClassOnException == _GAVE_WAY
        # Over `offsets/N + 1` it gives way when it has written `commits/N`, of which the event may be missed.
        gave_way = gave_way and self._handler.has_caught_up(str(event.id), str(event.runId))
        self._run_history.terminated(str(event.id), str(event.runId), gave_way=gave_way)
        self._handler.terminated(str(event.id), str(event.runId))
