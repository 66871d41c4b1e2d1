"""The number of requests in flight: slow start, additive increase and multiplicative decrease.

The law is TCP's (RFC 5681, and Chiu and Jain, 1989) with the latency as its signal and a bound for how
long a request may wait in the server's queue, as in LEDBAT (RFC 6817): more requests there raise the
latency and not the throughput. A **window** is as many answers as there may be requests in flight, about
one round trip. After each its mean latency is compared with what is good, the best window's and 100 ms,
or twice the best where that is more:

==============================  =======================================================
mean latency of a window        requests in flight
==============================  =======================================================
good                            twice as many until one was not good, then one more
not good                        one less
more than twice what is good    half as many
==============================  =======================================================

The limit counts **places**, and a large request takes one. A small one, of some scattered rows, takes a part
of a place: if each took a whole one, too few of them would be in flight to keep the server busy.

An answer that the server is overloaded halves them at once; more such answers to requests that were sent
before it do not halve them again. A bound that is a multiple of the best latency alone was tried: it takes
the jitter of a busy machine for a queue, and ends with two requests in flight where sixty-four do three
times as much.
"""

from __future__ import annotations

FIRST = 4
LEAST = 2
MOST = 64
"""Where the option does not say: 64 batches of 96 KiB are 6 MiB, in the client and in the server."""

_PARTS = 8
"""Of a place, of which a request takes one at least and all at most."""
_WHOLE = 96 * 1024
"""Bytes of a request that takes a whole place."""

_QUEUE_S = 0.1
_TIMES = 2


class Concurrency:
    """The limit of requests in flight of one connection, from the answers and their times.

    :param most: the highest limit.
    :param by_size: whether small requests take less than a place; else `most` is a number of requests.
    """

    def __init__(self, most: int = MOST, *, by_size: bool = False) -> None:
        self.most = most
        self._by_size = by_size
        self.limit = min(FIRST, most)
        """Places of requests that may be in flight now."""
        self._least = min(LEAST, most)
        self._starting = True
        self._best = float("inf")
        self._slowed = float("-inf")
        self._begin_window(float("-inf"))

    def places(self, size: int) -> float:
        """Return how many places a request takes, at most one.

        :param size: bytes of its rows.
        """
        return min(_PARTS, 1 + size * _PARTS // _WHOLE) / _PARTS if self._by_size else 1.0

    def answered(self, sent: float, now: float, in_flight: float, answers: float = 1) -> None:
        """Count requests that were acknowledged.

        :param sent: when, in seconds of the clock that `now` is of.
        :param in_flight: places that requests take, these included.
        :param answers: places that these requests take; all requests of a group end with the last answer.
        """
        if sent < self._begun:
            return  # it waited for requests of an earlier window
        self._answers += answers
        self._latency += answers * (now - sent)
        self._full |= in_flight + answers > self.limit
        if self._answers >= self.limit:
            self._adapt(self._latency / self._answers, now)
            self._begin_window(now)

    def overloaded(self, sent: float, now: float) -> None:
        """Slow down because the server had no time for a request."""
        if sent > self._slowed:  # one that was sent before says nothing new
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
        elif self._full:  # a limit that was not reached says nothing about a higher one
            more = self.limit if self._starting else 1
            self.limit = min(self.most, self.limit + more)

    def _slow_down(self, now: float) -> None:
        self._slowed = now
        self._starting = False
        self.limit = max(self._least, self.limit // 2)
