"""The clocks of a flusher: this host's and its target's; a warning where they differ (rule 14)."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median_low

from wal_sink import errors
from wal_sink.clock import iso
from wal_sink.flush.connection import TargetConnection
from wal_sink.log_context import Seldom, line_logger
from wal_sink.model.ledger import Window
from wal_sink.protocol.ledger import CLOCKS_DIFFER_US, bounded_now, clocks_differ

logger = line_logger(__name__)

_ASK_AGAIN = 2
"""How often the target is asked again when its clock differs: it may be that of a single node."""

_RECKON_S = 10.0
"""For so long the target's time is reckoned on from its last answer: a question costs as much as the rows of
a small epoch."""


def ask_for_time(ask: Callable[[], int | None], clock_us: Callable[[], int]) -> list[int]:
    """Ask a target for its time, once; some times more if it is far from this host's.

    :param ask: returns None if the target has no clock; then nothing is told.
    """
    told_us: list[int] = []
    for _ in range(1 + _ASK_AGAIN):
        if (target_us := ask()) is None:
            return []
        told_us.append(target_us)
        if not clocks_differ(clock_us(), told_us):
            break
    return told_us


class Clocks:
    """The clocks of one flusher: this host's, and that of its target, asked every ten seconds at most.

    :param clock_us: this host's, microseconds since 1970.
    :param clock_s: monotonic; by it the target's time is reckoned on.
    """

    def __init__(
        self,
        target: TargetConnection,
        clock_us: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target = target
        self._clock_us = clock_us
        self._clock_s = clock_s
        self._told_us: list[int] = []
        self._told_s = float("-inf")
        self._seldom = Seldom()

    def now_us(self) -> int:
        """Return the time that `begin` uses, see `bounded_now`.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        told_us = self._told()
        now_us = self._clock_us()
        if clocks_differ(now_us, told_us):
            self._say(
                "differ",
                "clocks differ: this host says %s, the target %s. Rows are written as of the earlier one;"
                " set the wrong clock right (NTP)",
                iso(now_us),
                ", ".join(map(iso, told_us)),
            )
        return bounded_now(now_us, told_us)

    def _told(self) -> list[int]:
        """Return the target's time, reckoned on from an answer that agreed with this host; else ask."""
        elapsed_s = self._clock_s() - self._told_s
        if elapsed_s < _RECKON_S:
            reckoned_us = [told_us + int(elapsed_s * 1_000_000) for told_us in self._told_us]
            if not clocks_differ(self._clock_us(), reckoned_us):
                return reckoned_us
        self._told_us = ask_for_time(self._target.now_us, self._clock_us)
        self._told_s = self._clock_s()
        return self._told_us

    def target_us(self) -> int:
        """Return what the target's clock says, by which it dates rows itself; this host's where it has none.

        :raises TargetUnavailable, TargetRefused: the target does not say.
        """
        told_us = self._told()
        return median_low(told_us) if told_us else self._clock_us()

    def look_ahead(self, window: Window, now_us: int) -> None:
        """Warn of a window whose timestamps lie in the future, since those before them did.

        :param now_us: what `now_us` said.
        """
        if window.epochs[0].base_us > now_us + CLOCKS_DIFFER_US:
            self._say(
                "ahead",
                "rows are written as of %s, %.0f s ahead of the clocks: an earlier flusher used such"
                " timestamps, and each epoch's lie above those before. Until then no other writer can"
                " change these rows. To go back to the present, %s",
                iso(window.epochs[0].base_us),
                (window.epochs[0].base_us - now_us) / 1_000_000,
                errors.reset_timestamps(window.first - 1),
            )

    def _say(self, what: str, text: str, *values: object) -> None:
        """Warn, once a minute."""
        if self._seldom.is_due(what):
            logger.warning(text, *values)
