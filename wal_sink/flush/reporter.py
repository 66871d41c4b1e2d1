"""Reports the steps and errors of a flusher by a file in the query's log, by log lines, and by metrics."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from wal_sink.errors import WalSinkError
from wal_sink.model import paths
from wal_sink.model.state import EpochManifest
from wal_sink.progress.flusher_report import (
    ENDED,
    REPORT_BILLED_S,
    REPORT_S,
    ErrorReport,
    FlusherReport,
    is_alive,
    read_report,
    this_process,
)
from wal_sink.telemetry import FlushedEpoch, FlushMetrics, OncePerMinute, line_logger, log_epoch
from wal_sink.units import counted, now_us
from wal_sink.wal.store import LogStore

logger = line_logger(__name__)

HUNG_S = 900.0
"""Seconds without a new report after which a flusher counts as hung, and its heartbeat stops. A slow target
may take minutes for one slice."""

_CHECK_S = 1.0
"""Seconds between two checks by the heartbeat's thread whether a report is due."""


class Reporter:
    """Writes the report of a flusher that other processes read, see `progress.flusher_report`.

    A report that cannot be written never stops the flush. The flush's thread reports what it does. While
    `beating`, another thread repeats the report, so that a flusher in a long request still counts as alive.

    :param store: the query's log; None to write nothing.
    :param target: name of the target.
    :param clock_us: returns the time in microseconds since 1970.
    :param gives_way: True to write nothing while another process reports. So a short command does not replace
        the report of the query's own flusher.
    :param metrics: counts flushed epochs and errors; None for none.
    :param stopping: returns the id of the run that Spark was told to stop; called every second.
    """

    def __init__(
        self,
        store: LogStore | None,
        target: str,
        clock_us: Callable[[], int] = now_us,
        *,
        gives_way: bool = False,
        metrics: FlushMetrics | None = None,
        stopping: Callable[[], str] = lambda: "",
    ) -> None:
        self._store = store
        self._path = paths.REPORT.path(target)
        self._target = target
        self.metrics = metrics or FlushMetrics()
        self._clock_us = clock_us
        self._gives_way = gives_way
        self._doing = "starting"
        self._epoch: int | None = None
        self._error: ErrorReport | None = None
        self._retry_text = ""
        self._rate: float | None = None
        self._write_lock = threading.Lock()
        """Held while a report is written, since the flush's thread and the heartbeat's thread write
        reports."""
        self._period_s = REPORT_BILLED_S if store is not None and store.billed else REPORT_S
        self._read_stopping = stopping
        self._stopping = ""
        """The run id that `stopping` returned last."""
        self._reported_s = 0.0
        self._written_s = float("-inf")
        self._written: FlusherReport | None = None
        self._failures = _FailureLog()

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Repeat the report from another thread, while the flush's thread is in this block."""
        over = threading.Event()
        thread = threading.Thread(
            target=self._beat, args=(over,), name="wal_sink-heartbeat", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def report(self, doing: str, epoch: int | None) -> None:
        """Record what the flusher is about to do. Write a report if it is due.

        :param epoch: the epoch that the text is about. If None, a new text is written at once.
        """
        if epoch is not None:
            log_epoch(epoch)
        at_once = epoch is None and doing != self._doing
        self._reported_s = time.monotonic()
        self._doing, self._epoch, self._retry_text = doing, epoch, ""
        if at_once or self._is_due():
            self._write()

    def flushed(self, epochs: Sequence[EpochManifest], seconds: float | None) -> None:
        """Record that epochs are in the target; see `FlushMetrics.flushed`."""
        flushed = [FlushedEpoch(e.epoch, e.rows, e.bytes, e.first_us) for e in epochs]
        self.metrics.flushed(flushed, seconds)
        rows = sum(epoch.rows for epoch in epochs)
        logger.info(
            "flushed %s of epochs %d to %d", counted(rows, "row"), epochs[0].epoch, epochs[-1].epoch
        )
        if rows and seconds:
            rate = rows / seconds
            self._rate = rate if self._rate is None else 0.7 * self._rate + 0.3 * rate

    def succeeded(self, flushed: int | None = None) -> None:
        """Record that a pass has ended. The error of an epoch is cleared after this epoch is flushed.

        A pass may end before it repeats the failed step, if it is interrupted or another flusher is faster.

        :param flushed: the target's mark; None if there is nothing to flush, which clears every error.
        """
        log_epoch(None)
        failed = self._error.epoch if self._error is not None else None
        if failed is not None and flushed is not None and failed > flushed:
            return
        self.metrics.succeeded()
        if self._error is not None:
            self._error, self._retry_text = None, ""
            self._write()
        self._failures.ended()

    def failed(self, error: BaseException, *, tried: int = 1, wait_s: float | None = None) -> None:
        """Record an error. Log it if the step is tried again.

        :param tried: number of tries in a row.
        :param wait_s: seconds until the next try; None if the caller does not try again by itself.
        """
        self._reported_s = time.monotonic()
        ours = error if isinstance(error, WalSinkError) else None
        kind, transient = type(error).__name__, ours is not None and ours.transient
        self.metrics.failed(kind if ours else "bug", transient=transient)
        self._retry_text = ""
        if wait_s is not None:
            where = "" if self._epoch is None else f" at epoch {self._epoch}"
            state = "trying again" if transient else "stopped until the error is repaired"
            self._retry_text = (
                f"{state}{where}: {counted(tried, 'try', 'tries')}, the next in {wait_s:.0f} s"
            )
        self._error = ErrorReport(
            kind=kind,
            what=ours.what if ours else repr(error),
            remedy=ours.remedy if ours else "Report this as a bug.",
            epoch=self._epoch,
            at_us=self._clock_us(),
            transient=transient,
        )
        self._write()
        if wait_s is not None:
            self._failures.failed(error, tried)

    def ended(self) -> None:
        """Report that the flusher has ended, with its last error, unless another flusher has reported since.

        Without this report, the flusher of a process that still runs would count as alive for half a minute
        more.
        """
        if self._store is None or self._written is None:
            return
        self._doing, self._epoch, self._retry_text = ENDED, None, ""
        try:
            last = read_report(self._store, self._target)
        except (OSError, WalSinkError):
            return  # a log that cannot be read cannot be written
        if last == self._written:
            self._write()

    def _is_due(self) -> bool:
        return time.monotonic() - self._written_s > self._period_s

    def _beat(self, over: threading.Event) -> None:
        """Repeat the last report when it is due, or when Spark is told to stop another run.

        Nothing is repeated if the flusher has not reported yet, or hangs.
        """
        while not over.wait(_CHECK_S):
            if time.monotonic() - self._reported_s > HUNG_S:
                continue
            former, self._stopping = self._stopping, self._read_stopping()
            if self._written is not None and (self._is_due() or self._stopping != former):
                self._write()

    def _write(self) -> None:
        with self._write_lock:
            self._written_s = time.monotonic()
            if self._store is None:
                return
            doing = self._doing if self._epoch is None else f"{self._doing} epoch {self._epoch}"
            step_s = self._written_s - self._reported_s
            if self._epoch is not None and step_s >= self._period_s:
                doing = f"{doing}, for {step_s:.0f} s"  # a target that hangs gives no error yet
            report = FlusherReport(
                flusher=this_process(),
                doing=self._retry_text or doing,
                heartbeat_us=self._clock_us(),
                rows_per_second=self._rate,
                error=self._error,
                stopping=self._stopping,
            )
            try:
                if self._gives_way and self._another_reports(self._store):
                    return
                self._store.replace(self._path, report.to_json())
                self._written = report
            except (OSError, WalSinkError) as error:
                logger.warning(
                    "the flusher's report %s/%s cannot be written, so `wal-sink status` shows an old one."
                    " Cause: %r",
                    self._store.url,
                    self._path,
                    error,
                )

    def _another_reports(self, store: LogStore) -> bool:
        """Return True if a flusher of another process is alive."""
        last = read_report(store, self._target)
        is_other = last is not None and last.flusher != this_process()
        return is_other and is_alive(last, self._clock_us())


class _FailureLog:
    """Logs the failures of a flush, and the end of a series of failures."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._lines = OncePerMinute()

    def failed(self, error: BaseException, tried: int) -> None:
        """Log an error, at most once a minute for each class of errors, since the texts of one outage differ.

        :param tried: number of tries in a row.
        """
        now_s = time.monotonic()
        if self._since_s is None:
            self._since_s = now_s
        if self._lines.is_due(type(error).__name__):
            logger.warning(
                "the flush failed, %s in %.0f s. It is tried again. Cause: %s",
                counted(tried, "try", "tries"),
                now_s - self._since_s,
                error,
                exc_info=None if isinstance(error, WalSinkError) else error,
            )

    def ended(self) -> None:
        """Log that the flush works again, if it has failed."""
        if self._since_s is not None:
            seconds = time.monotonic() - self._since_s
            logger.warning("the flush works again, after %.0f s of failures", seconds)
            self._since_s, self._lines = None, OncePerMinute()
