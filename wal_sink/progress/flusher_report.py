"""Reads `report-<target>.json`: which process flushes, what it does, and its last error.

A flusher reports every few seconds. Reports are for people, for `await_flushed`, and for the warning that no
process flushes. No decision about rows depends on a report.
"""

from __future__ import annotations

import os
import socket

import msgspec

from wal_sink.errors import WalSinkError, by_name
from wal_sink.model import paths
from wal_sink.model.codec import Record, prepare_decoders
from wal_sink.wal.store import LogStore, read_record

REPORT_S = 10.0
"""Seconds between two reports of a flusher."""

REPORT_BILLED_S = 25.0
"""Seconds between two reports of a flusher if each report costs a request."""

SILENT_S = 30.0
"""Age in seconds of a report after which its flusher counts as dead."""

ENDED = "ended"
"""The value of `doing` that a flusher reports when it has ended normally. The process may still run."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """The error that stops a flusher, or after which the flusher tries again."""

    kind: str
    """Name of a class in `wal_sink.errors`. Another exception is a bug."""
    what: str
    remedy: str
    epoch: int | None
    """The epoch at which the error occurred; None if the error concerns no single epoch."""
    at_us: int
    transient: bool
    """True if the error may pass by itself."""

    @property
    def summary(self) -> str:
        """Return the kind and what happened, without the remedy."""
        return f"{self.kind}: {self.what}"


class FlusherReport(Record, frozen=True, kw_only=True):
    """`report-<target>.json`: the report of the process that flushes, or flushed last."""

    flusher: str
    """`<host>:<pid>`."""
    doing: str
    heartbeat_us: int
    """Time of the report by the clock of the flusher's host, microseconds since 1970."""
    rows_per_second: float | None = None
    """Rate of the last windows, while the flusher writes; None if nothing was flushed yet."""
    error: ErrorReport | None = None
    stopping: str = ""
    """Id of the run that Spark was told to stop, if this process started the run; empty for none. A
    `commit()` that waits for space in the log reads this field, since no other place has it."""


prepare_decoders()


def read_report(store: LogStore, target: str) -> FlusherReport | None:
    """Read the report about a target; None if no flusher has reported."""
    return read_record(store, FlusherReport, paths.REPORT.path(target))


def age_s(report: FlusherReport, now_us: int) -> float:
    """Return the age of a report in seconds; a negative number if the clock of the reporting host is ahead.

    :param now_us: microseconds since 1970.
    """
    return (now_us - report.heartbeat_us) / 1_000_000


def is_alive(report: FlusherReport | None, now_us: int) -> bool:
    """Return True if a report shows that its flusher runs.

    Return False if the flusher has ended, if its process was on this host and is gone, or if the report is
    old.

    :param now_us: microseconds since 1970.
    """
    if report is None or report.doing == ENDED or _process_is_gone(report):
        return False
    return abs(age_s(report, now_us)) <= SILENT_S


def stopping_error(report: FlusherReport | None, now_us: int) -> WalSinkError | None:
    """Return the error that has stopped a flusher; None if no error stops it, or if its report is very old.

    :param now_us: microseconds since 1970.
    """
    if report is None or report.error is None or report.error.transient:
        return None
    if not is_alive(report, now_us) and abs(age_s(report, now_us)) > 4 * SILENT_S:
        return None
    return by_name(report.error.kind)(report.error.what, report.error.remedy)


def this_process() -> str:
    """Return the name of this process in reports."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _process_is_gone(report: FlusherReport) -> bool:
    """Return True if the flusher ran on this host, and its process has ended."""
    host, _, pid = report.flusher.rpartition(":")
    if host == socket.gethostname() and pid.isdecimal():
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass  # a process of another user
    return False
