"""Takes attempts at windows whose rows may be sent once with each timestamp (rule 26)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from wal_sink.flush.target_connection import TargetConnection
from wal_sink.log_context import line_logger
from wal_sink.model.ledger import Window
from wal_sink.protocol.ledger_updates import next_attempt
from wal_sink.protocol.steps import Rest, Resume, View

logger = line_logger(__name__)

_PATIENCE_S = 15.0


class Attempts:
    """The attempts of one flusher.

    Of two flushers that live, each would take the window from the other again and again. So one from which it
    was taken waits before it takes it back, twice as long each time: one of them comes to the end.

    :param clock_s: monotonic.
    """

    def __init__(
        self, target: TargetConnection, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._target = target
        self._clock_s = clock_s
        self._mine: Window | None = None
        """What this flusher has begun, or was about to take, last."""
        self._others = ""
        """The nonce of another flusher's attempt, seen after that."""
        self._since_s = 0.0
        self._times = 0
        """How often the window was taken from this flusher."""

    def begins(self, window: Window) -> None:
        """Note the window that this flusher is about to begin."""
        self._mine, self._others, self._times = window, "", 0

    def due(self, step: Resume) -> Resume | Rest:
        """Return the step, or that the flusher waits, as another one has taken the window from it."""
        window, mine = step.window, self._mine
        if not window.sent_once or mine is None or mine.first != window.first:
            return step
        if window.nonce == mine.nonce:
            return step
        if window.nonce != self._others:
            self._others, self._since_s = window.nonce, self._clock_s()
            self._times += 1
        left_s = self._since_s + _PATIENCE_S * 2**self._times - self._clock_s()
        if left_s <= 0:
            return step
        return Rest(
            f"another flusher has taken epoch {window.first} from this one, which waits in case that it dies"
        )

    def take(self, window: Window, view: View) -> Window | None:
        """Take the next attempt at a begun window; return it, None when the ledger has moved on.

        :param view: what was seen; its ledger row names the window.
        :returns: the window itself where its rows may be sent again.
        :raises TargetUnavailable: the row is what it was.
        """
        if not window.sent_once:
            return window
        assert view.mark is not None
        again = next_attempt(window, uuid.uuid4().hex)
        if self._mine is None or self._mine.first != window.first:
            self._others, self._times = "", 0
        self._mine = again  # also if the answer is lost, and the update takes effect
        if not self._target.begin_again(again, view.mark):
            return None
        logger.info("attempt %s at epochs %d to %d", again.attempt, again.first, again.last)
        return again
