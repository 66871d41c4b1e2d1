"""Tells whether a process flushes a query, from what flushers report of themselves in `flusher.json`.

A report is never the reason to send a row. It can delay a choice among attempts (`HeartbeatHistory`), fail a
caller that waits (`await_flushed`; `Backpressure` in `commit`), or refuse a command (`refuse_flusher`).
"""

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

ENDED = "ended"
"""What a flusher reports to do when it has ended in order; its process may live on."""


def read_report(log: Log) -> FlusherReport | None:
    """Read what a flusher reported last; None also when that is unreadable, since it is a hint."""
    try:
        return log.last_report()
    except CorruptLog:
        return None


def living_flusher(log: Log, now_us: int) -> FlusherReport | None:
    """Read the last report of a flusher that is alive; None when there is none."""
    report = read_report(log)
    return report if is_alive(report, now_us) else None


def is_alive(report: FlusherReport | None, now_us: int) -> bool:
    """Whether a flusher has reported lately, and not its end; one of this host must also have its process.

    :param now_us: microseconds since 1970.
    """
    if report is None or now_us - report.heartbeat_us > SILENT_S * 1_000_000:
        return False
    if report.doing == ENDED:
        return False
    return _process_runs(report) is not False


def runs_on_this_host(report: FlusherReport | None) -> bool:
    """Whether the process of a flusher that has not ended is seen on this host, though it may be silent."""
    return report is not None and report.doing != ENDED and bool(_process_runs(report))


def stopping_error(report: FlusherReport | None, now_us: int) -> WalSinkError | None:
    """Return the error at which a flusher has stopped, or ended; None when it goes on, or is silent.

    :param now_us: microseconds since 1970.
    """
    if report is None or now_us - report.heartbeat_us >= SILENT_S * 1_000_000:
        return None
    found = report.error
    if found is None or found.transient:
        return None
    kind = getattr(errors, found.kind, WalSinkError)
    if not (isinstance(kind, type) and issubclass(kind, WalSinkError)):
        kind = WalSinkError
    return kind(found.what, found.remedy)


def this_process() -> str:
    """Return the name under which a flusher of this process reports."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _process_runs(report: FlusherReport) -> bool | None:
    """Return whether the flusher's process is there; None when it is of another host."""
    host, _, pid = report.flusher.rpartition(":")
    if host != socket.gethostname() or not pid.isdecimal():
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
