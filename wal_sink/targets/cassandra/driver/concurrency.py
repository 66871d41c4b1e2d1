"""The number of requests in flight: slow start, additive increase and multiplicative decrease.

The algorithm is that of TCP (RFC 5681; Chiu and Jain, 1989). Its signal is the latency, with a bound on the
time in the server's queue as in LEDBAT (RFC 6817): more requests in the queue raise the latency, and not the
throughput. A **window** is as many answers as requests may be in flight, about one round trip. After each
window its mean latency is compared with the good latency: the best window's latency plus 100 ms, or twice
the best if that is more.

==============================  =======================================================
mean latency of a window        requests in flight
==============================  =======================================================
good                            doubled until a window was not good, then one more
not good                        one less
more than twice the good one    halved
==============================  =======================================================

An answer that the server is overloaded halves the limit at once. Further such answers to requests that were
sent before it change nothing. A bound by a multiple of the best latency alone was tried: it takes the jitter
of a busy machine for a queue, and ends with two requests in flight where sixty-four have three times the
throughput.

The limit counts **places**. A large request takes one place. A small request takes a part of a place:
otherwise too few small requests would be in flight to keep the server busy.
"""

from __future__ import annotations

FIRST = 4
LEAST = 2
MOST = 64
"""The limit for `cassandra.concurrency` = `auto`: 64 batches of 96 KiB are 6 MiB in client and server."""

_PARTS = 8
"""The parts of a place. A request takes at least one part."""
_WHOLE = 96 * 1024
"""The bytes of a request that takes a whole place."""

_QUEUE_S = 0.1
_TIMES = 2


class Concurrency:
    """The limit of requests in flight on one connection, adapted to the latency of the answers.

    :param most: the highest limit.
    :param by_size: True if small requests take a part of a place; False to count requests.
    """

    def __init__(self, most: int = MOST, *, by_size: bool = False) -> None:
        self.most = most
        self._by_size = by_size
        self.limit = min(FIRST, most)
        """The places that requests may take now."""
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
        """Count acknowledged requests that were sent together.

        :param sent: the time of sending in seconds, by the clock of `now`.
        :param now: the time of the last answer.
        :param in_flight: the places of all requests in flight, including these.
        :param answers: the places of these requests.
        """
        if sent < self._begun:
            return  # its latency is that of an earlier window
        self._answers += answers
        self._latency += answers * (now - sent)
        self._full |= in_flight + answers > self.limit
        if self._answers >= self.limit:
            self._adapt(self._latency / self._answers, now)
            self._begin_window(now)

    def overloaded(self, sent: float, now: float) -> None:
        """Halve the limit: the server had no time for a request."""
        if sent > self._slowed:  # else the limit was halved after it was sent
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
        elif self._full:  # else a higher limit would change nothing
            more = self.limit if self._starting else 1
            self.limit = min(self.most, self.limit + more)

    def _slow_down(self, now: float) -> None:
        self._slowed = now
        self._starting = False
        self.limit = max(self._least, self.limit // 2)
