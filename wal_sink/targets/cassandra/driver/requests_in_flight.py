"""Requests in flight: how many there may be, and many of them by one push over the driver's connections.

For each request the driver makes a future, a timer, a query plan and a write, and each answer wakes a
thread. For a request of ten rows that is most of the cost. Here the requests of a **group** for one node
share a push, a deadline and a notification. Over the whole way the driver's futures took 1.7 times the time,
and 2.3 (grouped rows) or 2.9 times (scattered rows) the CPU.

The driver keeps its connections: it negotiates protocol, login and TLS, and replaces lost connections.

Nothing is repeated here. A request that is refused, times out or loses its connection ends with an error,
and `sender` sends it again through the driver.

The stream of a late answer stays reserved until the answer arrives: another request on it would receive that
answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

from cassandra import OperationTimedOut

from wal_sink.targets.cassandra.driver.connection import ROWS, Connection
from wal_sink.targets.cassandra.driver.errors import is_overload
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, Envelope, envelope
from wal_sink.targets.cassandra.driver.internals import (
    ConnectionException,
    ErrorMessage,
    Streams,
    borrow,
    can_send,
    is_result,
    pools,
)
from wal_sink.telemetry import FlushMetrics

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
    """The limit of requests in flight: slow start, additive increase and multiplicative decrease.

    The algorithm is that of TCP (RFC 5681; Chiu and Jain, 1989). Its signal is the latency, with a bound on
    the time in the server's queue as in LEDBAT (RFC 6817): more requests in the queue raise the latency, and
    not the throughput. A **window** is as many answers as requests may be in flight, about one round trip.
    After each window its mean latency is compared with the good latency: the best window's latency plus
    100 ms, or twice the best if that is more.

    ==============================  =======================================================
    mean latency of a window        requests in flight
    ==============================  =======================================================
    good                            doubled until a window was not good, then one more
    not good                        one less
    more than twice the good one    halved
    ==============================  =======================================================

    An answer that the server is overloaded halves the limit at once. Further such answers to requests that
    were sent before it change nothing. A bound by a multiple of the best latency alone was tried: it takes
    the jitter of a busy machine for a queue, and ends with two requests in flight where sixty-four have three
    times the throughput.

    The limit counts **places**. A large request takes one place. A small request takes a part of a place:
    otherwise too few small requests would be in flight to keep the server busy.

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


GROUP_BYTES = 128 * 1024 - 1
"""The limit of a group: the payload of a segment (native protocol 5, section 2.2). A longer frame goes
alone."""
MOST_REQUESTS = 32
"""The most requests of a group. Twice as many would not save CPU."""
_AT_ONCE = 2
"""The groups that the limit of concurrency allows at once, so the server has work while one is awaited."""
_AROUND = 128
"""The most bytes of a request beside its rows: of the frame, and of the longest keyspace name."""


class FailedRequest(NamedTuple):
    """A request that was not acknowledged."""

    request: EncodedBatch
    error: Exception


class Group:
    """Requests for one node."""

    def __init__(self) -> None:
        self.requests: list[EncodedBatch] = []
        self.places = 0.0
        """The places of the requests, see `Concurrency`."""
        self._bytes = 0

    def add(self, request: EncodedBatch, places: float, most_places: float) -> bool:
        """Add a request, and return True; return False if the group is full.

        An empty group takes any request.
        """
        size = len(request.data) + _AROUND
        if self.requests and (
            len(self.requests) >= MOST_REQUESTS
            or self.places + places > most_places
            or self._bytes + size > GROUP_BYTES
        ):
            return False
        self.requests.append(request)
        self.places += places
        self._bytes += size
        return True


def grouped(requests: Iterable[EncodedBatch], concurrency: Concurrency) -> Iterator[Group]:
    """Yield requests in groups. The requests of a node keep their order.

    Memory holds at most one unfinished group for each node.
    """
    groups: dict[Any, Group] = {}
    most_places = concurrency.limit / _AT_ONCE
    for request in requests:
        places = concurrency.places(len(request.data))
        group = groups.get(request.node)
        if group is None or not group.add(request, places, most_places):
            if group is not None:
                yield group
                most_places = concurrency.limit / _AT_ONCE  # answers may have raised it
            groups[request.node] = group = Group()
            group.add(request, places, most_places)
    yield from groups.values()


class SentGroup:
    """A group that was sent by one push.

    :param streams: one for each request.
    :param on_end: called once, when all requests have ended, by a thread of the driver or by `expire`.
    """

    def __init__(self, group: Group, streams: Streams, on_end: Callable[[SentGroup], None]) -> None:
        self.places = group.places
        self.requests = len(group.requests)
        self.sent_s = time.monotonic()
        self.ended_s: float | None = None
        """The time of the last end, by the monotonic clock; None if a request has not ended."""
        self.acknowledged = 0
        """The number of acknowledged requests."""
        self.witness: EncodedBatch | None = None
        """An acknowledged request."""
        self.failed: list[FailedRequest] = []
        self._streams = streams
        self._waiting = dict(zip(streams.ids, group.requests, strict=True))
        """The requests without an answer, by their streams."""
        self._on_end = on_end
        self._lock = Lock()  # a lost connection ends requests in several threads

    def push(self, frames: bytes) -> None:
        """Send the frames of the requests. If they cannot be sent, the requests end with the error."""
        try:
            self._streams.push(frames, self._answered)
        except Exception as error:  # noqa: BLE001 -- the sender classifies it
            if self._end_all(error):
                self._streams.free()
                self._end()

    def expire(self, timeout_s: float) -> None:
        """End the requests without an answer by a timeout."""
        late = self._end_all(OperationTimedOut(f"no answer within {timeout_s:g} s"))
        if late:
            self._streams.end(self._streams.reserve_late(late))
            self._end()

    def _answered(self, response: Any) -> None:
        """Handle an answer, in a thread of the driver.

        :param response: the stream of rows that are written; or a message of the driver; or the exception
            that ends the connection.
        """
        if isinstance(response, int):
            stream, error = response, None
        elif hasattr(response, "stream_id"):
            stream, error = response.stream_id, _error(response)
        else:
            if self._end_all(response):
                self._streams.end(0)
                self._end()
            return
        with self._lock:
            request = self._waiting.pop(stream, None)
            if request is None:
                return  # ended before
            if error is None:
                self.acknowledged += 1
                self.witness = request
            else:
                self.failed.append(FailedRequest(request, error))
            if self._waiting:
                return
        self._streams.end(0)
        self._end()

    def _end_all(self, error: Exception) -> list[int]:
        """End each request without an answer by an error, and return their streams."""
        with self._lock:
            ended, self._waiting = self._waiting, {}
            self.failed += [FailedRequest(request, error) for request in ended.values()]
            return list(ended)

    def _end(self) -> None:
        self.ended_s = time.monotonic()
        self._on_end(self)


def _error(response: Any) -> Exception | None:
    """Return the error that a message of the driver reports; None if rows are written."""
    if isinstance(response, ErrorMessage):
        refused: Exception = response.to_exception()
        return refused
    if is_result(response):
        return None
    unknown: Exception = ConnectionException(f"unexpected answer to a batch of rows: {response!r}")
    return unknown


class RequestPipeline:
    """Sends groups over the connections of one session, and collects the groups that have ended.

    One thread uses it. Threads of the driver only put ended groups into a queue.

    :param concurrency: limits the requests in flight.
    :param timeout_s: seconds after which a request without an answer has failed.
    :param metrics: gets the number of requests in flight.
    """

    def __init__(
        self,
        connection: Connection,
        concurrency: Concurrency,
        timeout_s: float,
        metrics: FlushMetrics,
    ) -> None:
        self.concurrency = concurrency
        self._session = connection.session
        self._datacenter = connection.datacenter
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._requests = 0
        self._places = 0.0
        self._in_flight: dict[SentGroup, None] = {}
        """The groups that were not awaited, in the order in which they were sent."""
        self._ended: SimpleQueue[SentGroup] = SimpleQueue()
        self._envelopes: dict[str, Envelope] = {}
        self._turn = 0

    def __len__(self) -> int:
        """Return the number of requests whose groups were not awaited."""
        return self._requests

    def has_room(self, places: float) -> bool:
        """Return True if a group may be sent now; False if ended groups have to be awaited first."""
        if not self._requests:
            return True
        if not self._ended.empty() or self._places + places > self.concurrency.limit:
            return False
        return can_send(self._session)

    def send(self, group: Group) -> bool:
        """Send a group; return False if no connection can take it now.

        :param group: requests of one plan.
        """
        first = group.requests[0]
        for pool in self._pools(first.node):
            around = self._around(
                first.statements.keyspace
            )  # before streams are taken: it may raise
            if (streams := borrow(pool, len(group.requests))) is not None:
                sent = SentGroup(group, streams, self._ended.put)
                self._count(sent.requests, sent.places)
                self._in_flight[sent] = None
                sent.push(around.frames(group.requests, streams.ids))
                return True
        return False

    def await_group(self) -> SentGroup:
        """Wait until a group has ended, and return it. Each group ends, at the latest by its timeout.

        Called only while a group is in flight.
        """
        while True:
            late_s = self._expire()
            try:
                sent = self._ended.get(timeout=min(late_s, self._timeout_s))
                break
            except Empty:
                continue  # `_expire` ends late groups
        assert sent.ended_s is not None, "only ended groups are in the queue"
        if sent.acknowledged:
            self.concurrency.answered(sent.sent_s, sent.ended_s, self._places, sent.places)
        if any(is_overload(failed.error) for failed in sent.failed):
            self.concurrency.overloaded(sent.sent_s, sent.ended_s)
        self._count(-sent.requests, -sent.places)
        del self._in_flight[sent]
        return sent

    def _expire(self) -> float:
        """End the groups that are late. Return the seconds until the next group is late."""
        for sent in self._in_flight:
            if sent.ended_s is None:
                remaining_s = sent.sent_s + self._timeout_s - time.monotonic()
                if remaining_s > 0:
                    return remaining_s
                sent.expire(self._timeout_s)
        return float("inf")

    def _count(self, requests: int, places: float) -> None:
        self._requests += requests
        self._places += places
        self._metrics.in_flight = self._requests

    def _around(self, keyspace: str) -> Envelope:
        if keyspace not in self._envelopes:
            self._envelopes[keyspace] = envelope(self._session, ROWS, keyspace)
        return self._envelopes[keyspace]

    def _pools(self, node: Any) -> Iterator[Any]:
        """Yield the pools to try: first the pool of the node, then all pools in turn."""
        by_host = pools(self._session, self._datacenter)
        if node in by_host:
            yield by_host[node]
        self._turn += 1
        others = list(by_host.values())
        for number in range(len(others)):
            yield others[(self._turn + number) % len(others)]
