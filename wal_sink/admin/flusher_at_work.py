"""Refuses a command while another process flushes the query, which it finds out by looking for a while."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from wal_sink.errors import FlusherAtWork
from wal_sink.model.records import FlusherReport
from wal_sink.progress.heartbeat import SILENT_S, FlusherWatch, reported_ago
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often the command looks."""

_REMEDY = (
    "Stop the query, or close the handle of wal_sink.register, and end every `wal-sink flush`. Then run the"
    " command again."
)


REWINDING = "rewinding"
"""What `wal-sink rewind` reports to do: it counts as a flusher, since two of them would undo each other."""

_REWINDS = (
    "Let it end, then see with `wal-sink status CHECKPOINT` what is left to do. If it was killed, run this"
    " command again: it goes on where that one died."
)


class Patience(NamedTuple):
    """How a command waits for a flusher's sign of life."""

    now_s: Callable[[], float] = time.monotonic
    """Seconds from any moment on; never goes back."""
    sleep: Callable[[float], None] = time.sleep
    say: Callable[[str], None] = logger.warning
    """Told why the command waits."""


PATIENCE = Patience()
"""By the clock of this process."""


def refuse_flusher(
    log: Log, now_us: int, *, unless_stopped: bool, patience: Patience = PATIENCE
) -> None:
    """Refuse while a flusher of the query is alive; `FlusherWatch.look` says how long that takes to find out.

    :param now_us: microseconds since 1970; it only tells the operator how long ago the report was.
    :param unless_stopped: a flusher that has stopped at an error, and only tries again, is no harm.
    :raises FlusherAtWork: one is alive: it has reported while this looked.
    """
    watch = FlusherWatch(patience.now_s)
    waits = False
    while True:
        report = log.last_report()
        if report is None or (unless_stopped and _has_stopped(report)):
            return
        alive = watch.look(report)
        if alive is False:
            return
        if alive and report.doing.startswith(REWINDING):
            raise FlusherAtWork(f"{report.flusher} rewinds this query just now", _REWINDS)
        if alive:
            raise FlusherAtWork(
                f"{report.flusher} flushes this query: just now it was {report.doing!r}", _REMEDY
            )
        if not waits:
            waits = True
            patience.say(
                f"{report.flusher} reported {reported_ago(report, now_us)} that it flushes this query:"
                f" {report.doing!r}. Looking for up to {SILENT_S:.0f} s whether it still does."
            )
        patience.sleep(_LOOK_S)


def _has_stopped(report: FlusherReport) -> bool:
    """Whether a flusher stands at an error that does not pass by itself; a rewind only repeats one."""
    rewinds = report.doing.startswith(REWINDING)
    return report.error is not None and not report.error.transient and not rewinds
