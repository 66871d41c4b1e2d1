"""What a process without Spark knows of a query's runs (rule 11): the heartbeat in the log, and no event."""

from __future__ import annotations

from wal_sink.clock import now_us
from wal_sink.flush.run_history import RunHistory
from wal_sink.progress.heartbeat import living_flusher, this_process
from wal_sink.wal.log import Log


class HeartbeatHistory(RunHistory):
    """Treats the newest run as alive while another process reports that it is flushing this query.

    That process sees the run's events. So where nothing proves which of several attempts was kept, the
    choice is left to it, or to the epoch that comes next.
    """

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def running(self, query_id: str) -> str | None:  # noqa: ARG002 - the log is that query's
        """Return the newest run, if another process flushes the query."""
        report = living_flusher(self._log, now_us())
        if report is None or report.flusher == this_process():
            return None
        claim = self._log.newest_claim()
        return claim.run_id if claim else None
