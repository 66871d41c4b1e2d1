"""The requests that are in flight: starts them, limits them, and gathers their ends.

Requests for one node are gathered into groups, which go by one push. Their number is limited by slow start,
additive increase and multiplicative decrease.

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

import functools
import time
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from wal_sink.errors import TargetUnavailable
from wal_sink.observer import Observer
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.errors import asks_to_slow_down, classify
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import can_send
from wal_sink.targets.cassandra.driver.pipeline import GROUP_BYTES, Ended, Failed, PipelinedRequests
from wal_sink.targets.cassandra.write.statements import bound

FIRST = 4
LEAST = 2
MOST = 64
"""Where the option does not say: 64 batches of 96 KiB are 6 MiB, in the client and in the server."""

PARTS = 8
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

    def parts(self, size: int) -> int:
        """Return how many parts of a place a request takes.

        :param size: bytes of its rows.
        """
        return min(PARTS, 1 + size * PARTS // _WHOLE) if self._by_size else PARTS

    @property
    def limit_parts(self) -> int:
        """Parts of places that may be taken now."""
        return self.limit * PARTS

    def answered(self, sent: float, now: float, in_flight: float, answers: float = 1) -> None:
        """Count requests that were acknowledged.

        :param sent: when, in seconds of the clock that `now` is of.
        :param in_flight: places that requests take, these included.
        :param answers: places that these take; all requests of a group end with the last answer.
        """
        if sent < self._begun:
            return  # it waited for requests of an earlier window
        self._answers += answers
        self._latency += answers * (now - sent)
        self._full |= in_flight + answers > self.limit
        if self._answers >= self.limit:
            self._judge(self._latency / self._answers, now)
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

    def _judge(self, latency: float, now: float) -> None:
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


MOST_REQUESTS = 32
"""Of a group: twice as many cost no less CPU a row."""
_AT_ONCE = 2
"""Groups that may be in flight: while one is awaited, the server has others."""
_AROUND = 128
"""Bytes of a request beside its rows, at most: of its frame, and the longest name of a keyspace."""


class Group:
    """Requests for one node."""

    def __init__(self) -> None:
        self.requests: list[EncodedBatch] = []
        self.parts = 0
        """Of places, see `Concurrency`."""
        self._bytes = 0

    def add(self, request: EncodedBatch, parts: int, size: int = 0) -> None:
        """Add a request.

        :param size: bytes on the wire.
        """
        self.requests.append(request)
        self.parts += parts
        self._bytes += size

    def takes(self, parts: int, size: int, most_parts: int) -> bool:
        """Return True if a request may be added; to an empty group any may be."""
        return not self.requests or (
            len(self.requests) < MOST_REQUESTS
            and self.parts + parts <= most_parts
            and self._bytes + size <= GROUP_BYTES
        )


def grouped(requests: Iterable[EncodedBatch], concurrency: Concurrency) -> Iterator[Group]:
    """Yield requests in groups, those of a node in their order.

    A request waits until the next one does not fit into its group,
    so the memory holds one group for each node.
    """
    groups: dict[Any, Group] = {}
    most_parts = concurrency.limit_parts // _AT_ONCE
    for request in requests:
        size = len(request.data)
        parts, size = concurrency.parts(size), size + _AROUND
        group = groups.get(request.node)
        if group is None or not group.takes(parts, size, most_parts):
            if group is not None:
                yield group
                most_parts = concurrency.limit_parts // _AT_ONCE  # answers have come meanwhile
            group = groups[request.node] = Group()
        group.add(request, parts, size)
    yield from groups.values()


class InFlight:
    """Requests of one session that have not ended.

    One thread uses it. The driver's threads only put what has ended into a queue.

    :param session: the driver's session.
    :param concurrency: the number of requests that may be in flight.
    :param pipelined: by which groups go, where that can be; None: each request by a future.
    :param timeout_s: seconds to wait for requests of which none ends: then they are lost.
    :param observer: gets the number of requests, and counts those that are sent again.
    """

    def __init__(
        self,
        session: Any,
        concurrency: Concurrency,
        pipelined: PipelinedRequests | None,
        timeout_s: float,
        observer: Observer,
    ) -> None:
        self.concurrency = concurrency
        self._session = session
        self._pipelined = pipelined
        self._timeout_s = timeout_s
        self._observer = observer
        self._number = self._parts = 0
        """Requests, and the parts of places that they take, see `Concurrency`."""
        self._ended: SimpleQueue[tuple[int, Ended]] = SimpleQueue()
        """Parts of places that become free, and what has ended."""

    def __len__(self) -> int:
        return self._number

    @property
    def have_ended(self) -> bool:
        """True if `take` would return at once."""
        return not self._ended.empty()

    def start_group(self, group: Group) -> None:
        """Start requests that are for one node, by one push where that can be."""
        first, pipelined = group.requests[0], self._pipelined
        if pipelined:
            # Called once, from the driver's threads or by `expire`.
            on_done = functools.partial(self._end, group.parts)
            if pipelined.send(group.requests, first.node, on_done):
                self._add(len(group.requests), group.parts)
                return
        for request in group.requests:
            self.start(request)

    def repeat(self, failed: Failed) -> None:
        """Start a request again."""
        self._observer.retried(classify(failed.error))
        self.start(failed.request)

    def start(self, request: EncodedBatch) -> None:
        """Start one request, by a future of the driver."""
        request = request.detached()
        parts = self.concurrency.parts(len(request.data))
        statement, sent = bound(request), time.monotonic()
        future = self._session.execute_async(statement, execution_profile=ROWS)
        self._add(1, parts)
        unreported = Lock()

        def end(error: Exception | None) -> None:
            """Queue the end, once; called from the driver's threads.

            The driver reports it twice where a timeout meets the end of its connection (3.30.1: the timer
            sets an error while another thread reports the same one). If both counted, a request that is
            still in flight would be taken for ended, and its rows for acknowledged.
            """
            if not unreported.acquire(blocking=False):
                return
            now = time.monotonic()
            if error is None:
                self._end(parts, Ended(sent, now, 1, lambda: request, ()))
            else:
                self._end(parts, Ended(sent, now, 0, None, [Failed(request, error)]))

        future.add_callbacks(lambda _: end(None), end)

    def _end(self, parts: int, ended: Ended) -> None:
        self._ended.put((parts, ended))

    def is_full(self, parts: int) -> bool:
        """Return True if another request has to end first; the first one may always go."""
        if not self._number:
            return False
        too_many = self._parts + parts > self.concurrency.limit_parts
        return too_many or not can_send(self._session)

    def take(self) -> Ended:
        """Wait for one request or one group to end, which each does: it has a timeout.

        :raises TargetUnavailable: none has, for much longer than that.
        """
        while True:
            late_s = self._pipelined.expire() if self._pipelined else float("inf")
            try:
                parts, ended = self._ended.get(timeout=min(self._timeout_s, late_s))
            except Empty:
                if late_s < self._timeout_s:
                    continue  # `expire` ends those that are late
                raise TargetUnavailable(
                    f"Of {self._number} requests to Cassandra none has ended for {self._timeout_s:.0f} s,"
                    " not even by its timeout: the driver's thread is stalled.",
                    "No action is needed at first: the flush connects again and writes these rows again. If"
                    " that repeats, restart this process and report it.",
                ) from None
            break
        if ended.acknowledged:
            in_flight, these = self._parts / PARTS, parts / PARTS
            self.concurrency.answered(ended.sent, ended.ended, in_flight, these)
        if any(asks_to_slow_down(failed.error) for failed in ended.failed):
            self.concurrency.overloaded(ended.sent, ended.ended)
        self._add(-ended.acknowledged - len(ended.failed), -parts)
        return ended

    def _add(self, requests: int, parts: int) -> None:
        self._number += requests
        self._parts += parts
        self._observer.in_flight = self._number
