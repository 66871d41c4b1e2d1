"""What a process without Spark knows of a query's runs (rule 11): the heartbeat in the log, and no event."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wal_sink.flush.run_history import RunHistory
from wal_sink.model.records import FlusherReport
from wal_sink.progress.heartbeat import SILENT_S, FlusherWatch, read_report, this_process
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)


class HeartbeatHistory(RunHistory):
    """Treats the newest run as alive while another process reports that it is flushing this query.

    That process sees the run's events. So where nothing proves which of several attempts was kept, the
    choice is left to it, or to the epoch that comes next.

    :param now_s: seconds from any moment on; never goes back.
    """

    def __init__(self, log: Log, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._log = log
        self._other: FlusherReport | None = None
        """What another process reported last; this one may have reported since."""
        self._watch = FlusherWatch(now_s)
        self._look()
        self._said = False
        self.undecided = False
        """Whether it is not known yet if that process lives; a flusher that looks again finds out."""

    def running(self, query_id: str) -> str | None:  # noqa: ARG002 - the log is that query's
        """Return the newest run, unless it is known that no other process flushes the query."""
        alive = self._look()
        self.undecided = alive is None
        if alive is False:
            return None
        if self.undecided and not self._said:
            self._said = True
            logger.warning(
                "nothing proves which attempt at an epoch Spark has kept; %s may have the proof. Looking for"
                " up to %.0f s whether it still reports",
                self._other.flusher if self._other else "another process",
                SILENT_S,
            )
        claim = self._log.claimed(self._log.highest_generation())
        return claim.run_id if claim else None

    def _look(self) -> bool | None:
        """Look for a sign of life of another process."""
        report = read_report(self._log)
        if report is not None and report.flusher != this_process():
            self._other = report
        return self._watch.look(self._other)
