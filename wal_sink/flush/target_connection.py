"""The flusher's side of a target: connects, reads the ledger row, and finishes windows with their receipts.

The ledger row moves by compare-and-set (rule `ledger`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from wal_sink.errors import TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.reporter import Reporter
from wal_sink.model.ledger import LedgerRow, Outcome
from wal_sink.targets.base import (
    IdempotentSession,
    RowsRefused,
    Session,
    StagedSession,
    Target,
    TransactionalSession,
)
from wal_sink.telemetry import counting_requests, line_logger

logger = line_logger(__name__)


_FINISH_TRIES = 5
"""Most calls of `finish` if answers are lost. Only an idempotent session repeats the call."""


class TargetConnection:
    """One session at a time with the target of one query. Used by the flush's thread.

    Every method that sends requests raises `TargetRefused`, `TargetUnavailable`, or an error of wal_sink that
    the session raises, such as `SchemaMismatch`; see `target_errors`.

    :param reporter: reports that the flusher connects; the reporter's metrics count requests.
    """

    def __init__(self, pipeline: Pipeline, reporter: Reporter) -> None:
        self._pipeline = pipeline
        self._reporter = reporter
        self._session: Session | None = None
        self._row: LedgerRow | None = None
        self._row_is_known = False
        self._receipts: list[bytes] = []
        self.interrupted = False
        """True if no further slice may be written. Set from another thread, or by a signal handler."""
        self._was_idle = False
        self.lost_while_idle = False
        """True if the first request of the pass failed on a connection of an earlier pass."""

    def begin_pass(self) -> None:
        """Record that the pass has sent no request yet."""
        self._was_idle, self.lost_while_idle = True, False

    @contextlib.contextmanager
    def session(self) -> Iterator[Session]:
        """Provide the session; connect if there is none."""
        # Sessions of other kinds keep no connection, or their drivers connect again by themselves.
        was_idle = self._was_idle and isinstance(self._session, TransactionalSession)
        self._was_idle = False
        with target_errors(self._pipeline.target):
            if self._session is None:
                self._reporter.report("connecting", None)
                with counting_requests(self._reporter.metrics):
                    self._session = self._pipeline.target.connect(self._pipeline.ledger_key)
            try:
                yield self._session
            except (WalSinkError, RowsRefused):
                raise  # the server has answered, so the connection works
            except Exception:
                self.lost_while_idle = was_idle
                raise

    def close(self) -> None:
        """Release the session. The next call connects again, and reads the ledger row again."""
        session, self._session = self._session, None
        self._row_is_known = False
        self._reporter.metrics.in_flight = 0
        if session is None:
            return
        receipts, self._receipts = self._receipts, []
        with contextlib.closing(session):
            if receipts and isinstance(session, StagedSession):
                _discard(session, receipts)

    def row(
        self, may_keep: Callable[[LedgerRow | None], bool] = lambda _row: True
    ) -> LedgerRow | None:
        """Return the ledger row; None if the target has none.

        The row is kept until an error, `forget_row` or `finish`. Then the next call reads the row again.

        :param may_keep: returns True if the row that an earlier pass read is still valid.
        """
        self._row_is_known &= may_keep(self._row)
        if not self._row_is_known:
            with self.session() as session:
                row = session.read()
            self._row = row and row._replace(query_id=self._pipeline.query_id)
            self._row_is_known = True
        return self._row

    def forget_row(self) -> None:
        """Read the ledger row again before its next use."""
        self._row_is_known = False

    def add_receipts(self, receipts: Sequence[bytes]) -> None:
        """Add receipts of rows that tasks have staged for the window."""
        self._receipts += receipts

    def finish(self, expected: LedgerRow | None, new: LedgerRow) -> bool:
        """Make the rows of the window visible, and move the ledger row. Return True if the row is `new` now.

        If False is returned, this call has not finished the window. Another flusher may have been faster.

        :raises RowsRefused: the server refuses rows, and no row of the window counts.
        """
        for _ in range(_FINISH_TRIES):
            self._row_is_known = False
            outcome, repeatable = self._finish(expected, new)
            if outcome is Outcome.APPLIED:
                self._row, self._row_is_known = new, True
                return True
            row = self.row()
            # A claim names no flusher, so an equal row may be the claim of another flusher that sends now.
            if row == new and outcome is Outcome.UNKNOWN and not new.sending:
                return True
            if outcome is Outcome.CONFLICT or row != expected or not repeatable:
                break
        logger.info("the ledger row did not move to epoch %d: it is %s", new.epoch, self._row)
        self.close()
        return False

    def _finish(self, expected: LedgerRow | None, new: LedgerRow) -> tuple[Outcome, bool]:
        """Call `finish` once; return the outcome, and True if the call may be repeated."""
        key = self._pipeline.ledger_key
        old_row, new_row = (row and row._replace(query_id=key) for row in (expected, new))
        assert new_row is not None
        with self.session() as session:
            if isinstance(session, StagedSession):
                receipts, self._receipts = self._receipts, []
                outcome = session.finish(old_row, new_row, receipts)
                if outcome is Outcome.CONFLICT:
                    _discard(session, receipts)
                return outcome, False
            repeatable = isinstance(session, IdempotentSession)
            return session.finish(old_row, new_row), repeatable  # type: ignore[attr-defined]


def _discard(session: StagedSession, receipts: Sequence[bytes]) -> None:
    if not receipts:
        return
    try:
        session.discard(receipts)
    except Exception as error:  # noqa: BLE001 - no reader reads staged files
        logger.info("staged files could not be deleted, and no reader reads them: %r", error)


@contextlib.contextmanager
def target_errors(target: Target) -> Iterator[None]:
    """Convert the target's own exceptions into errors of wal_sink.

    :raises TargetRefused: the target would refuse the request again.
    :raises TargetUnavailable: the target does not answer.
    """
    try:
        yield
    except (WalSinkError, RowsRefused):
        raise
    except Exception as error:
        if target.classify(error) == "fatal":
            raise TargetRefused(
                f"The target refuses: {type(error).__name__}: {error}",
                "Repair the target, or grant the user the missing permission. The flush then continues by"
                " itself.",
            ) from error
        raise TargetUnavailable(
            f"The target does not answer: {type(error).__name__}: {error}",
            "If this is an outage, do nothing: the flush continues by itself when the outage is over.",
        ) from error
