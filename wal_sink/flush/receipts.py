"""Keeps the receipts of a window's staged rows, from `start` to `finish` (rules 15 and 16)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from wal_sink.errors import TargetUnavailable
from wal_sink.model.ledger import Outcome, Window
from wal_sink.targets.base import Session, StagedSession

logger = logging.getLogger(__name__)


class Receipts:
    """Those of one try at one window; empty for a target that does not stage."""

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self._of: Window | None = None
        """The window whose rows are staged; None: none has been started since the last `finish` or error."""

    def start(self, session: Session, window: Window) -> None:
        """Announce the rows of a window to the target, all of them; forget those of a try before."""
        self.discard(session)
        session.start(window)
        self._of = window

    def add(self, receipts: Sequence[bytes]) -> None:
        """Keep further ones."""
        self._kept += receipts

    def finish(self, session: Session, window: Window) -> Outcome:
        """Ask for `finish` with all of them, once; discard what is certainly not committed.

        After an answer that does not come, or an error, nothing is discarded: `finish` may still take effect.

        :raises TargetUnavailable: they are lost, since the session was; nothing was asked.
        """
        if not isinstance(session, StagedSession):
            return session.finish(window)
        if self._of != window:
            raise TargetUnavailable(
                f"The connection that staged the rows of epoch {window.last} is lost",
                "Nothing: all rows are staged again.",
            )
        receipts = self._taken()
        outcome = session.finish(window, receipts)
        if outcome is Outcome.REFUSED:
            _discard(session, receipts)
        return outcome

    def discard(self, session: Session) -> None:
        """Forget all of them; let the target delete what they stand for, if it can."""
        receipts = self._taken()
        if isinstance(session, StagedSession):
            _discard(session, receipts)

    def _taken(self) -> tuple[bytes, ...]:
        taken, self._kept, self._of = tuple(self._kept), [], None
        return taken


def drained(session: Session) -> tuple[bytes, ...]:
    """Drain a session; return the receipts, none where rows are not staged."""
    return session.drain() or ()


def _discard(session: StagedSession, receipts: Sequence[bytes]) -> None:
    if not receipts:
        return
    try:
        session.discard(receipts)
    except Exception as error:  # noqa: BLE001 -- no reader sees what is left over
        logger.warning("what was staged and is not needed could not be deleted: %r", error)
