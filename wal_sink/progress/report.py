"""Reads what flushers report of themselves in `report-<target>.json`: who, doing what, last error.

A flusher reports every few seconds, whatever it does. A report is for people, for `await_flushed`,
and for the warning that nothing flushes. It decides nothing about rows.
"""

from __future__ import annotations

import os
import socket

import msgspec

from wal_sink.errors import WalSinkError, by_name
from wal_sink.model import paths
from wal_sink.model.codec import Record, learn
from wal_sink.wal.store import LogStore

REPORT_S = 10.0
"""How often a flusher reports."""

REPORT_BILLED_S = 25.0
"""The same if each report is paid for."""

SILENT_S = 30.0
"""A flusher whose report is older is taken for dead."""

ENDED = "ended"
"""What a flusher reports when it has ended in order; its process may go on."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The error that stops a flusher, or that it is trying again."""

    kind: str
    """Name of a class in `wal_sink.errors`, or of another exception: a bug."""
    what: str
    remedy: str
    epoch: int | None
    """The epoch at which it came; None: none in particular."""
    at_us: int
    transient: bool
    """True if the remedy is to try again."""

    @property
    def summary(self) -> str:
        """The kind and what happened, without the remedy."""
        return f"{self.kind}: {self.what}"


class FlusherReport(Record, frozen=True, kw_only=True):
    """`report-<target>.json`: what the process that flushes, or flushed last, says of itself."""

    flusher: str
    """`<host>:<pid>`."""
    doing: str
    heartbeat_us: int
    """By the clock of its host, microseconds since 1970."""
    rows_per_second: float | None = None
    """While it flushes, over the last windows; None: nothing was flushed yet."""
    error: ErrorReport | None = None
    stopping: str = ""
    """Id of the run that Spark was told to stop, if this process has started it: a `commit()` that waits for
    space in the log learns it from here alone."""


learn()


def read_report(store: LogStore, target: str) -> FlusherReport | None:
    """Read the report about a target; None if no flusher has ever reported."""
    return store.read_record(FlusherReport, paths.REPORT.path(target))


def age_s(report: FlusherReport, now_us: int) -> float:
    """Return seconds since a report by the clock of the host that wrote it; negative if that runs ahead.

    :param now_us: microseconds since 1970.
    """
    return (now_us - report.heartbeat_us) / 1_000_000


def is_alive(report: FlusherReport | None, now_us: int) -> bool:
    """Return True if a flusher seems to be alive, by its report.

    It is not if it has ended, if it ran on this host and its process is gone, or if it is silent.

    :param now_us: microseconds since 1970.
    """
    if report is None or report.doing == ENDED or _process_runs(report) is False:
        return False
    return abs(age_s(report, now_us)) <= SILENT_S


def stopping_error(report: FlusherReport | None, now_us: int) -> WalSinkError | None:
    """Return the error at which a flusher has stopped; None if it goes on, or was silent for long.

    :param now_us: microseconds since 1970.
    """
    if report is None or report.error is None or report.error.transient:
        return None
    if not is_alive(report, now_us) and abs(age_s(report, now_us)) > 4 * SILENT_S:
        return None
    return by_name(report.error.kind)(report.error.what, report.error.remedy)


def this_process() -> str:
    """Return the name under which a flusher of this process reports."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _process_runs(report: FlusherReport) -> bool | None:
    """Return True if the flusher's process is there; None if it is of another host."""
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
