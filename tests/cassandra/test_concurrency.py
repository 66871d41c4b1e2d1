"""The limit of requests in flight, with simulated servers."""

from __future__ import annotations

import heapq

import pytest

from wal_sink.targets.cassandra.driver.concurrency import FIRST, LEAST, MOST, Concurrency


class Server:
    """A server that works on `workers` requests at a time, each for `work_s`. Other requests wait.

    The network takes `way_s`.
    """

    def __init__(self, workers: int, work_s: float, way_s: float = 0.0) -> None:
        self.workers = workers
        self.work_s = work_s
        self.way_s = way_s
        self.answered = 0
        self.now = 0.0
        self._free: list[float] = []

    def feed(self, law: Concurrency, seconds: float) -> list[int]:
        """Send as many requests as the limit allows; return the limits after each answer."""
        events: list[tuple[float, float]] = []
        limits = []
        until = self.now + seconds
        while self.now < until:
            while len(events) < law.limit:
                heapq.heappush(events, self._take(self.now))
            self.now, sent = heapq.heappop(events)
            self.answered += 1
            law.answered(sent, self.now, len(events) + 1)
            limits.append(law.limit)
        self._free.clear()
        return limits

    def _take(self, now: float) -> tuple[float, float]:
        while len(self._free) >= self.workers and self._free[0] <= now:
            heapq.heappop(self._free)
        begin = heapq.heappop(self._free) if len(self._free) >= self.workers else now
        heapq.heappush(self._free, begin + self.work_s)
        return begin + self.work_s + self.way_s, now


def typical(limits: list[int]) -> int:
    """Return the median of the second half."""
    half = sorted(limits[len(limits) // 2 :])
    return half[len(half) // 2]


def test_limit_grows_while_a_server_has_room() -> None:
    """The network is slow and no request waits, so the limit grows to its maximum."""
    server = Server(workers=1_000, work_s=0.001, way_s=0.02)
    limits = server.feed(Concurrency(), 1)
    assert typical(limits) == MOST
    assert limits.index(MOST) < 2 * MOST


def test_limit_keeps_a_server_busy_and_its_queue_short() -> None:
    """A request waits for about 100 ms."""
    server = Server(workers=4, work_s=0.04)
    limits = server.feed(Concurrency(), 120)
    assert 10 <= typical(limits) <= 18
    assert server.answered > 0.95 * 120 * 4 / 0.04


def test_overload_halves_the_limit_once_a_round_trip() -> None:
    law = started()
    highest = law.limit
    for _ in range(10):
        law.overloaded(sent=1_001, now=1_002)
    assert law.limit == highest // 2
    law.overloaded(sent=1_001.5, now=1_003)
    assert law.limit == highest // 2
    law.overloaded(sent=1_002.5, now=1_003)
    assert law.limit == highest // 4


def test_requests_sent_before_an_overload_change_no_limit() -> None:
    """The latency of such a request is that of more requests in flight."""
    law = started()
    law.overloaded(sent=1_001, now=1_002)
    limit = law.limit
    for _ in range(100):
        law.answered(sent=1_001, now=1_009, in_flight=50)
    assert law.limit == limit


def started() -> Concurrency:
    """Return a limit at its maximum, after good answers until the time 1,000."""
    law = Concurrency()
    for step in range(500):
        law.answered(step, step + 0.001, in_flight=100)
    assert law.limit == MOST
    return law


def test_limit_falls_with_high_latency_and_recovers() -> None:
    """The limit falls while the server is slow, and grows again after that."""
    server = Server(workers=50, work_s=0.02)
    law = Concurrency()
    usual = typical(server.feed(law, 5))
    server.work_s = 1.0
    assert typical(server.feed(law, 30)) < usual / 4
    server.work_s = 0.02
    assert typical(server.feed(law, 10)) == usual


def test_limit_that_is_not_reached_does_not_grow() -> None:
    law = Concurrency()
    for step in range(1_000):
        law.answered(step / 100, step / 100 + 0.001, in_flight=1)
    assert law.limit == FIRST


@pytest.mark.parametrize("most", [1, 3, 200])
def test_limit_stays_within_its_bounds(most: int) -> None:
    quick = Server(workers=10_000, work_s=0.001, way_s=0.02)
    limits = quick.feed(Concurrency(most), 15)
    assert max(limits) == most
    law = Concurrency(most)
    for step in range(20):
        law.overloaded(step, step + 0.5)
    assert law.limit == min(most, LEAST)
