"""Writes large windows by a Spark job, whose tasks run beside the tasks of the query.

A job takes 70 to 300 ms, and its connections up to a second. So the flusher's own thread writes small
windows. The thread also writes a window if fewer than two slots are free, if the session is stopped, or if
Spark fails the job. After a failed job, it writes all rows of the window again.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from wal_sink.flush.rate_limit import rate_per_task
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection
from wal_sink.flush.window import SegmentRange, Window, share_out
from wal_sink.flush.write import (
    Answer,
    FlushTask,
    WriteInThread,
    most_severe,
)
from wal_sink.spark.internals import spark_session
from wal_sink.targets.base import RowSlice, RowsRefused
from wal_sink.telemetry import line_logger

logger = line_logger(__name__)

Shares = list[tuple[SegmentRange, ...]]

_CHECK_S = 0.2
"""Seconds between two checks whether the job has ended, or the flusher is interrupted."""

_NO_ROWS = pa.RecordBatch.from_arrays([], names=[])

_CANCEL_S = 5.0
"""How long the flusher waits for a cancelled job. Spark gives a Python task 2 s, then kills its worker."""


class WriteByJob:
    """Writes the rows of one query's windows, by a Spark job or in the flusher's thread.

    :param above_bytes: the flusher's thread writes a window whose segments have at most this size.
    :param rows_per_second: limit of the whole flush; None: no limit.
    """

    def __init__(self, spark: SparkSession, above_bytes: int, rows_per_second: int | None) -> None:
        self._write_here = WriteInThread(rows_per_second)
        self._rows_per_second = rows_per_second
        self._spark = spark
        self._above_bytes = above_bytes
        self._attempt = uuid.uuid4().hex

    def __call__(self, window: Window, connection: TargetConnection, reporter: Reporter) -> bool:
        """Write all rows of a window; return False if the flush was interrupted."""
        if window.may_be_shared(self._above_bytes):
            ranges = [
                segment_range
                for manifest in window.manifests
                for segment_range in window.ranges(manifest)
            ]
            with _SLOTS.lent(self._spark, ranges, self._above_bytes) as shares:
                written = self._by_job(window, connection, reporter, shares) if shares else None
                if written is not None:
                    return written
        return self._write_here(window, connection, reporter)

    def _by_job(
        self, window: Window, connection: TargetConnection, reporter: Reporter, shares: Shares
    ) -> bool | None:
        """Return True if a job has written the rows, False at an interrupt, None if Spark failed the job."""
        for ranged in itertools.chain.from_iterable(shares):
            # Tasks compare the table only while they write. So this session compares it before the job.
            with connection.session() as session:
                session.write(window.plan, RowSlice(ranged.epoch, _NO_ROWS, ranged.first_us))
        rate = rate_per_task(self._rows_per_second, len(shares))
        task = FlushTask(window, self._attempt, rate)
        first, last = window.first, window.last
        epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
        description = f"wal_sink flushes {epochs} of query {window.pipeline.query_id}"
        job = _Job(self._spark, description, task, shares)
        logger.info("a Spark job of %d tasks writes the rows: %s", len(shares), job.description)
        try:
            while not job.ended.wait(_CHECK_S):
                reporter.report("writing", first)
                if connection.interrupted:
                    return False
                if spark_session.is_stopped(self._spark):
                    job.ended.wait(_CANCEL_S)
                    break
        finally:
            job.cancel()
        if job.answers is None:
            logger.warning(
                "the job failed (%s), so the driver writes the rows. Cause: %s",
                job.description,
                job.failure,
            )
            return None
        for answer in job.answers:
            connection.add_receipts(answer.receipts)
        errors = [answer.error for answer in job.answers if answer.error is not None]
        refused = [row for answer in job.answers for row in answer.refused]
        if errors or refused:
            self._attempt = uuid.uuid4().hex
            raise most_severe(errors) if errors else RowsRefused(refused)
        return True


class _Slots:
    """Counts the slots that flush jobs of this process use. A process has one Spark context at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent = 0

    @contextlib.contextmanager
    def lent(
        self, spark: SparkSession, ranges: list[SegmentRange], above_bytes: int
    ) -> Iterator[Shares]:
        """Distribute segments over the slots that no other job uses, and yield one share for each task.

        If fewer than two slots are free beside the query's own, there are no shares.
        """
        with self._lock:
            free = spark_session.slots(spark) - self._lent
            shares = share_out(ranges, above_bytes=above_bytes, slots=free)
            self._lent += len(shares)
        try:
            yield shares
        finally:
            with self._lock:
                self._lent -= len(shares)


_SLOTS = _Slots()


class _Job:
    """Runs a Spark job in its own thread, so that the flusher can report and be interrupted."""

    def __init__(
        self, spark: SparkSession, description: str, task: FlushTask, shares: Shares
    ) -> None:
        self.description = description
        self.answers: list[Answer] | None = None
        """An answer of each task; None until the job has succeeded."""
        self.failure = "its session was stopped"
        self._spark = spark
        self._group = f"wal_sink-flush-{uuid.uuid4().hex}"
        self.ended = threading.Event()
        self._task = task
        self._shares = shares
        self._thread = threading.Thread(target=self._run, name="wal_sink-flush-job", daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Cancel the job if it has not ended, and wait up to `_CANCEL_S` for its end."""
        for _ in range(round(_CANCEL_S / _CHECK_S)):
            if self.ended.is_set():
                self._thread.join()
                return
            # This call is repeated, since the job may begin after a call.
            spark_session.cancel_jobs(self._spark, self._group)
            self.ended.wait(_CHECK_S)

    def _run(self) -> None:
        try:
            # The job has its own group, since `query.stop()` cancels the query's group, named by the run id.
            context = self._spark.sparkContext
            context.setJobGroup(self._group, self.description, interruptOnCancel=True)
            # Spark writes the data of `parallelize` to a local file. The task has secrets, so it is code.
            shares = context.parallelize(self._shares, len(self._shares))
            self.answers = shares.map(self._task).collect()
        except Exception as error:  # noqa: BLE001 - the driver can write the rows after any error
            self.failure = f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
        finally:
            self.ended.set()
