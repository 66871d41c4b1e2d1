"""Writes the rows of a window: in the flusher's thread, or in tasks of a Spark job. Imports no Spark.

A task returns its errors as values, so the flusher gets the same error classes as in the driver. Spark runs a
task again after a bug or a dead worker, up to `spark.task.maxFailures` times, or runs two copies of a slow
task. Writes are idempotent. Staged rows become visible only if the flusher has their receipts, and the
flusher gets one answer for each share.

Sessions stay open in a Python worker from task to task, since connecting costs more than a small share. Spark
ends a worker after a minute without a task; the operating system then closes the connections.
"""

from __future__ import annotations

import atexit
import contextlib
import socket
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from wal_sink.errors import WalSinkError
from wal_sink.flush.rate_limit import RateLimit
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.target_connection import TargetConnection, target_errors
from wal_sink.flush.window import SegmentRange, Window
from wal_sink.targets.base import (
    IdempotentSession,
    RefusedRow,
    RowsRefused,
    Session,
    StagedSession,
)
from wal_sink.telemetry import line_logger, log_epoch, logging_query
from wal_sink.wal.location import store_errors

logger = line_logger(__name__)


WriteRows = Callable[[Window, TargetConnection, Reporter], bool]
"""Writes all rows of a window. Returns False if the flush was interrupted. After True, the session of the
connection has every row, or the rows are durable in the target, or the rows are staged under receipts that
the connection has. Raises RowsRefused if the server refuses rows, and WalSinkError if the flush is stopped.
After such an error, some of the rows may be written."""


class WriteInThread:
    """Writes rows in the flusher's thread, epoch by epoch; a `WriteRows`.

    :param rows_per_second: None for no limit.
    """

    def __init__(self, rows_per_second: int | None = None) -> None:
        self._rate_limit = RateLimit(rows_per_second)

    def __call__(self, window: Window, connection: TargetConnection, reporter: Reporter) -> bool:
        """Write all rows, without moving the ledger row. Return False if the flush was interrupted."""
        for manifest in window.manifests:
            reporter.report("writing", manifest.epoch)
            for rows in window.slices(window.ranges(manifest)):
                for part in self._rate_limit.paced(rows):
                    if connection.interrupted:
                        return False
                    with connection.session() as session:
                        session.write(window.plan, part)
                    reporter.report("writing", manifest.epoch)
        return True


class SessionPool:
    """Keeps sessions between the tasks of a Python worker, which runs one task at a time."""

    def __init__(self) -> None:
        self._idle: dict[str, tuple[Hashable, Session]] = {}

    @contextlib.contextmanager
    def session(
        self, key: str, attempt: Hashable, connect: Callable[[], Session]
    ) -> Iterator[Session]:
        """Provide a session for the block. Keep the session for the next task, unless the block fails.

        :param key: key of the ledger row.
        :param attempt: if the kept session is of another attempt, it is closed, and a new session is made.
        """
        former, session = self._idle.pop(key, (None, None))
        if session is not None and former != attempt:
            _close(session)
            session = None
        session = session or connect()
        try:
            yield session
        except BaseException:
            _close(session)
            raise
        self._idle[key] = attempt, session
        # Exit handlers run in reverse order, so this one runs before the handler of the target's driver.
        atexit.unregister(self.close)
        atexit.register(self.close)

    def close(self) -> None:
        """Close all sessions."""
        while self._idle:
            _, (_, session) = self._idle.popitem()
            _close(session)


def _close(session: Session) -> None:
    try:
        session.close()
    except Exception:
        logger.warning("a task could not close its connection to the target cleanly", exc_info=True)


POOL = SessionPool()
"""The sessions of a Python worker."""


class Answer(NamedTuple):
    """The result of a task. Picklable."""

    error: WalSinkError | None = None
    """The error that stopped the task."""
    refused: tuple[RefusedRow, ...] = ()
    """Rows that the server refused."""
    receipts: tuple[bytes, ...] = ()
    """Receipts of the rows that the task has staged."""


class FlushTask:
    """Writes shares of one window. Picklable. The pickle has the secrets of log and target.

    :param window: the window; the task drops the manifests, since a share has the segments.
    :param attempt: tasks of one attempt share sessions. After an error the flusher begins another attempt, so
        that its tasks connect again, and compare the plan with the table again.
    :param rows_per_second: limit of each task; None for none.
    """

    def __init__(
        self,
        window: Window,
        attempt: Hashable,
        rows_per_second: int | None = None,
    ) -> None:
        self._pipeline = replace(window.pipeline, target=window.pipeline.target.for_tasks())
        self._window = replace(window, manifests=(), pipeline=self._pipeline)
        self._attempt = attempt
        self._rows_per_second = rows_per_second

    def __call__(self, share: Iterable[SegmentRange]) -> Answer:
        """Write a share. Return when its rows are durable or staged, or when an error stops the task."""
        pipeline = self._pipeline
        try:
            with store_errors(), logging_query(pipeline.query_id, pipeline.label):
                return Answer(receipts=self._write(list(share)))
        except RowsRefused as refused:
            return Answer(refused=refused.rows)
        except WalSinkError as error:
            return Answer(error=_with_host(error))

    def _write(self, share: Sequence[SegmentRange]) -> tuple[bytes, ...]:
        rate_limit = RateLimit(self._rows_per_second)
        window, target = self._window, self._pipeline.target
        with POOL.session(self._pipeline.ledger_key, self._attempt, self._connect) as session:
            for rows in window.slices(share):
                log_epoch(rows.epoch)
                for part in rate_limit.paced(rows):
                    with target_errors(target):
                        session.write(window.plan, part)
            with target_errors(target):
                if isinstance(session, IdempotentSession):
                    session.drain()
                    return ()
                assert isinstance(session, StagedSession)
                return session.drain()

    def _connect(self) -> Session:
        pipeline = self._pipeline
        with target_errors(pipeline.target):
            return pipeline.target.connect(pipeline.ledger_key)


def most_severe(errors: Sequence[WalSinkError]) -> WalSinkError:
    """Return the error to raise after tasks failed: the first permanent error, else the first error.

    :param errors: at least one.
    """
    return max(errors, key=lambda error: not error.transient)


def _with_host(error: WalSinkError) -> WalSinkError:
    """Change the text of an error: add the host's name, since other hosts may reach the target."""
    error.what = f"{error.what} (in a Spark task on {socket.gethostname()})"
    error.args = (error.what, error.remedy)
    return error
