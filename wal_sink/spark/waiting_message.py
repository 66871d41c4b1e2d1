"""Says in one line how many epochs wait in the log, when an application starts again or ends.

The lines are warnings: that is the lowest level that Python shows when the application has not configured
logging.
"""

from __future__ import annotations

import logging

from state_backends import StateBackendError
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.errors import WalSinkError
from wal_sink.progress.backlog import waiting_epochs
from wal_sink.progress.heartbeat import living_flusher
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)


def say_left(query_id: str, checkpoint: Checkpoint, log: Log) -> None:
    """At a start: say what an earlier run, perhaps killed, could not flush any more."""
    if waiting := _epochs(query_id, checkpoint, log):
        logger.warning(
            "%d epochs of query %s were left in %s by an earlier run; they are flushed now",
            waiting,
            query_id,
            log.url,
        )


def say_flushing(backlogs: dict[str, tuple[Checkpoint, Log]], timeout: float) -> None:
    """At an interrupt: say why the application does not end at once."""
    if waiting := sum(_epochs(query_id, *backlog) for query_id, backlog in backlogs.items()):
        logger.warning(
            "flushing %d epochs before the end, for %g s at most; another Ctrl-C leaves them in the"
            " log for the next start",
            waiting,
            timeout,
        )


def say_waiting(query_id: str, checkpoint: Checkpoint, log: Log) -> None:
    """At an end without a flush: say what waits, and how it gets flushed."""
    if waiting := _epochs(query_id, checkpoint, log):
        logger.warning(
            "%d epochs of query %s wait in %s. To flush them, start the query again under"
            " `with wal_sink.register(spark):`, which waits for the flush, or run `wal-sink flush %s`.",
            waiting,
            query_id,
            log.url,
            checkpoint.url,
        )


def say_left_to_others(query_id: str, checkpoint: Checkpoint, log: Log) -> None:
    """At an end, where another process flushes: say what is left to it, and whether it is there."""
    if waiting := _epochs(query_id, checkpoint, log):
        report = living_flusher(log, now_us())
        logger.warning(
            "%d epochs of query %s wait in %s for the process that flushes: %s",
            waiting,
            query_id,
            log.url,
            f"{report.flusher} does"
            if report
            else f"no process does now; run `wal-sink flush {checkpoint.url} --follow`",
        )


def _epochs(query_id: str, checkpoint: Checkpoint, log: Log) -> int:
    try:
        return waiting_epochs(checkpoint, log)
    except (WalSinkError, StateBackendError, OSError) as error:
        logger.warning("query %s: cannot see what waits in %s: %s", query_id, log.url, error)
        return 0
