"""The requests in flight: rows go through the driver's connections, many requests by one push.

The driver makes a future for each request, with a timer, a plan of nodes and a write of its own, and each
answer wakes a thread: five times what a request of ten rows costs otherwise, or more. Here the requests of
a **group** for one node share a push, a deadline and one notification. The driver's connections are kept:
it has negotiated their protocol, login and TLS, watches them, and replaces them. Measured over the whole way,
the driver's futures take 1.7 times the time, and 2.3 (grouped rows) or 2.9 times (scattered ones) the CPU.

Nothing is repeated here. What is refused, times out or is lost with its connection ends with its error, and
`write.sender` sends it again by the driver's own way.

A stream whose answer is late stays out of use until it comes, as the driver itself does it: another request
on it would take the old answer for its own.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

from cassandra import OperationTimedOut

from wal_sink.flush_metrics import FlushMetrics
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.errors import asks_to_slow_down
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, Envelope, Frames, envelope
from wal_sink.targets.cassandra.driver.internals import (
    ConnectionException,
    ErrorMessage,
    Streams,
    borrow,
    can_send,
    is_result,
    pools,
)

GROUP_BYTES = 128 * 1024 - 1
"""Of a group: the payload of one segment (native protocol 5, section 2.2); a frame above it goes alone."""
MOST_REQUESTS = 32
"""Of a group: twice as many cost no less CPU a row."""
_AT_ONCE = 2
"""Groups that may be in flight: while one is awaited, the server has others."""
_AROUND = 128
"""Bytes of a request beside its rows, at most: of its frame, and the longest name of a keyspace."""


class Failed(NamedTuple):
    """A request that is not acknowledged."""

    request: EncodedBatch
    error: Exception


class Group:
    """Requests for one node."""

    def __init__(self) -> None:
        self.requests: list[EncodedBatch] = []
        self.places = 0.0
        """See `Concurrency`."""
        self._bytes = 0

    def add(self, request: EncodedBatch, places: float, most_places: float) -> bool:
        """Add a request if it fits; return False if it does not. To an empty group any may be added."""
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
    """Yield requests in groups, those of a node in their order.

    A request waits until the next one does not fit into its group, so the memory holds one group for each
    node.
    """
    groups: dict[Any, Group] = {}
    most_places = concurrency.limit / _AT_ONCE
    for request in requests:
        places = concurrency.places(len(request.data))
        group = groups.get(request.node)
        if group is None or not group.add(request, places, most_places):
            if group is not None:
                yield group
                most_places = concurrency.limit / _AT_ONCE  # answers have come meanwhile
            groups[request.node] = group = Group()
            group.add(request, places, most_places)
    yield from groups.values()


class Sent:
    """A group that was sent by one push.

    It holds the frames of its requests until it is released, and neither the requests nor the slice that they
    are part of.

    :param frames: of the requests, one for each stream.
    :param places: that they take, see `Concurrency`.
    :param on_end: called once, by one of the driver's threads or by `expire`, when all have ended.
    """

    def __init__(
        self, frames: Frames, streams: Streams, places: float, on_end: Callable[[Sent], None]
    ) -> None:
        self.places = places
        self.requests = len(streams.ids)
        self.sent_s = time.monotonic()
        self.ended_s: float | None = None
        """Seconds of the monotonic clock; None: some have not ended."""
        self.acknowledged = 0
        """The number of requests that are."""
        self.failed: list[Failed] = []
        self._frames: Frames | None = frames
        self._acknowledged_place = 0
        """Where in the frames a request is that is acknowledged, if there is one."""
        self._streams = streams
        self._waiting = {stream: place for place, stream in enumerate(streams.ids)}
        """Where in the frames each request is that has not ended, by its stream."""
        self._on_end = on_end
        self._lock = Lock()  # the driver ends many requests of a lost connection in another thread

    def push(self) -> None:
        """Send the requests; those that cannot be sent have ended."""
        try:
            assert self._frames is not None, "not pushed yet"
            self._streams.push(self._frames.data, self._answered)
        except Exception as error:  # noqa: BLE001 -- the caller judges it
            if self._end_all(error):
                self._streams.unsent()
                self._end()

    def expire(self, timeout_s: float) -> None:
        """End what has no answer yet."""
        late = self._end_all(OperationTimedOut(f"no answer within {timeout_s:g} s"))
        if late:
            self._streams.returned(self._streams.abandoned(late))
            self._end()

    def release(self) -> Callable[[], EncodedBatch] | None:
        """Drop the frames, once all requests have ended.

        :returns: what makes one of the requests that are acknowledged, by a copy of its bytes; None: there
            is none.
        """
        frames, self._frames = self._frames, None
        assert frames is not None, "released once"
        place = self._acknowledged_place
        return functools.partial(frames.request, place) if self.acknowledged else None

    def _answered(self, response: Any) -> None:
        """Take an answer; called by the driver's threads.

        :param response: the stream whose rows are written; or a message; or what ends the connection.
        """
        if isinstance(response, int):
            stream, error = response, None
        elif hasattr(response, "stream_id"):
            stream, error = response.stream_id, _error(response)
        else:
            if self._end_all(response):
                self._streams.returned(0)
                self._end()
            return
        with self._lock:
            place = self._waiting.pop(stream, None)
            if place is None:
                return  # it has ended before
            if error is None:
                self.acknowledged += 1
                self._acknowledged_place = place
            else:
                self._fail([place], error)
            if self._waiting:
                return
        self._streams.returned(0)
        self._end()

    def _end_all(self, error: Exception) -> list[int]:
        """End each request that has no answer with an error, and return their streams."""
        with self._lock:
            ended, self._waiting = self._waiting, {}
            if ended:
                self._fail(ended.values(), error)
            return list(ended)

    def _fail(self, places: Iterable[int], error: Exception) -> None:
        assert self._frames is not None, "not released yet"
        self.failed += [Failed(self._frames.request(place), error) for place in places]

    def _end(self) -> None:
        self.ended_s = time.monotonic()
        self._on_end(self)


def _error(response: Any) -> Exception | None:
    """Return what a message of the driver says has failed; None: rows are written."""
    if isinstance(response, ErrorMessage):
        refused: Exception = response.to_exception()
        return refused
    if is_result(response):
        return None
    unknown: Exception = ConnectionException(f"an answer to rows that is none: {response!r}")
    return unknown


class RequestPipeline:
    """Sends groups over the connections of one session, and gathers their ends.

    One thread uses it. The driver's threads only put what has ended into a queue.

    :param session: the driver's.
    :param datacenter: the local one.
    :param concurrency: the law of requests in flight.
    :param timeout_s: after which a request without an answer has failed.
    :param metrics: gets the number of requests in flight.
    """

    def __init__(
        self,
        session: Any,
        datacenter: str,
        concurrency: Concurrency,
        timeout_s: float,
        metrics: FlushMetrics,
    ) -> None:
        self.concurrency = concurrency
        self._session = session
        self._datacenter = datacenter
        self._timeout_s = timeout_s
        self._metrics = metrics
        self._requests = 0
        self._places = 0.0
        self._in_flight: deque[Sent] = deque()
        """In the order in which they were sent; some have ended."""
        self._ended: SimpleQueue[Sent] = SimpleQueue()
        self._envelopes: dict[str, Envelope] = {}
        self._turn = 0

    def __len__(self) -> int:
        """Return the number of requests that have not been taken."""
        return self._requests

    def has_room(self, places: float) -> bool:
        """Return True if a group may be sent now; False if the ends of others have to be taken before."""
        if not self._requests:
            return True
        if not self._ended.empty() or self._places + places > self.concurrency.limit:
            return False
        return can_send(self._session)

    def send(self, group: Group) -> bool:
        """Send a group. Return False if no connection takes it now.

        :param group: of one plan; several requests have `GROUP_BYTES` together at most.
        """
        first = group.requests[0]
        for pool in self._pools(first.node):
            if (streams := borrow(pool, len(group.requests))) is not None:
                around = self._around(first.statements.keyspace)
                frames = around.frames(group.requests, streams.ids)
                sent = Sent(frames, streams, group.places, self._ended.put)
                self._count(sent.requests, sent.places)
                self._in_flight.append(sent)
                sent.push()
                return True
        return False

    def take(self) -> Sent:
        """Wait until a group has ended, which each does: it has a timeout.

        It is called only while a group is in flight.
        """
        while True:
            late_s = self._expire()
            try:
                sent = self._ended.get(timeout=min(late_s, self._timeout_s))
                break
            except Empty:
                continue  # `_expire` ends what is late
        assert sent.ended_s is not None, "put into the queue at its end"
        if sent.acknowledged:
            self.concurrency.answered(sent.sent_s, sent.ended_s, self._places, sent.places)
        if any(asks_to_slow_down(failed.error) for failed in sent.failed):
            self.concurrency.overloaded(sent.sent_s, sent.ended_s)
        self._count(-sent.requests, -sent.places)
        return sent

    def _expire(self) -> float:
        """End the groups that have waited too long; return the seconds until others will have."""
        while self._in_flight:
            sent = self._in_flight[0]
            if sent.ended_s is None:
                remaining_s = sent.sent_s + self._timeout_s - time.monotonic()
                if remaining_s > 0:
                    return remaining_s
                sent.expire(self._timeout_s)
            self._in_flight.popleft()
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
        """Yield the pools to try: that of the node, then all, another one first each time."""
        by_host = pools(self._session, self._datacenter)
        if node in by_host:
            yield by_host[node]
        self._turn += 1
        others = list(by_host.values())
        for number in range(len(others)):
            yield others[(self._turn + number) % len(others)]
