"""Writes one task's share of a begun window, in a Spark job (rule 15). Imports no Spark.

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
from typing import Any

from wal_sink.errors import WalSinkError
from wal_sink.flush.connection import connected, drained, target_errors
from wal_sink.flush.rows import FileGoneError, RateLimit, RowsRefused, as_written, read_piece
from wal_sink.log_context import log_epoch, logging_query
from wal_sink.model.ledger import Owner
from wal_sink.protocol.windows import Piece
from wal_sink.targets.base import Session, Target
from wal_sink.targets.registry import reduced
from wal_sink.wal.location import store_errors
from wal_sink.wal.log import Log

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


FlushError = WalSinkError | FileGoneError
"""What stops a task: known to the flusher, and picklable."""

Answer = FlushError | tuple[bytes, ...]
"""What a task returns: what stopped it, or the receipts of what it has staged."""


class FlushTask:
    """Writes shares. Pickles, with the secrets of log and target; travels to the tasks.

    :param log: the query's log, opened as the driver opens it.
    :param session_key: tasks of one key share sessions; the flusher takes a new one after an error, so that
        the next try connects, and compares the plan with the table, anew.
    :param rows_per_second: of each task; None: as fast as the target takes them.
    :param quarantine: whether rows that the target refuses go into quarantine.
    """

    def __init__(
        self,
        log: Log,
        target: Target,
        owner: Owner,
        session_key: Hashable,
        rows_per_second: int | None = None,
        *,
        quarantine: bool = False,
    ) -> None:
        self._log = log
        self._target = target
        self._owner = owner
        self._session_key = session_key
        self._rows_per_second = rows_per_second
        self._quarantine = quarantine

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle so that a worker which lacks the target's module says so."""
        return reduced(_restored, (vars(self),), self._target)

    def __call__(self, share: Iterable[Piece]) -> Answer:
        """Write a share; return when every row of it is acknowledged or staged, or what stopped it."""
        query_id, _, target = self._owner.query_id.partition("/")  # see `ledger_key`
        try:
            with store_errors(), logging_query(query_id, target):
                return self._write(list(share))
        except FileGoneError as gone:
            return gone
        except WalSinkError as error:
            return _placed(error)

    def _write(self, share: Sequence[Piece]) -> tuple[bytes, ...]:
        pace = RateLimit(self._rows_per_second)
        with POOL.session((self._session_key, self._owner), self._connect) as session:
            # It may be another window's.
            session.pass_over(RowsRefused(self._log, share) if self._quarantine else None)
            for piece in share:
                log_epoch(piece.epoch)
                for rows in pace.paced(read_piece(self._log.backend, piece)):
                    with target_errors(self._target):
                        session.write(
                            piece.plan, as_written(self._log, self._target, piece.plan, rows)
                        )
            with target_errors(self._target):
                return drained(session)

    def _connect(self) -> Session:
        with target_errors(self._target):
            return connected(self._target, self._owner)


def gravest(errors: Sequence[FlushError]) -> FlushError:
    """Return the one of several tasks' errors that is to be raised.

    A missing file first: it may be that another flusher has finished the window (rule 20). Then what
    is not transient.

    :param errors: at least one.
    """

    def gravity(error: FlushError) -> int:
        return 2 if isinstance(error, FileGoneError) else int(not error.transient)

    return max(errors, key=gravity)


def _placed(error: WalSinkError) -> WalSinkError:
    """Say where it happened: a host may be cut off from what the driver reaches."""
    error.what = f"{error.what} (in a Spark task on {socket.gethostname()})"
    error.args = (error.what, error.remedy)
    return error


def _restored(state: dict[str, Any]) -> FlushTask:
    task = object.__new__(FlushTask)
    vars(task).update(state)
    return task
