"""Decides whether a process flushes a query, from what flushers report of themselves in `flusher.json`.

A flusher reports every few seconds, whatever it does. An observer counts it as alive while the report
changes, by the observer's own monotonic clock (`FlusherWatch`), and as dead when it has watched long enough
and the report did not change. The time in the report is never compared: clocks of hosts differ and jump, so
a dead flusher could look alive for years, or a living one dead.
docs/protocol/argument.md#whether-a-flusher-is-alive argues how long to watch.

A report is never the reason to send a row. It can delay a choice among attempts (`HeartbeatHistory`), fail
a caller that waits (`wait_until_flushed`; `Backpressure` in `commit`), or refuse a command
(`refuse_flusher`).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from wal_sink.errors import WalSinkError, by_name
from wal_sink.model.records import ErrorReport, FlushedEpoch, FlusherReport

BEAT_S, BEAT_BILLED_S = 5.0, 10.0
"""How often a flusher reports; less often where each report is paid for."""

SILENT_S = 30.0
"""An observer that saw no other report for so long takes the flusher for dead: three of the longer beats."""

RECENT_S = 120.0
"""How far the time of a report may lie from now, before or after, for a guess from a single look."""

ENDED = "ended"
"""What a flusher reports to do when it has ended in order; its process may live on."""


class FlusherWatch:
    """Watches `flusher.json`: an observer passes it what it reads, again and again.

    :param now_s: seconds from any moment on; never goes back.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._report: FlusherReport | None = None
        self._changed = False
        self._since_s: float | None = None
        self._looked_s = 0.0
        """When it was passed a report last."""
        self.silent_s = 0.0
        """How long no other report was seen, or since the first look; as of the look before."""
        self._seen: set[str] = set()
        """Flushers that have reported, and of which neither end nor silence was seen since."""

    def look(self, report: FlusherReport | None) -> bool | None:
        """Whether a flusher is alive; None as long as that cannot be known.

        That takes `SILENT_S` and a look at most, from the last report on.

        It is dead for certain when it has reported its end, or when it ran on this host and its process is
        gone; not if another one was seen before, which this report may hide. Else its report has to change.
        """
        now_s = self._now_s()
        # The observer may have stood still since it read the report, but read it after its look before.
        read_s, self._looked_s = self._looked_s, now_s
        if self._since_s is None:
            self._since_s = now_s
        elif report != self._report:
            self._changed, self._since_s = True, now_s
        self._report = report
        self.silent_s = max(0.0, read_s - self._since_s)
        if report is None or self.silent_s >= SILENT_S:
            self._seen.clear()
            return False
        if _has_ended(report):
            self._seen.discard(report.flusher)
            return None if self._seen else False
        self._seen.add(report.flusher)
        return True if self._changed else None

    def guess(self, report: FlusherReport | None, now_us: int) -> bool:
        """Whether a flusher is alive; as long as that cannot be known, what `seems_alive` says."""
        alive = self.look(report)
        return seems_alive(report, now_us) if alive is None else alive


def seems_alive(report: FlusherReport | None, now_us: int) -> bool:
    """Guess from a single look whether a flusher is alive: for people, and where nothing depends on it.

    :param now_us: microseconds since 1970.
    """
    return report is not None and not _has_ended(report) and abs(age_s(report, now_us)) <= RECENT_S


def age_s(report: FlusherReport, now_us: int) -> float:
    """Seconds since a report by the clock of the host that wrote it; negative if that says a time to come.

    :param now_us: microseconds since 1970.
    """
    return (now_us - report.heartbeat_us) / 1_000_000


def reported_ago(report: FlusherReport, now_us: int) -> str:
    """Say in words when a flusher reported last.

    :param now_us: microseconds since 1970.
    """
    ago_s = age_s(report, now_us)
    if ago_s < -1:
        return f"by its host's clock, which runs {-ago_s:,.0f} s ahead of this one"
    return f"{max(0.0, ago_s):,.0f} s ago by its host's clock"


def runs_on_this_host(report: FlusherReport | None) -> bool:
    """Whether the process of a flusher that has not ended is seen on this host, though it may be silent."""
    return report is not None and report.doing != ENDED and bool(_process_runs(report))


def stopping_error(
    report: FlusherReport | None, now_us: int, *, alive: bool | None
) -> WalSinkError | None:
    """Return the error at which a flusher has stopped, or ended; None when it goes on, or is silent.

    :param now_us: microseconds since 1970.
    :param alive: what a `FlusherWatch` says of it. Of a flusher that is not known to live, an error counts if
        its time is a recent one.
    """
    if report is None or not (alive or abs(age_s(report, now_us)) < RECENT_S):
        return None
    found = report.error
    if found is None or found.transient:
        return None
    return by_name(found.kind)(found.what, found.remedy)


def this_process() -> str:
    """Return the name under which a flusher of this process reports."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _has_ended(report: FlusherReport) -> bool:
    """Whether a flusher is dead for certain."""
    return report.doing == ENDED or _process_runs(report) is False


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


def is_over(error: ErrorReport, newest: FlushedEpoch | None, waiting: int) -> bool:
    """Whether an epoch was flushed since, by a flusher that leaves the report to the one which had failed.

    :param newest: the newest record.
    :param waiting: how many epochs are not flushed.
    """
    if newest is None or newest.recorded_us <= error.at_us:
        return False
    return not waiting or (error.epoch is not None and newest.epoch >= error.epoch)
