"""Limits the rows that a flusher sends in a second (`flush.maxRowsPerSecond`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from wal_sink.targets.base import RowSlice, part_of

_PART_S = 0.25
"""Longest pause, unless a single row takes longer. A flush can be interrupted between pauses."""


def rate_per_task(rows_per_second: int | None, tasks: int) -> int | None:
    """Return the rate of each of several tasks that write at the same time.

    Each task gets at least one row a second. So with more tasks than rows a second the whole is faster than
    the limit.
    """
    return None if rows_per_second is None else max(rows_per_second // tasks, 1)


class RateLimit:
    """Lets rows through at a rate. One flusher uses it for all windows.

    This is the generic cell rate algorithm (ITU-T I.371) without tolerance: after n rows the next ones are
    due n / rate seconds later, and unused time is lost. So no burst follows a pause.

    :param rows_per_second: None for no limit.
    :param clock: returns seconds of a clock that is never set back.
    :param sleep: waits for a number of seconds.
    """

    def __init__(
        self,
        rows_per_second: int | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rate = rows_per_second
        self._clock = clock
        self._sleep = sleep
        self._due = float("-inf")

    def paced(self, rows: RowSlice) -> Iterator[RowSlice]:
        """Yield the same rows in parts, each when it is due."""
        if not rows.batch.num_rows:
            return
        if self._rate is None:
            yield rows
            return
        most = max(int(self._rate * _PART_S), 1)
        for begin in range(0, rows.batch.num_rows, most):
            part = part_of(rows, begin, begin + most)
            self._wait(part.batch.num_rows / self._rate)
            yield rows if rows.batch.num_rows <= most else part

    def _wait(self, seconds: float) -> None:
        """Wait until the next part is due. The part after it is due `seconds` later."""
        wait_s = self._due - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        self._due = max(self._due, self._clock()) + seconds
