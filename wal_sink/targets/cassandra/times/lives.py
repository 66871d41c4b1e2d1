"""Says how long rows still live as they are written: their lives began when they were published.

A row is written late after an outage, and again after a crash. A life that began anew each time would grow by
that; so what is fixed is the second at which it ends, and what is sent is the rest of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal_sink.clock import now_us
from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.times.given import MOST_TTL_S, RowTimes
from wal_sink.targets.cassandra.times.read import EXPIRES_US, LIFE_S

Ints = npt.NDArray[np.int64]

ASK_EVERY_S = 30.0
"""Seconds after which a node is asked for its time again."""
_SECOND_US = 1_000_000


def live_for_a_time(times: RowTimes, default_ttl_s: int) -> bool:
    """Whether rows expire.

    :param default_ttl_s: of the table; 0: none.
    """
    return bool(times.ttl_s or times.ttl_column or times.expires_column or default_ttl_s)


def seconds_left(
    batch: pa.RecordBatch, stamps: Ints, times: RowTimes, now_s: int, default_ttl_s: int = 0
) -> Ints:
    """Return the seconds that are left to each row, 0 or less for none.

    As Cassandra does, the end of a life is its second of writing plus its seconds, here those of the row's
    timestamp in the ledger. So each time the row is written, its life ends in the same second.

    :param batch: as the log has it.
    :param stamps: the timestamps of the rows in the ledger, microseconds since 1970, whatever event times
        they have.
    :param now_s: see `WriteClock`.
    :param default_ttl_s: of the table, for rows of which no option says anything.
    """
    if times.expires_column:
        ends = -(-views.elements(batch.column(EXPIRES_US), "i8") // _SECOND_US)
        most: Ints | int = MOST_TTL_S
    else:
        most = (
            views.elements(batch.column(LIFE_S), "i8")
            if times.ttl_column
            else times.ttl_s or default_ttl_s
        )
        ends = stamps // _SECOND_US + most
    if times.latest_s:
        ends = np.minimum(ends, times.latest_s)
    # Where timestamps lie ahead of the clock, a life is not longer for that.
    left: Ints = np.minimum(ends - now_s, most)
    return left


class WriteClock:
    """Tells the second from which lives are counted: the earlier of this host's and of a node's.

    A life that ends too early is a loss, and stays one: so one clock that is ahead does not end any.

    :param ask: returns a node's time, microseconds since 1970; None: the server has no such function.
    :param clock_us: this host's, microseconds since 1970.
    """

    def __init__(
        self,
        ask: Callable[[], int | None],
        clock_us: Callable[[], int] = now_us,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask = ask
        self._clock_us = clock_us
        self._monotonic = monotonic
        self._asked_s = float("-inf")
        self._told_us: int | None = None

    def now_s(self) -> int:
        """Return the second, since 1970.

        :raises Exception: of the driver, when no node answers.
        """
        since_s = self._monotonic() - self._asked_s
        if since_s > ASK_EVERY_S:
            self._told_us, self._asked_s, since_s = self._ask(), self._monotonic(), 0.0
        times_us = [self._clock_us()]
        if self._told_us is not None:
            times_us.append(self._told_us + int(since_s * _SECOND_US))
        return min(times_us) // _SECOND_US
