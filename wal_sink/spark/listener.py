"""Spark's listener: takes a run's ticket when it starts, and wakes the flusher afterwards.

Events are hints. They are late, one thread delivers all of them, and a crash loses them; what is
checkpointed stands in `commits/`. Whose attempt at it Spark kept, though, only they tell at once: they
are noted with the `RunHistory` (rule 11). And `onQueryStarted` matters: Spark calls it inside `start()`,
before the run reads the checkpoint, which is where the ticket has to be taken (rule 2).
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
from wal_sink.spark.internals import CheckpointListener

logger = logging.getLogger(__name__)


_GAVE_WAY = "CONCURRENT_STREAM_LOG_UPDATE"
"""Spark's error class for a run that finds `offsets/N` or `commits/N` written by another one (4.3.0)."""


class Woken(Protocol):
    """Who wants to know."""

    def started(self, query_id: str, run_id: str) -> None:
        """Handle a query, of any format, that starts; Spark waits for it."""

    def progressed(self, query_id: str) -> None:
        """Handle an epoch of a query, of any format, that is checkpointed."""

    def terminated(self, query_id: str, run_id: str) -> None:
        """Handle a query, of any format, that has ended."""


class Listener(CheckpointListener):
    """Passes events on as plain values, quickly."""

    def __init__(self, woken: Woken, run_history: RunHistory = RUN_HISTORY) -> None:
        self._woken = woken
        self._run_history = run_history

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Take the ticket. An error here does not stop the query: `commit` does, finding no ticket."""
        try:
            self._woken.started(str(event.id), str(event.runId))
        except Exception as error:
            logger.error(  # noqa: TRY400 - what planning the query will raise needs no traceback
                "query %s got no ticket, its first commit will fail: %s",
                event.id,
                error,
                exc_info=None if isinstance(error, WalSinkError) else error,
            )
        self._run_history.started(
            str(event.id), str(event.runId)
        )  # last: a flusher is watching now

    def checkpointed(self, query_id: str, run_id: str, epoch: int) -> None:
        """Note whose epoch is checkpointed, and wake the flusher."""
        self._run_history.progressed(query_id, run_id, epoch)
        self._woken.progressed(query_id)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Nothing new was checkpointed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Let the flusher finish."""
        gave_way = event.errorClassOnException == _GAVE_WAY
        self._run_history.terminated(str(event.id), str(event.runId), gave_way=gave_way)
        self._woken.terminated(str(event.id), str(event.runId))
