"""Sends requests in groups over the driver's connections.

For each request the driver makes a future, a timer, a query plan and a system call, and each answer wakes a
thread. For a request of ten rows this is most of the cost. Here all requests of a **group**, which go to one
node, share one system call, one timeout and one notification. With the driver's futures, a flush took 1.7
times as long, and 2.3 times the CPU; or 2.9 times the CPU if no rows of a partition shared a request.

The driver opens the connections, negotiates protocol, login and TLS, and replaces lost connections.

This module repeats no request. A request that is refused, times out or loses its connection ends with an
error. Then `sender` repeats the request through the driver.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

from cassandra import OperationTimedOut

from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.connection import ROWS, Connection
from wal_sink.targets.cassandra.driver.errors import is_overload
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, envelope
from wal_sink.targets.cassandra.driver.internals import (
    RESULT,
    ConnectionException,
    ErrorMessage,
    Streams,
    borrow,
    can_send,
    pools,
)
from wal_sink.telemetry import FlushMetrics

GROUP_BYTES = 128 * 1024 - 1
"""The most bytes of a group of requests, so that a group fits into the payload of a segment (native protocol
5, section 2.2). A longer request is a group of its own."""
MOST_REQUESTS = 32
"""The most requests of a group. Twice as many would not save CPU."""
_GROUPS = 2
"""The least number of groups in flight at the limit. So the server has work while one group is awaited."""
_OVERHEAD = 128
"""The most bytes of a request beside its rows: the frame, and the longest keyspace name."""


class FailedRequest(NamedTuple):
    """A request that has ended with an error."""

    request: EncodedBatch
    error: Exception


class Group:
    """Requests for one node, which are sent together."""

    def __init__(self) -> None:
        self.requests: list[EncodedBatch] = []
        self.places = 0.0
        """The places that the requests take, see `Concurrency`."""
        self._bytes = 0

    def add(self, request: EncodedBatch, places: float, most_places: float) -> bool:
        """Add a request, and return True; or return False if the group has no room for the request.

        An empty group has room for any request.

        :param places: the places that the request takes.
        :param most_places: the places that the group may take.
        """
        size = len(request.data) + _OVERHEAD
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
    """Yield requests in groups. The requests of one node keep their order.

    At most one unfinished group for each node is in memory.
    """
    groups: dict[Any, Group] = {}
    most_places = concurrency.limit / _GROUPS
    for request in requests:
        places = concurrency.places(len(request.data))
        group = groups.get(request.node)
        if group is None or not group.add(request, places, most_places):
            if group is not None:
                yield group
                most_places = concurrency.limit / _GROUPS  # answers may have raised it
            groups[request.node] = group = Group()
            group.add(request, places, most_places)
    yield from groups.values()


class SentGroup:
    """A group in flight. It ends when each request has an answer or an error.

    :param streams: one stream of the connection for each request.
    :param on_end: called once when the group ends, perhaps in a thread of the driver.
    """

    def __init__(self, group: Group, streams: Streams, on_end: Callable[[SentGroup], None]) -> None:
        self.places = group.places
        self.requests = len(group.requests)
        self.sent_s = time.monotonic()
        self.ended_s: float | None = None
        """The time at which the group ended, by the monotonic clock; None before."""
        self.acknowledged = 0
        self.witness: EncodedBatch | None = None
        """An acknowledged request; None if no request is acknowledged."""
        self.failed: list[FailedRequest] = []
        self._streams = streams
        self._waiting = dict(zip(streams.ids, group.requests, strict=True))
        """The requests without an answer, by their streams."""
        self._on_end = on_end
        self._lock = Lock()  # answers and the loss of the connection may be handled in two threads

    def push(self, frames: bytes) -> None:
        """Send the frames of the requests. If the sending fails, the requests end with its error."""
        try:
            self._streams.push(frames, self._answered)
        except Exception as error:  # noqa: BLE001 -- the sender classifies it
            if self._end_all(error):
                self._streams.free()
                self._end()

    def expire(self, timeout_s: float) -> None:
        """End the requests that have no answer, with the error of a timeout.

        The streams of these requests stay reserved until the answers arrive. Otherwise another request on
        such a stream would receive the late answer.
        """
        if late := self._end_all(OperationTimedOut(f"no answer within {timeout_s:g} s")):
            self._streams.end(self._streams.reserve_late(late))
            self._end()

    def _answered(self, response: Any) -> None:
        """Handle an answer, in a thread of the driver.

        :param response: the stream of an acknowledged request; the driver's message for any other answer; or
            the exception that ends the connection.
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
                return  # the request has ended already
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
        """Let every request without an answer fail with `error`. Return the streams of these requests."""
        with self._lock:
            ended, self._waiting = self._waiting, {}
            self.failed += [FailedRequest(request, error) for request in ended.values()]
            return list(ended)

    def _end(self) -> None:
        self.ended_s = time.monotonic()
        self._on_end(self)


def _error(response: Any) -> Exception | None:
    """Return the error that a message of the driver reports; None for a success."""
    if isinstance(response, ErrorMessage):
        refused: Exception = response.to_exception()
        return refused
    if getattr(response, "opcode", None) == RESULT:
        return None
    unknown: Exception = ConnectionException(f"unexpected answer to a batch of rows: {response!r}")
    return unknown


class RequestPipeline:
    """Sends groups over the connections of one session, and collects the groups that have ended.

    One thread calls the methods. Threads of the driver only put ended groups into a queue.

    :param timeout_s: seconds after which a request without an answer ends with an error.
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
        """The groups that `await_group` has not returned yet, in the order of sending."""
        self._ended: SimpleQueue[SentGroup] = SimpleQueue()
        self._envelope = functools.cache(partial(envelope, self._session, ROWS))
        self._rotation = 0

    def __len__(self) -> int:
        """Return the number of requests whose groups `await_group` has not returned yet."""
        return self._requests

    def has_room(self, places: float) -> bool:
        """Return True if a group that takes `places` may be sent before the next `await_group`."""
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
            # Made before streams are borrowed, because after an exception the streams would stay reserved.
            surroundings = self._envelope(first.statements.keyspace)
            if (streams := borrow(pool, len(group.requests))) is not None:
                sent = SentGroup(group, streams, self._ended.put)
                self._count(sent.requests, sent.places)
                self._in_flight[sent] = None
                sent.push(surroundings.frames(group.requests, streams.ids))
                return True
        return False

    def await_group(self) -> SentGroup:
        """Wait until a group has ended, at the latest by its timeout, and return the group.

        Called only while a group is in flight.
        """
        sent: SentGroup | None = None
        while sent is None:
            timeout_s = self._expire()
            with contextlib.suppress(Empty):
                sent = self._ended.get(timeout=timeout_s)
        assert sent.ended_s is not None, "only ended groups are in the queue"
        if sent.acknowledged:
            self.concurrency.answered(sent.sent_s, sent.ended_s, self._places, sent.places)
        if any(is_overload(failed.error) for failed in sent.failed):
            self.concurrency.overloaded(sent.sent_s, sent.ended_s)
        self._count(-sent.requests, -sent.places)
        del self._in_flight[sent]
        return sent

    def _expire(self) -> float:
        """End the groups whose timeout is over. Return the seconds until the next timeout."""
        for sent in self._in_flight:
            if sent.ended_s is None:
                remaining_s = sent.sent_s + self._timeout_s - time.monotonic()
                if remaining_s > 0:
                    return remaining_s
                sent.expire(self._timeout_s)
        return self._timeout_s

    def _count(self, requests: int, places: float) -> None:
        self._requests += requests
        self._places += places
        self._metrics.in_flight = self._requests

    def _pools(self, node: Any) -> Iterator[Any]:
        """Yield the pool of a node, then all pools in an order that is rotated at each call."""
        by_host = pools(self._session, self._datacenter)
        if node in by_host:
            yield by_host[node]
        self._rotation += 1
        rotated = deque(by_host.values())
        rotated.rotate(self._rotation)
        yield from rotated
