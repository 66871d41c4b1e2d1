"""Writes one task's share of a begun window, in a Spark job (rule 15). Imports no Spark.

A task returns its errors as values, so that the flusher meets the kind that it would have met in the driver;
what Spark sees as a failed task is a bug or a dead worker. Spark then runs the share again, up to
`spark.task.maxFailures` times, or two copies of it where it speculates: writes are idempotent, and of what is
staged only that counts whose receipts Spark has brought to the flusher, one answer for each share.
"""

from __future__ import annotations

import socket
from collections.abc import Hashable, Iterable, Sequence

from wal_sink.errors import WalSinkError
from wal_sink.flush.cast import as_written
from wal_sink.flush.quarantine import RowsRefused
from wal_sink.flush.rate_limit import RateLimit
from wal_sink.flush.read_window import FileGoneError, read_piece
from wal_sink.flush.receipts import drained
from wal_sink.flush.session_pool import SESSIONS
from wal_sink.flush.target_connection import target_errors
from wal_sink.log_context import log_epoch, logging_query
from wal_sink.model.ledger import Owner
from wal_sink.protocol.split_window import Piece
from wal_sink.targets.base import Session, Target
from wal_sink.targets.refused import PassesOver
from wal_sink.wal.log import Log
from wal_sink.wal.store_errors import store_errors

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

    def __call__(self, share: Iterable[Piece]) -> Answer:
        """Write a share; return when every row of it is acknowledged or staged, or what stopped it."""
        try:
            with store_errors(), logging_query(self._owner.query_id):
                return self._write(list(share))
        except FileGoneError as gone:
            return gone
        except WalSinkError as error:
            return _placed(error)

    def _write(self, share: Sequence[Piece]) -> tuple[bytes, ...]:
        pace = RateLimit(self._rows_per_second)
        with SESSIONS.session((self._session_key, self._owner), self._connect) as session:
            if isinstance(session, PassesOver):  # it may be another window's
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
            return self._target.connect(self._owner)


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
