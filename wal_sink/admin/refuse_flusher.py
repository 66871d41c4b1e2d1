"""Refuses a command while another process flushes the query."""

from __future__ import annotations

from wal_sink.errors import FlusherAtWork
from wal_sink.progress.heartbeat import living_flusher
from wal_sink.wal.log import Log

_REMEDY = (
    "Stop the query, or close the handle of wal_sink.register, and run the command again; if its"
    " process was killed on another host, wait two minutes first."
)


def refuse_flusher(log: Log, now_us: int, *, unless_stopped: bool) -> None:
    """Refuse while a flusher of the query is alive.

    :param unless_stopped: a flusher that has stopped at an error, and only tries again, is no harm.
    :raises FlusherAtWork: one is.
    """
    report = living_flusher(log, now_us)
    if report is None:
        return
    if unless_stopped and report.error is not None and not report.error.transient:
        return
    ago = max(0, now_us - report.heartbeat_us) // 1_000_000
    raise FlusherAtWork(
        f"{report.flusher} flushes this query: {ago} seconds ago it was {report.doing!r}", _REMEDY
    )
