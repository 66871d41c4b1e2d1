"""Whether somebody flushes the query now, from what flushers report of themselves."""

from __future__ import annotations

import os
import socket

from wal_sink.errors import CorruptLog, FlusherAtWork
from wal_sink.log import Log
from wal_sink.records import FlusherReport

_SILENT_US = 120_000_000
"""A flusher that rests reports every five seconds, one that fails at each try; but a slice may take long
where the target is slow. As long as `progress` waits for a sign of life."""

_REMEDY = (
    "Stop the query, or close the handle of wal_sink.register, and run the command again; if its"
    " process was killed on another host, wait two minutes first."
)


def refuse_flusher(log: Log, now_us: int, *, unless_stopped: bool) -> None:
    """See that nobody flushes the query.

    :param unless_stopped: a flusher that has stopped at an error, and only tries again, is no harm.
    :raises FlusherAtWork: somebody does.
    """
    report = last_report(log)
    if report is None or not is_live(report, now_us):
        return
    if unless_stopped and report.error is not None and not report.error.transient:
        return
    ago = max(0, now_us - report.heartbeat_us) // 1_000_000
    raise FlusherAtWork(
        f"{report.flusher} flushes this query: {ago} seconds ago it was {report.doing!r}", _REMEDY
    )


def last_report(log: Log) -> FlusherReport | None:
    """Read what a flusher said last; it is a hint, so an unreadable one says nothing."""
    try:
        return log.last_report()
    except CorruptLog:
        return None


def is_live(report: FlusherReport, now_us: int) -> bool:
    """Whether the flusher has reported lately; one of this host must also still have its process."""
    if now_us - report.heartbeat_us > _SILENT_US:
        return False
    host, _, pid = report.flusher.rpartition(":")
    return host != socket.gethostname() or not pid.isdecimal() or _has_process(int(pid))


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
