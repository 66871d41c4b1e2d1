"""How many requests may be in flight: additive increase, multiplicative decrease. Pure.

The law is TCP's (Chiu and Jain, 1989) with latency as its signal, as in TCP Vegas: requests that wait in
the server's queue raise the latency and not the throughput. A **window** is as many answers as there may
be requests in flight, about one round trip. After each, its mean latency is compared with the best one:

=============================  ============================
mean latency of a window       requests in flight
=============================  ============================
at most twice the best         one more
above                          one less
more than four times the best  half as many
=============================  ============================

An answer that says that the server has too much to do halves them at once, for all requests that were
sent before. The best latency is measured with a quarter of the requests in flight, at the start and
every ten seconds: it follows the data's shape, and cannot creep up with a queue that is always there.
"""

from __future__ import annotations

FIRST = 16
LEAST = 2
MOST = 128
"""Where nothing else is said: so many batches of 48 KiB are 6 MiB, in the client and in the server."""

_GOOD = 2.0
_BAD = 4.0
_BEST_LASTS = 10.0


class Concurrency:
    """The limit of requests in flight, for one connection. It is told what happened, and when.

    :param most: never more than these.
    """

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._least = min(LEAST, most)
        self._allowed = min(FIRST, most)
        self._best = float("inf")
        self._measured = 0.0
        self._slowed = float("-inf")
        self._probing = True
        self._begin_window(float("-inf"))

    @property
    def limit(self) -> int:
        """How many requests may be in flight now."""
        return max(self._least, self._allowed // 4) if self._probing else self._allowed

    def answered(self, sent: float, now: float, in_flight: int) -> None:
        """Take notice of a request that was acknowledged.

        :param sent: when, in seconds of the clock that `now` is of.
        :param in_flight: requests, this one included.
        """
        if sent < self._begun:
            return  # it waited behind what was allowed before
        self._answers += 1
        self._latency += now - sent
        self._full |= in_flight >= self.limit
        if self._answers >= self.limit:
            self._judge(self._latency / self._answers, now)
            self._begin_window(now)

    def overloaded(self, sent: float, now: float) -> None:
        """Take notice of a request that the server had no time for."""
        if sent > self._slowed:  # others of before say nothing new
            self._slow_down(now)
            self._begin_window(now)

    def _begin_window(self, now: float) -> None:
        self._begun = now
        self._answers = 0
        self._latency = 0.0
        self._full = False

    def _judge(self, latency: float, now: float) -> None:
        if self._probing:
            self._best, self._measured, self._probing = latency, now, False
            return
        self._best = min(self._best, latency)
        if now - self._measured > _BEST_LASTS:
            self._probing = True
        elif latency > _BAD * self._best:
            self._slow_down(now)
        elif latency > _GOOD * self._best:
            self._allowed = max(self._least, self._allowed - 1)
        elif self._full:
            self._allowed = min(self.most, self._allowed + 1)

    def _slow_down(self, now: float) -> None:
        self._slowed = now
        self._allowed = max(self._least, self._allowed // 2)
