"""Pipelined requests: rows go through the driver's connections, many requests by one push.

The driver makes a future for each request, with a timer, a plan of nodes and a write of its own, and each
answer wakes a thread: five times what a request of ten rows costs otherwise, or more. Here the requests of
a **group** for one node share a push, a deadline and one notification. The driver's connections are kept:
it has negotiated their protocol, login and TLS, watches them, and replaces them. Measured over the whole way,
the driver's futures take 1.7 times the time, and 2.3 (grouped rows) or 2.9 times (scattered ones) the CPU.

Nothing is repeated here. What is refused, times out or is lost with its connection ends with its error, and
the caller sends it again by the driver's own way. That is also the way of a request for which the driver has
no connection, and of all requests with a driver that was not tested.

A stream whose answer is late stays out of use until it comes, as the driver itself does it: another request
on it would take the old answer for its own.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple

import cassandra
from cassandra import OperationTimedOut

from wal_sink.log_context import line_logger
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, Envelope, Frames, envelope
from wal_sink.targets.cassandra.driver.internals import (
    TESTED,
    ConnectionException,
    ErrorMessage,
    Streams,
    borrow,
    is_result,
    is_tested,
    pools,
)

log = line_logger(__name__)

GROUP_BYTES = 128 * 1024 - 1
"""Of a group: the payload of one segment (native protocol 5, section 2.2); a frame above it goes alone."""


class Failed(NamedTuple):
    """A request that is not acknowledged."""

    request: EncodedBatch
    """With bytes of its own."""
    error: Exception


class Ended(NamedTuple):
    """Requests that have ended together: one, or those that went by one push."""

    sent: float
    ended: float
    """Both in seconds of the monotonic clock."""
    acknowledged: int
    """How many are."""
    last: Callable[[], EncodedBatch] | None
    """Returns one of those that are acknowledged; it is seldom wanted, and takes a copy of its bytes."""
    failed: Sequence[Failed]
    is_pipelined: bool = False
    """Whether they went by one push, and not by a future of the driver."""


class Sent:
    """Requests that went by one push.

    It holds their frames until all have ended, and neither the requests nor the slice that they are part of.

    :param frames: of the requests, one for each stream.
    :param sent: seconds of the monotonic clock.
    :param on_done: called once, by one of the driver's threads or by `expire`, when all have ended.
    """

    def __init__(
        self,
        frames: Frames,
        streams: Streams,
        sent: float,
        on_done: Callable[[Ended], None],
    ) -> None:
        self.sent = sent
        self.has_ended = False
        self._frames: Frames | None = frames
        self._streams = streams
        self._waiting = {stream: place for place, stream in enumerate(streams.ids)}
        """Where in the frames each request is that has not ended, by its stream."""
        self._failed: list[Failed] = []
        self._acknowledged = 0
        self._written = -1
        """The place of one that is acknowledged."""
        self._on_done = on_done
        self._lock = Lock()  # the driver ends many requests of a lost connection in another thread

    def push(self) -> None:
        """Send the requests; those that cannot be sent have ended."""
        try:
            assert self._frames is not None, "not pushed yet"
            self._streams.push(self._frames.data, self._answered)
        except Exception as error:  # noqa: BLE001 -- the caller judges it
            if self._end_all(error):
                self._streams.unsent()
                self._report()

    def expire(self, timeout_s: float) -> None:
        """End what has no answer yet."""
        late = self._end_all(OperationTimedOut(f"no answer within {timeout_s:g} s"))
        if late:
            self._streams.returned(self._streams.abandoned(late))
            self._report()

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
                self._report()
            return
        with self._lock:
            place = self._waiting.pop(stream, None)
            if place is None:
                return  # it has ended before
            if error is None:
                self._acknowledged += 1
                self._written = place
            else:
                self._fail([place], error)
            if self._waiting:
                return
        self._streams.returned(0)
        self._report()

    def _end_all(self, error: Exception) -> list[int]:
        """End each request that has no answer with an error, and return their streams."""
        with self._lock:
            ended, self._waiting = self._waiting, {}
            if ended:
                self._fail(ended.values(), error)
            return list(ended)

    def _fail(self, places: Iterable[int], error: Exception) -> None:
        assert self._frames is not None, "not all had ended"
        self._failed += [Failed(self._frames.request(place), error) for place in places]

    def _report(self) -> None:
        frames, self._frames = self._frames, None  # `expire` may find this late
        assert frames is not None, "told once"
        last = functools.partial(frames.request, self._written) if self._written >= 0 else None
        ended, failed = time.monotonic(), self._failed
        self.has_ended = True
        self._on_done(Ended(self.sent, ended, self._acknowledged, last, failed, is_pipelined=True))


def _error(response: Any) -> Exception | None:
    """Return what a message of the driver says has failed; None: rows are written."""
    if isinstance(response, ErrorMessage):
        refused: Exception = response.to_exception()
        return refused
    if is_result(response):
        return None
    unknown: Exception = ConnectionException(f"an answer to rows that is none: {response!r}")
    return unknown


def pipelined_requests(session: Any, datacenter: str, timeout_s: float) -> PipelinedRequests | None:
    """Return what sends groups, see `PipelinedRequests`; None, with a warning, for an untested driver."""
    if is_tested():
        return PipelinedRequests(session, datacenter, timeout_s)
    log.warning(
        "cassandra-driver %s was not tested: it may handle requests and answers in another way than"
        " %s. Rows are written by its public classes, which takes several times the CPU.",
        *(cassandra.__version__, TESTED),
    )
    return None


class PipelinedRequests:
    """Sends groups over the connections of one session. One thread uses it.

    :param session: the driver's.
    :param datacenter: the local one.
    :param timeout_s: after which a request without an answer has failed.
    """

    def __init__(self, session: Any, datacenter: str, timeout_s: float) -> None:
        self._session = session
        self._datacenter = datacenter
        self._timeout_s = timeout_s
        self._in_flight: deque[Sent] = deque()
        self._envelopes: dict[str, Envelope] = {}
        self._next = 0

    def send(
        self, requests: Sequence[EncodedBatch], node: Any, on_done: Callable[[Ended], None]
    ) -> bool:
        """Send requests to a node. Return True if they went this way: then `on_done` is called at their end.

        :param requests: at least one, of one plan; several have `GROUP_BYTES` together at most.
        :param node: the driver's host; None: any of the datacenter.
        """
        around = self._around(requests[0].statements.keyspace)
        if (streams := self._borrowed(node, len(requests))) is None:
            return False
        frames = around.frames(requests, streams.ids)
        these = Sent(frames, streams, time.monotonic(), on_done)
        self._in_flight.append(these)
        these.push()
        return True

    def expire(self) -> float:
        """End the requests that have waited too long; return the seconds until others will have."""
        while self._in_flight:
            these = self._in_flight[0]
            if not these.has_ended:
                remaining_s = these.sent + self._timeout_s - time.monotonic()
                if remaining_s > 0:
                    return remaining_s
                these.expire(self._timeout_s)
            self._in_flight.popleft()
        return float("inf")

    def _around(self, keyspace: str) -> Envelope:
        if keyspace not in self._envelopes:
            self._envelopes[keyspace] = envelope(self._session, ROWS, keyspace)
        return self._envelopes[keyspace]

    def _borrowed(self, node: Any, number: int) -> Streams | None:
        for pool in self._candidates(node):
            if (streams := borrow(pool, number)) is not None:
                return streams
        return None

    def _candidates(self, node: Any) -> Iterator[Any]:
        """Yield the pools to try: of the node, or of all, another one first each time."""
        by_host = pools(self._session, self._datacenter)
        if node is not None:
            yield from [by_host[node]] if node in by_host else []
            return
        self._next += 1
        every = list(by_host.values())
        for number in range(len(every)):
            yield every[(self._next + number) % len(every)]
