"""The requests that are in flight: starts them and gathers their ends.

Requests for one node are gathered into groups, which go by one push. `concurrency` limits their number.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from wal_sink.errors import TargetUnavailable
from wal_sink.flush_metrics import FlushMetrics
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.errors import asks_to_slow_down, classify
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import can_send
from wal_sink.targets.cassandra.driver.pipeline import GROUP_BYTES, Ended, Failed, PipelinedRequests
from wal_sink.targets.cassandra.write.concurrency import PARTS, Concurrency
from wal_sink.targets.cassandra.write.statements import bound

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
    :param pipelined: sends groups, where that can be; None: each request goes by a future.
    :param timeout_s: seconds to wait for requests of which none ends: then they are lost.
    :param metrics: gets the number of requests, and counts those that are sent again.
    """

    def __init__(
        self,
        session: Any,
        concurrency: Concurrency,
        pipelined: PipelinedRequests | None,
        timeout_s: float,
        metrics: FlushMetrics,
    ) -> None:
        self.concurrency = concurrency
        self._session = session
        self._pipelined = pipelined
        self._timeout_s = timeout_s
        self._metrics = metrics
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
        self._metrics.retried(classify(failed.error))
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
        self._metrics.in_flight = self._number
