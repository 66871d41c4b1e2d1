"""Whether somebody flushes a query, from what flushers report of themselves. Hints: they decide no step."""

from __future__ import annotations

import os
import socket

from wal_sink import errors
from wal_sink.errors import CorruptLog, WalSinkError
from wal_sink.model.records import FlusherReport
from wal_sink.wal.log import Log

SILENT_S = 120.0
"""A flusher that has not reported for so long is taken for dead. One that rests reports every five
seconds, one that fails at each try; but a slice may take long where the target is slow."""


def last_report(log: Log) -> FlusherReport | None:
    """Read what a flusher said last; it is a hint, so an unreadable one says nothing."""
    try:
        return log.last_report()
    except CorruptLog:
        return None


def this_process() -> str:
    """Return the name under which a flusher of this process reports."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_live(report: FlusherReport, now_us: int) -> bool:
    """Whether the flusher has reported lately; one of this host must also still have its process.

    :param now_us: microseconds since 1970.
    """
    if now_us - report.heartbeat_us > SILENT_S * 1_000_000:
        return False
    return _process_here(report) is not False


def has_process(report: FlusherReport) -> bool:
    """Whether the flusher's process is seen on this host, though it may be silent."""
    return bool(_process_here(report))


def _process_here(report: FlusherReport) -> bool | None:
    """Return whether the process is there; None when it is of another host."""
    host, _, pid = report.flusher.rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return None
    return _has_process(int(pid))


def stopped_at(report: FlusherReport, now_us: int) -> WalSinkError | None:
    """Return the error with which a flusher has stopped the line; None when it goes on, or is silent.

    :param now_us: microseconds since 1970.
    """
    found = report.error
    if found is None or found.transient or now_us - report.heartbeat_us >= SILENT_S * 1_000_000:
        return None
    kind = getattr(errors, found.kind, WalSinkError)
    if not (isinstance(kind, type) and issubclass(kind, WalSinkError)):
        kind = WalSinkError
    return kind(found.what, found.remedy)


def _has_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
