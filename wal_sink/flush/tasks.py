"""Writes one task's share of a window, in a Spark job. Imports no Spark.

A task returns its errors as values, so that the flusher meets the kind that it would have met in the
driver; what Spark sees as a failed task is a bug or a dead worker. Spark then runs the share again, up to
`spark.task.maxFailures` times, or two copies of it where it speculates: writes are idempotent, and of what
is staged only that counts whose receipts Spark has brought to the flusher, one answer for each share.

Sessions stay open in a Python worker from task to task: connecting costs more than a small share. The pool
closes a session that no task has asked for in a while; when Spark kills an idle worker, the operating
system closes what is left.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from wal_sink.errors import WalSinkError
from wal_sink.flush.connection import target_errors
from wal_sink.flush.rate import RateLimit
from wal_sink.flush.window import Window, read_range
from wal_sink.log_context import log_epoch, logging_query
from wal_sink.protocol.windows import SegmentRange
from wal_sink.targets.base import IdempotentSession, RefusedRow, RowsRefused, Session, StagedSession
from wal_sink.targets.registry import reduced
from wal_sink.wal.location import store_errors

logger = logging.getLogger(__name__)

IDLE_S = 20.0
"""Less than the minute after which Spark ends an idle worker."""


class SessionPool:
    """Keeps sessions that are not in use, one for each key; used by any number of threads.

    :param idle_s: seconds after which a session that no task takes is closed.
    """

    def __init__(self, idle_s: float = IDLE_S) -> None:
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._idle: dict[Hashable, tuple[Session, threading.Timer]] = {}

    @contextlib.contextmanager
    def session(self, key: Hashable, connect: Callable[[], Session]) -> Iterator[Session]:
        """Lend the session kept under `key`, or a new one; keep it afterwards, unless the block failed."""
        session = self._take(key) or connect()
        try:
            yield session
        except BaseException:
            _close(session)
            raise
        self._keep(key, session)

    def close(self) -> None:
        """Close what is kept."""
        for key in list(self._idle):
            self._drop(key)

    def _take(self, key: Hashable) -> Session | None:
        with self._lock:
            session, timer = self._idle.pop(key, (None, None))
        if timer is not None:
            timer.cancel()
        return session

    def _keep(self, key: Hashable, session: Session) -> None:
        self._drop(key)  # of another thread
        timer = threading.Timer(self._idle_s, self._drop, (key, session))
        timer.daemon = True
        with self._lock:
            self._idle[key] = session, timer
        timer.start()
        # Exit handlers run last first: this one comes before the driver's, which closes connections.
        atexit.unregister(self.close)
        atexit.register(self.close)

    def _drop(self, key: Hashable, only: Session | None = None) -> None:
        with self._lock:
            kept, timer = self._idle.get(key, (None, None))
            if kept is None or timer is None or (only is not None and kept is not only):
                return  # it was taken meanwhile
            del self._idle[key]
        timer.cancel()
        _close(kept)


def _close(session: Session) -> None:
    try:
        session.close()
    except Exception:
        logger.warning("a task could not close its connection to the target cleanly", exc_info=True)


POOL = SessionPool()
"""The sessions of a Python worker."""


class Answer(NamedTuple):
    """What a task returns. Picklable."""

    error: WalSinkError | None = None
    """What stopped it."""
    refused: tuple[RefusedRow, ...] = ()
    """Rows that the server refuses."""
    receipts: tuple[bytes, ...] = ()
    """Of what it has staged."""


class FlushTask:
    """Writes shares of one window. Pickles, with the secrets of log and target; travels to the tasks.

    :param window: without its manifests' rows: a share has what a task writes.
    :param key: of the ledger row in the target.
    :param session_key: tasks of one key share sessions; the flusher takes a new one after an error, so that
        the next try connects, and compares the plan with the table, again.
    :param rows_per_second: of each task; None: as fast as the target takes them.
    """

    def __init__(
        self,
        window: Window,
        query_id: str,
        key: str,
        session_key: Hashable,
        rows_per_second: int | None = None,
    ) -> None:
        self._window = replace(window, manifests=(), target=window.target.for_tasks())
        self._query_id = query_id
        self._key = key
        self._session_key = session_key
        self._rows_per_second = rows_per_second

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle so that a worker which lacks the target's module says so."""
        return reduced(_restored, (vars(self),), self._window.target)

    def __call__(self, share: Iterable[SegmentRange]) -> Answer:
        """Write a share: return when its rows are durable in the target or staged, or what stopped it."""
        target = self._window.target_name if self._window.several else ""
        try:
            with store_errors(), logging_query(self._query_id, target):
                return Answer(receipts=self._write(list(share)))
        except RowsRefused as refused:
            return Answer(refused=refused.rows)
        except WalSinkError as error:
            return Answer(error=_placed(error))

    def _write(self, share: Sequence[SegmentRange]) -> tuple[bytes, ...]:
        rate_limit = RateLimit(self._rows_per_second)
        window = self._window
        with POOL.session((self._session_key, self._key), self._connect) as session:
            for ranged in share:
                log_epoch(ranged.epoch)
                for rows in read_range(window.store.backend, ranged):
                    for part in rate_limit.paced(rows):
                        with target_errors(window.target):
                            session.write(ranged.plan, window.as_written(ranged.plan, part))
            with target_errors(window.target):
                if isinstance(session, IdempotentSession):
                    session.drain()
                    return ()
                assert isinstance(session, StagedSession)
                return session.drain()

    def _connect(self) -> Session:
        with target_errors(self._window.target):
            return self._window.target.connect(self._key)


def gravest(errors: Sequence[WalSinkError]) -> WalSinkError:
    """Return the one of several tasks' errors that is to be raised: one that does not pass by itself, if any.

    :param errors: at least one.
    """
    return max(errors, key=lambda error: not error.transient)


def _placed(error: WalSinkError) -> WalSinkError:
    """Add the host to an error: it may be cut off from what the driver reaches."""
    error.what = f"{error.what} (in a Spark task on {socket.gethostname()})"
    error.args = (error.what, error.remedy)
    return error


def _restored(state: dict[str, Any]) -> FlushTask:
    task = object.__new__(FlushTask)
    vars(task).update(state)
    return task
