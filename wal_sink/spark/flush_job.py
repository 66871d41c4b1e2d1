"""Writes large windows by a Spark job, whose tasks run beside those of the query.

A job costs 70 to 300 ms and its sessions up to a second, so the flusher's own thread writes small windows.
It also writes every window for which there is no Spark: when the session is stopped, fewer than two slots
are free, or the job fails for a reason of Spark's. What a job had written by then is written again.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

from wal_sink.flush.rows import WindowWrite, WriteInThread, divided
from wal_sink.flush.tasks import Answer, FlushTask, gravest
from wal_sink.log_context import line_logger
from wal_sink.protocol.windows import Piece, is_large, share_out
from wal_sink.spark.internals import spark_session
from wal_sink.targets.base import Slice

logger = line_logger(__name__)

Shares = list[tuple[Piece, ...]]

_LOOK_S = 0.2
"""How often the flusher looks whether a job has ended, and whether it is still wanted."""

_NO_ROWS = pa.RecordBatch.from_arrays([], names=[])

_CANCEL_S = 5.0
"""How long the flusher waits for a cancelled job; Spark gives a Python task 2 s, then kills its worker."""


class WriteByJob:
    """Writes the rows of one query's windows, by a job or in this thread; a `WriteRows`.

    :param above_bytes: of a window's segments; this thread writes windows up to that size. See
        `protocol.windows.is_large`.
    :param rows_per_second: of the whole flush; None: as fast as the target takes them.
    """

    def __init__(
        self, spark: SparkSession, above_bytes: int, rows_per_second: int | None = None
    ) -> None:
        self._write_here = WriteInThread(rows_per_second)
        self._rows_per_second = rows_per_second
        self._spark = spark
        self._above_bytes = above_bytes
        self._session_key = uuid.uuid4().hex

    def __call__(self, write: WindowWrite) -> bool:
        """Write all rows of a window. See `WriteRows`."""
        size = sum(begun.bytes for begun in write.epochs)
        if write.connection.target.parallel_writes and is_large(size, self._above_bytes):
            pieces = [piece for begun in write.epochs for piece in write.pieces(begun)]
            with _SLOTS.lent(self._spark, pieces, self._above_bytes) as shares:
                if shares and (written := self._by_job(write, shares)) is not None:
                    return written
        return self._write_here(write)

    def _by_job(self, write: WindowWrite, shares: Shares) -> bool | None:
        """Run a job; None when it failed for a reason of Spark's, not of the rows or the target."""
        if write.is_over():
            return False
        for piece in itertools.chain.from_iterable(shares):
            # Each task sees the table only while it writes: this session's `drain`, or the receipts of all
            # of them in its `finish`, answers for them.
            with write.connection.session() as session:
                session.write(piece.plan, Slice(piece.epoch, _NO_ROWS, piece.first_us))
        rate = divided(self._rows_per_second, len(shares))
        task = FlushTask(
            write.log,
            write.connection.target.for_tasks(),
            write.connection.owner,
            self._session_key,
            rate,
            quarantine=write.quarantine,
        )
        job = _Job(self._spark, _described(write), task, shares)
        logger.info("a Spark job of %d tasks writes the rows: %s", len(shares), job.description)
        try:
            while not job.wait(_LOOK_S):
                write.reporter.say("writing", write.window.first)
                if write.is_over():
                    return False
                if spark_session.is_stopped(self._spark):
                    job.wait(_CANCEL_S)
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
        errors = []
        for answer in job.answers:
            if isinstance(answer, tuple):
                write.connection.staged(answer)
            else:
                errors.append(answer)
        if errors:
            self._session_key = uuid.uuid4().hex
            raise gravest(errors)
        return True


class _Slots:
    """Counts the slots that flush jobs of this process hold; a process has one Spark context at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lent = 0

    @contextlib.contextmanager
    def lent(self, spark: SparkSession, pieces: list[Piece], above_bytes: int) -> Iterator[Shares]:
        """Share pieces out over the slots that no other job holds, and hold one for each share.

        No shares where fewer than two slots are left beside the query's own.
        """
        with self._lock:
            free = spark_session.slots(spark) - self._lent
            shares = share_out(pieces, above_bytes=above_bytes, slots=free)
            self._lent += len(shares)
        try:
            yield shares
        finally:
            with self._lock:
                self._lent -= len(shares)


_SLOTS = _Slots()


class _Job:
    """Runs a Spark job in a thread of its own, so that the flusher can look at the ledger meanwhile."""

    def __init__(
        self, spark: SparkSession, description: str, task: FlushTask, shares: Shares
    ) -> None:
        self.description = description
        self.answers: list[Answer] | None = None
        """One for each task; None until the job has succeeded."""
        self.failure = "its session was stopped"
        self._spark = spark
        self._group = f"wal_sink-flush-{uuid.uuid4().hex}"
        self._ended = threading.Event()
        self._task = task
        self._shares = shares
        self._thread = threading.Thread(target=self._run, name="wal_sink-flush-job", daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the job; whether it has come."""
        return self._ended.wait(seconds)

    def cancel(self) -> None:
        """Cancel the job if it has not ended, and wait for its end, for `_CANCEL_S` at most."""
        for _ in range(round(_CANCEL_S / _LOOK_S)):
            if self._ended.is_set():
                break
            spark_session.cancel_jobs(self._spark, self._group)  # again: it may have begun only now
            self._ended.wait(_LOOK_S)
        if self._ended.is_set():
            self._thread.join()

    def _run(self) -> None:
        try:
            # A group of its own: `query.stop()` cancels the query's group, whose name is the run id.
            context = self._spark.sparkContext
            context.setJobGroup(self._group, self.description, interruptOnCancel=True)
            # Spark puts data, as the shares are, into a file in its local folder; the task has secrets.
            shares = context.parallelize(self._shares, len(self._shares))
            self.answers = shares.map(self._task).collect()
        except Exception as error:  # noqa: BLE001 - the driver can write the rows after any error
            self.failure = _in_short(error)
        finally:
            self._ended.set()


def _described(write: WindowWrite) -> str:
    first, last = write.window.first, write.window.last
    epochs = f"epoch {first}" if first == last else f"epochs {first} to {last}"
    return f"wal_sink flushes {epochs} of query {write.connection.owner.query_id}"


def _in_short(error: Exception) -> str:
    """Return the part of Spark's message before the stack traces."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
