"""Limits how many rows a flush writes per second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from wal_sink.targets.base import RowSlice, part_of

_PART_S = 0.25
"""Longest pause in seconds, unless a single row takes longer. Pauses are short, since a flush can only be
interrupted between two pauses."""


def rate_per_task(rows_per_second: int | None, tasks: int) -> int | None:
    """Divide a limit among tasks that write at the same time. Return the rows per second of each task.

    Each task gets at least one row per second. So if there are more tasks than rows per second, their sum
    exceeds the limit.

    :param rows_per_second: limit of all tasks together; None for no limit.
    """
    return None if rows_per_second is None else max(rows_per_second // tasks, 1)


class RateLimit:
    """Keeps the rows of one thread or task below a rate, across slices and windows.

    This is the generic cell rate algorithm (ITU-T I.371) without tolerance. After n rows, the next rows are
    due n / rate seconds later. Unused time is lost, so no burst follows a pause.

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
        """Yield the rows in parts. Wait before each part until the part is due."""
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
        """Wait until a part is due.

        :param seconds: how long after this part the following part is due.
        """
        wait_s = self._due - self._clock()
        if wait_s > 0:
            self._sleep(wait_s)
        self._due = max(self._due, self._clock()) + seconds
