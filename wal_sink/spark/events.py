"""Receives Spark's events: a query that starts gets its flushers, a checkpointed epoch wakes them.

Events are hints. They are late, one thread delivers all of them, and a crash loses them. `commits/`
says what is checkpointed, and each flusher reads it every second, or every 15 s in a bucket.
"""

from __future__ import annotations

import logging
from typing import Protocol

from pyspark.sql.streaming.listener import QueryIdleEvent, QueryStartedEvent, QueryTerminatedEvent

from wal_sink.errors import WalSinkError
from wal_sink.spark.errors import failure_in
from wal_sink.spark.internals.streaming_query import CheckpointListener

logger = logging.getLogger(__name__)


class Handler(Protocol):
    """Acts on the events; `Queries` does."""

    def started(self, query_id: str, run_id: str) -> None:
        """Handle a query, of any format, that starts; Spark waits for it."""

    def progressed(self, query_id: str) -> None:
        """Handle an epoch of a query, of any format, that is checkpointed."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """Handle a query, of any format, that has ended."""


class Listener(CheckpointListener):
    """Passes events on as plain values, quickly."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._foretold: dict[str, str] = {}
        """The errors that were logged as runs started, by run."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Start the flush. An error here does not stop the query, which Spark starts all the same."""
        try:
            self._handler.started(str(event.id), str(event.runId))
        except Exception as error:
            logger.error(  # noqa: TRY400 - what the first micro-batch will raise needs no traceback
                "query %s is not flushed by this process: %s",
                event.id,
                error.one_line if isinstance(error, WalSinkError) else error,
                exc_info=None if isinstance(error, WalSinkError) else error,
            )
            if isinstance(error, WalSinkError):
                self._foretold[str(event.runId)] = error.one_line

    def checkpointed(self, query_id: str, run_id: str, epoch: int) -> None:  # noqa: ARG002 - Spark's
        """Wake the flush."""
        self._handler.progressed(query_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: no epoch was checkpointed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Let the flush finish; log in one line with which error of this sink the query has failed."""
        foretold = self._foretold.pop(str(event.runId), "")
        failure = failure_in(event.exception or "")
        if failure is not None and failure.one_line != foretold:
            logger.error("query %s failed: %s", event.id, failure.one_line)
        self._handler.terminated(str(event.id), str(event.runId))
