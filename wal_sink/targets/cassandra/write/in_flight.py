"""The requests that are in flight: starts them, and hears of their ends."""

from __future__ import annotations

import functools
import time
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any

from wal_sink.errors import TargetUnavailable
from wal_sink.observer import Observer
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, of_driver
from wal_sink.targets.cassandra.driver.internals import has_room
from wal_sink.targets.cassandra.driver.light import LightRequests, Sent
from wal_sink.targets.cassandra.write.concurrency import PARTS, Concurrency
from wal_sink.targets.cassandra.write.ended import Ended, all_of, answered, refused
from wal_sink.targets.cassandra.write.groups import Group


class InFlight:
    """Requests of one session that have not ended.

    One thread uses it. The driver's threads only put what has ended into a queue.

    :param session: the driver's session.
    :param light: by which groups of encoded rows go, where that can be; None: each request by a future.
    :param timeout_s: seconds to wait for requests of which none ends: then they are lost.
    """

    def __init__(
        self,
        session: Any,
        concurrency: Concurrency,
        light: LightRequests | None,
        timeout_s: float,
    ) -> None:
        self.observer = Observer()
        """Told how many there are."""
        self._session = session
        self._concurrency = concurrency
        self._light = light
        self._timeout_s = timeout_s
        self._number = self._parts = 0
        """Requests, and the parts of places that they take, see `Concurrency`."""
        self._ended: SimpleQueue[Ended] = SimpleQueue()

    def __len__(self) -> int:
        return self._number

    @property
    def have_ended(self) -> bool:
        """Whether `take` would return at once."""
        return not self._ended.empty()

    def start_group(self, group: Group) -> None:
        """Start requests that are for one node, by one push where that can be."""
        first, light = group.requests[0], self._light
        if light and isinstance(first, EncodedBatch):
            told = functools.partial(self._end_group, group.parts)
            if light.send(group.requests, first.node, told):
                self._add(len(group.requests), group.parts)
                return
        for statement in group.requests:
            self.start(statement)

    def _end_group(self, parts: int, sent: Sent) -> None:
        """Queue the end of a group; called once, from the driver's threads or by `expire`."""
        self._ended.put(all_of(sent, parts))

    def start(self, statement: Any) -> None:
        """Start one request, by a future of the driver."""
        if isinstance(statement, EncodedBatch):
            statement = statement.detached()
        sent = time.monotonic()
        future = self._session.execute_async(of_driver(statement), execution_profile=ROWS)
        parts = self._parts_of(statement)
        self._add(1, parts)
        about = (statement, sent, parts, Lock())
        future.add_callbacks(
            self._acknowledged, self._refused, callback_args=about, errback_args=about
        )

    def _acknowledged(
        self, rows: Any, statement: Any, sent: float, parts: int, unreported: Lock
    ) -> None:
        self._end(answered(statement, sent, time.monotonic(), parts, rows), unreported)

    def _refused(
        self, error: Exception, statement: Any, sent: float, parts: int, unreported: Lock
    ) -> None:
        self._end(refused(statement, sent, time.monotonic(), parts, error), unreported)

    def _end(self, ended: Ended, unreported: Lock) -> None:
        """Queue a request's end, once; called from the driver's threads.

        The driver reports it twice where a timeout meets the end of its connection (3.30.1: the timer sets
        an error while another thread reports the same one). If both counted, a request that is still in
        flight would be taken for ended, and its rows for acknowledged.
        """
        if unreported.acquire(blocking=False):
            self._ended.put(ended)

    def is_full(self, parts: int) -> bool:
        """Whether another request has to end first; with none in flight the next one shows what is wrong."""
        if not self._number:
            return False
        too_many = self._parts + parts > self._concurrency.limit_parts
        return too_many or not has_room(self._session)

    def take(self) -> Ended:
        """Wait for one request or one group to end, which each does: it has a timeout.

        :raises TargetUnavailable: none has, for much longer than that; see `driver/answers.py`.
        """
        while True:
            late_s = self._light.expire() if self._light else float("inf")
            try:
                ended = self._ended.get(timeout=min(self._timeout_s, late_s))
            except Empty:
                if late_s < self._timeout_s:
                    continue  # `expire` ends those that are late by now
                raise TargetUnavailable(
                    f"Of {self._number} requests to Cassandra none has ended for {self._timeout_s:.0f} s,"
                    " not even by its timeout: the driver's thread stands still",
                    "Nothing: the flush connects anew and writes these rows again. If it goes on, restart"
                    " this process and report it.",
                ) from None
            break
        if ended.acknowledged:
            in_flight, these = self._parts / PARTS, ended.parts / PARTS
            self._concurrency.answered(ended.sent, ended.ended, in_flight, these)
        self._add(-ended.number, -ended.parts)
        return ended

    def _add(self, requests: int, parts: int) -> None:
        self._number += requests
        self._parts += parts
        self.observer.in_flight = self._number

    def _parts_of(self, statement: Any) -> int:
        """Return how many parts of a place a request takes."""
        if not isinstance(statement, EncodedBatch):
            return PARTS
        return self._concurrency.parts(len(statement.rows.data))
