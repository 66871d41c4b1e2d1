"""Says in one line how many epochs wait in the log, when an application starts again or ends.

The lines are warnings: that is the lowest level that Python shows when the application has not configured
logging.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from state_backends import StateBackendError
from wal_sink import remedies
from wal_sink.clock import now_us
from wal_sink.counted import counted
from wal_sink.errors import WalSinkError
from wal_sink.progress.backlog import waiting_epochs
from wal_sink.progress.heartbeat import read_report, said_ago, seems_alive
from wal_sink.spark.query_flush import QueryFlush
from wal_sink.wal.left_behind import left_behind
from wal_sink.wal.location import Location

logger = logging.getLogger(__name__)


def say_left(flush: QueryFlush) -> None:
    """At a start: say what an earlier run, perhaps killed, could not flush any more."""
    query = f"query {flush.query_id}"
    if waiting := _epochs(flush):
        logger.warning(
            "%s left in %s by an earlier run; now the flush goes on",
            counted(waiting, f"epoch of {query} was", f"epochs of {query} were"),
            flush.log.url,
        )


def say_left_behind(query_id: str, location: Location) -> None:
    """At the first start: say what waits in logs of this checkpoint, which was deleted and made anew.

    An error in here never keeps the query from starting.
    """
    try:
        for left in left_behind(location, query_id):
            logger.warning(
                "query %s: the checkpoint %s was deleted before all rows of its former query, %s, were in the"
                " target. %s",
                *(query_id, location.checkpoint, left.query_id),
                remedies.left_behind(left.log.url, left.epochs),
            )
    except (OSError, StateBackendError, WalSinkError) as error:
        logger.warning(
            "query %s: cannot see whether an earlier checkpoint has left epochs in %s: %s",
            *(query_id, location.logs, error),
        )


def say_flushing(flushes: Iterable[QueryFlush], timeout: float) -> None:
    """At an interrupt: say why the application does not end at once."""
    if waiting := sum(map(_epochs, flushes)):
        logger.warning(
            "flushing %s before the end, for %g s at most; another Ctrl-C leaves the rest in the log for the"
            " next start",
            counted(waiting, "epoch"),
            timeout,
        )


def say_waiting(flush: QueryFlush, *, flushes_here: bool) -> None:
    """At an end: say what waits, and how it gets flushed.

    :param flushes_here: whether this process flushes; where another one does, say whether it is alive.
    """
    if not (waiting := _epochs(flush)):
        return
    checkpoint, query = flush.checkpoint.url, f"query {flush.query_id}"
    if flushes_here:
        how = (
            ". To flush them, start the query again under `with wal_sink.register(spark):`, which waits for"
            f" the flush, or run `wal-sink flush {checkpoint}`."
        )
    elif (report := read_report(flush.log)) and seems_alive(report, now_us()):
        how = f" for the process that flushes: {report.flusher} does, as it said {said_ago(report, now_us())}"
    else:
        how = " for the process that flushes: no process does now;"
        how += f" run `wal-sink flush {checkpoint} --follow`"
    logger.warning(
        "%s in %s%s",
        counted(waiting, f"epoch of {query} waits", f"epochs of {query} wait"),
        flush.log.url,
        how,
    )


def _epochs(flush: QueryFlush) -> int:
    try:
        return waiting_epochs(flush.checkpoint, flush.log)
    except (WalSinkError, StateBackendError, OSError) as error:
        logger.warning(
            "query %s: cannot see what waits in %s: %s", flush.query_id, flush.log.url, error
        )
        return 0
