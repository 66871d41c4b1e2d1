"""Waits until the log has space for an epoch (`wal.maxBytes`, `wal.onFull`), and logs the wait."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from wal_sink.errors import LogFull, StoppedWaiting
from wal_sink.model.manifest import Execution
from wal_sink.model.state import Predecessor, State
from wal_sink.progress.report import (
    SILENT_S,
    FlusherReport,
    age_s,
    read_report,
    stopping_error,
)
from wal_sink.protocol.state import has_space, pending_bytes
from wal_sink.telemetry import OncePerMinute
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

OnFull = Literal["block", "fail"]

_PAUSE_S, _PAUSE_BILLED_S = 0.5, 5.0
"""How long one wait is, before the log is checked again."""


@dataclass
class Backpressure:
    """Lets one epoch be published when the log has space for it."""

    max_bytes: int
    """`wal.maxBytes`."""
    on_full: OnFull
    """`wal.onFull`."""
    store: LogStore
    checkpoint: str
    """URL of the checkpoint, for messages."""
    clock_us: Callable[[], int]
    """Returns the time in microseconds since 1970."""
    sleep: Callable[[float], None]
    """Waits for a number of seconds."""
    waited_s: float = 0.0
    once_per_minute: OncePerMinute = field(default_factory=OncePerMinute)

    def admits(self, state: State, execution: Execution, predecessor: Predecessor) -> bool:
        """Return True if an epoch may be published now. If not, wait for a moment and return False.

        :raises LogFull: the log has no space, and `wal.onFull` is `fail`.
        :raises StoppedWaiting: Spark was told to stop the run.
        :raises WalSinkError: the error that has stopped the flusher of the slowest target.
        """
        epoch = execution.epoch
        if has_space(state, predecessor, self.max_bytes):
            if self.waited_s:
                logger.warning(
                    "the log has space again. Epoch %d continues after a wait of %.0f s",
                    epoch,
                    self.waited_s,
                )
            else:
                self._warn_of_no_flusher(state)
            return True
        slowest = state.slowest
        report = read_report(self.store, slowest.name)
        now_us = self.clock_us()
        full = (
            f"{pending_bytes(state, predecessor):,} bytes are not flushed to {slowest.name}, and wal.maxBytes"
            f" is {self.max_bytes:,}. {flusher_summary(report, now_us)}"
        )
        if self.on_full == "fail":
            raise LogFull(
                f"Epoch {epoch} is not published: {full}",
                f"Nothing is lost. `wal-sink status {self.checkpoint}` shows why the flush lags. Repair the"
                " cause, then start the query again: Spark computes the epoch again. Or raise wal.maxBytes,"
                " or let the query wait: wal.onFull=block.",
            )
        if report is not None and report.stopping == execution.run_id:
            raise StoppedWaiting(
                f"The query was stopped while epoch {epoch} waited for space in the log.",
                "Nothing is lost. Start the query again: Spark computes the epoch again.",
            )
        stopped = stopping_error(report, now_us)
        if stopped is not None:
            raise stopped
        if self.once_per_minute.is_due():
            logger.warning("epoch %d waits for space in the log: %s", epoch, full)
        pause_s = _PAUSE_BILLED_S if self.store.billed else _PAUSE_S
        self.sleep(pause_s)
        self.waited_s += pause_s
        return False

    def _warn_of_no_flusher(self, state: State) -> None:
        """Warn, at most once a minute, if epochs are pending and no process has flushed for half a minute."""
        now_us = self.clock_us()
        slowest = state.slowest
        lags = slowest.mark.epoch < state.settled
        if not lags or now_us - slowest.mark.at_us < SILENT_S * 1_000_000:
            return
        report = read_report(self.store, slowest.name)
        if (report is None or age_s(report, now_us) > SILENT_S) and _NO_FLUSHER.is_due():
            logger.warning(
                "nothing flushes this query. %s Its epochs stay in the log. To flush them: wal-sink flush %s"
                " --follow",
                flusher_summary(report, now_us),
                self.checkpoint,
            )


_NO_FLUSHER = OncePerMinute()
"""Shared by the process, since each `commit()` makes a `Backpressure`."""


def flusher_summary(report: FlusherReport | None, now_us: int) -> str:
    """Return as sentences which process flushes, what it does, and its error."""
    if report is None:
        return (
            "No process has flushed this query yet. The process that called wal_sink.register flushes it, or"
            " `wal-sink flush`."
        )
    text = f"{report.flusher} reported {age_s(report, now_us):.0f} s ago: {report.doing}"
    if report.error is not None:
        text += f", with the error {report.error.summary}"
    return f"{text.rstrip('.')}."
