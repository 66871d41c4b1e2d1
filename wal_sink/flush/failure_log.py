"""What the log says of a line that is stopped: at once what is new, and now and then that it lasts."""

from __future__ import annotations

import time
from collections.abc import Callable

from wal_sink.errors import WalSinkError
from wal_sink.log_context import line_logger

logger = line_logger(__name__)

AGAIN_S = 60.0
"""How often the same error is said again; a weekend's outage would be fifty thousand lines."""


class FailureLog:
    """The errors that one flusher meets in a row.

    :param clock: seconds, never backwards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kind: str | None = None
        self._since_s = 0.0
        self._said_s = 0.0

    def met(self, error: BaseException, *, tried: int) -> None:
        """Say an error, unless one of its kind was said a moment ago.

        :param tried: how often in a row by now.
        """
        now_s = self._clock()
        # Texts of one outage differ: they name hosts and times.
        kind = type(error).__name__
        if self._kind is None:
            self._since_s = now_s
        elif kind == self._kind and now_s - self._said_s < AGAIN_S:
            return
        new, self._kind, self._said_s = kind != self._kind, kind, now_s
        logger.warning(
            "the flush failed (%d tries in %.0f s; it is tried again until it succeeds): %s",
            tried,
            now_s - self._since_s,
            error,
            exc_info=error if new and not isinstance(error, WalSinkError) else None,
        )

    def over(self) -> None:
        """Say that the line goes on, if it was stopped."""
        if self._kind is not None:
            self._kind = None
            logger.warning("the flush goes on, after %.0f s", self._clock() - self._since_s)
