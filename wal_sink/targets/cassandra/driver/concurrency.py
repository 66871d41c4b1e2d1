"""Limits the requests in flight by the latency of their answers."""

from __future__ import annotations

FIRST = 4
"""The limit at the start, unless the highest limit is lower."""
LEAST = 2
"""The lowest limit, unless the highest limit is lower."""
MOST = 64
"""The highest limit if `cassandra.concurrency` is `auto`: 64 batches of 96 KiB are 6 MiB in the client, and
6 MiB in the server."""

_PARTS = 8
"""The number of parts into which a place is divided, see `Concurrency`. A request takes at least one part."""
_WHOLE = 96 * 1024
"""The bytes of a request that takes a whole place."""

_QUEUE_S = 0.1
"""A window is good if its latency exceeds the best latency by at most this many seconds."""
_TIMES = 2
"""A window is also good if its latency is at most this multiple of the best latency. If the latency exceeds
this multiple of the highest good latency, the limit is halved."""


class Concurrency:
    """The limit of requests in flight. It rises while answers are fast, and falls while they are slow.

    The algorithm is that of TCP: slow start, additive increase, multiplicative decrease (RFC 5681; Chiu and
    Jain, 1989). Its signal is the latency, as in LEDBAT (RFC 6817): if requests wait in the server's queue, a
    higher limit raises the latency and not the throughput. A **window** is a number of answers equal to the
    limit, about one round trip. After each window its mean latency is compared with the best mean latency so
    far. A latency is good if it exceeds the best latency by at most 100 ms, or is at most twice the best one.

    ==============================  =======================================================
    mean latency of a window        the limit
    ==============================  =======================================================
    good                            doubles; after the first window that was not good, rises by one
    not good                        falls by one
    more than twice a good one      is halved
    ==============================  =======================================================

    After a good window the limit rises only if it was reached during the window. An answer that the server is
    overloaded halves the limit at once, unless its request was sent before the limit was halved last. When a
    latency was good only up to twice the best one, the jitter of a busy machine looked like a queue. The
    limit fell to 2, at a third of the throughput of 64.

    The limit counts **places**. A large request takes one place, and a small request a part of a place.
    Otherwise too few small requests would be in flight to keep the server busy.

    :param most: the highest limit.
    :param by_size: False if each request takes one place.
    """

    def __init__(self, most: int = MOST, *, by_size: bool = False) -> None:
        self.most = most
        self._by_size = by_size
        self.limit = min(FIRST, most)
        self._least = min(LEAST, most)
        self._starting = True
        self._best = float("inf")
        self._slowed = float("-inf")
        self._begin_window(float("-inf"))

    def places(self, size: int) -> float:
        """Return the places that a request takes, at most one.

        :param size: the bytes of its rows.
        """
        return min(_PARTS, 1 + size * _PARTS // _WHOLE) / _PARTS if self._by_size else 1.0

    def answered(self, sent: float, now: float, in_flight: float, answers: float = 1) -> None:
        """Count the answers to requests that were sent together.

        :param sent: the time of sending in seconds, by the clock of `now`.
        :param now: the time of the last answer.
        :param in_flight: the places of all requests in flight, including the answered requests.
        :param answers: the places of the answered requests.
        """
        if sent < self._begun:
            return  # the latency belongs to an earlier window
        self._answers += answers
        self._latency += answers * (now - sent)
        # The limit counts as reached if another group of the same size would have exceeded it.
        self._full |= in_flight + answers > self.limit
        if self._answers >= self.limit:
            self._adapt(self._latency / self._answers, now)
            self._begin_window(now)

    def overloaded(self, sent: float, now: float) -> None:
        """Halve the limit, because the server had no time for a request.

        :param sent: the time of sending in seconds. If the limit was halved after this time, nothing changes.
        """
        if sent > self._slowed:
            self._slow_down(now)
            self._begin_window(now)

    def _begin_window(self, now: float) -> None:
        self._begun = now
        self._answers = 0.0
        self._latency = 0.0
        self._full = False

    def _adapt(self, latency: float, now: float) -> None:
        self._best = min(self._best, latency)
        good = max(self._best * _TIMES, self._best + _QUEUE_S)
        if latency > good * _TIMES:
            self._slow_down(now)
        elif latency > good:
            self._starting = False
            self.limit = max(self._least, self.limit - 1)
        elif self._full:  # otherwise a higher limit would change nothing
            more = self.limit if self._starting else 1
            self.limit = min(self.most, self.limit + more)

    def _slow_down(self, now: float) -> None:
        self._slowed = now
        self._starting = False
        self.limit = max(self._least, self.limit // 2)
