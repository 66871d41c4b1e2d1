"""Send idempotent requests, several in flight, until all of them are acknowledged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterable
from queue import SimpleQueue
from threading import Lock
from typing import Any, NamedTuple

import tenacity

from wal_sink.errors import TargetUnavailable
from wal_sink.log_context import line_logger
from wal_sink.observer import Observer
from wal_sink.targets.cassandra.driver.classify import asks_to_slow_down, classify, was_not_sent
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.internals import has_room
from wal_sink.targets.cassandra.write.concurrency import Concurrency

log = line_logger(__name__)

PATIENCE = 10.0
"""Seconds without any acknowledgement after which the caller hears of it.

Short: whoever flushes goes on trying for as long as it takes, and can say so meanwhile. But a cluster that
still takes a request now and then is slow and not away: giving up on it would write everything again that it
has taken, and make it slower.
"""


_SAY_AGAIN_S = 10.0


class Ended(NamedTuple):
    """A request that was answered, or never will be."""

    statement: Any
    sent: float
    ended: float
    error: Exception | None


class Sender:
    """Sends requests over one connection. Some are in flight between two calls.

    One thread uses it. The driver's own thread only puts what has ended into a queue.

    :param session: the driver's session.
    :param concurrency: how many may be in flight.
    :param patience: seconds to go on trying while nothing is acknowledged.
    """

    def __init__(self, session: Any, concurrency: Concurrency, patience: float = PATIENCE) -> None:
        self._session = session
        self._concurrency = concurrency
        self._patience = patience
        self._in_flight = 0
        self._ended: SimpleQueue[Ended] = SimpleQueue()
        self._unsent: deque[Any] = deque()
        """For which the socket had no room, just then; each goes out when another one has ended."""
        self._failures: list[Ended] = []
        self.observer = Observer()
        """Told of requests in flight, and of those that are sent again."""
        self._acknowledgements = 0
        self._said = float("-inf")

    def send(self, statements: Iterable[Any]) -> None:
        """Send every statement; return when the last is under way, without waiting for its answer.

        The first failure stops the feed, also one of a statement that an earlier call has sent. What
        was in flight is awaited, what failed is sent again with growing pauses, and then the feed goes
        on: a cluster that struggles is not buried in requests.

        Once this has raised, any of the statements sent since the last `drain` may be lost.

        :param statements: idempotent, each sent at least once; made while others are in flight.
        :raises TargetUnavailable: no success for as long as `patience`.
        :raises Exception: of the driver, at once, when trying again cannot help.
        """
        for statement in statements:
            self._await_room()
            if self._failures:
                self._recover()
            self._start(statement)

    def drain(self) -> None:
        """Wait until everything that was ever sent is acknowledged.

        :raises Exception: what `send` raises.
        """
        self._finish()
        while self._failures:
            self._recover()
            self._finish()

    def abandon(self) -> None:
        """Wait until nothing is in flight, and forget what failed: its rows are not wanted any more."""
        self._await_all()
        self._forget()

    def _start(self, statement: Any) -> None:
        sent = time.monotonic()
        future = self._session.execute_async(statement, execution_profile=ROWS)
        self._in_flight += 1
        self.observer.in_flight = self._in_flight
        about = (statement, sent, Lock())
        future.add_callbacks(
            self._acknowledged, self._refused, callback_args=about, errback_args=about
        )

    def _acknowledged(self, _rows: Any, statement: Any, sent: float, unsaid: Lock) -> None:
        self._end(Ended(statement, sent, time.monotonic(), None), unsaid)

    def _refused(self, error: Exception, statement: Any, sent: float, unsaid: Lock) -> None:
        self._end(Ended(statement, sent, time.monotonic(), error), unsaid)

    def _end(self, ended: Ended, unsaid: Lock) -> None:
        """Take notice of a request's end, once; called from the driver's threads.

        The driver says it twice where a timeout meets the end of its connection (3.30.1: the timer sets an
        error while another thread reports the same one). Counted twice, one that is in flight would be
        taken for ended, and its rows for acknowledged.
        """
        if unsaid.acquire(blocking=False):
            self._ended.put(ended)

    def _await_room(self) -> None:
        """Wait until one more may be in flight, and nothing waits for it already."""
        while True:
            while not self._ended.empty() or self._is_full():
                self._take()
            if not self._unsent:
                return
            if self._in_flight:
                self._take()
            self._start(self._unsent.popleft())

    def _is_full(self) -> bool:
        """Whether another request has to end first; when there is none, the next one tells what is wrong."""
        if self._in_flight >= self._concurrency.limit:
            return True
        return self._in_flight > 0 and not has_room(self._session)

    def _await_all(self) -> None:
        while self._in_flight:
            self._take()

    def _finish(self) -> None:
        """Send what is unsent, and wait until nothing is in flight."""
        while self._in_flight or self._unsent:
            self._await_room()
            self._await_all()

    def _forget(self) -> None:
        self._failures.clear()
        self._unsent.clear()

    def _take(self) -> None:
        """Wait for one request to end. The driver ends each in time, be it by a timeout."""
        ended = self._ended.get()
        others = self._in_flight - 1
        if ended.error is None:
            self._acknowledgements += 1
            self._concurrency.answered(ended.sent, ended.ended, self._in_flight)
        elif others and was_not_sent(ended.error):
            self._unsent.append(ended.statement)
        else:
            self._failures.append(ended)
            if asks_to_slow_down(ended.error):
                self._concurrency.overloaded(ended.sent, ended.ended)
        self._in_flight = others
        self.observer.in_flight = others

    def _recover(self) -> None:
        """Send what failed again until it is acknowledged, or patience ends."""
        self._await_all()
        self._say(
            "%d requests failed, the first with %r", len(self._failures), self._failures[0].error
        )
        try:
            while not self._is_recovered():
                pass  # it got on: patience begins anew
        except Exception as error:
            left = len(self._failures)
            self._forget()  # whoever hears of it writes everything again
            if classify(error) == "fatal":
                raise
            raise TargetUnavailable(
                f"Cassandra did not acknowledge {left} requests for {self._patience:.0f} s: {error}",
                "See to the cluster; the rows are safe in the log and will be written again.",
            ) from error

    def _is_recovered(self) -> bool:
        """Send what failed again, with growing pauses; False: some of it is acknowledged, and not all.

        :raises Exception: patience has ended, or it is worth no other try.
        """
        taken = self._acknowledgements
        for attempt in retrying(self._patience):
            with attempt:
                # The first attempt is the one that failed already.
                if attempt.retry_state.attempt_number > 1:
                    self._send_failures()
                if self._failures and self._acknowledgements == taken:
                    raise _worst(self._failures)
        return not self._failures

    def _say(self, message: str, *about: object) -> None:
        """Warn, now and then: an overloaded cluster may refuse something every second, for hours."""
        now = time.monotonic()
        again = now - self._said < _SAY_AGAIN_S
        log.log(logging.DEBUG if again else logging.WARNING, message, *about)
        self._said = now if not again else self._said

    def _send_failures(self) -> None:
        """Send what failed until one fails again; what was not sent by then stays a failure."""
        waiting, self._failures = deque(self._failures), []
        while waiting and not self._failures:
            failed = waiting.popleft()
            if failed.error is not None:
                self.observer.retried(classify(failed.error))
            self._start(failed.statement)
            self._await_room()
        self._finish()
        self._failures.extend(waiting)


def retrying(patience: float) -> tenacity.Retrying:
    """Try again what may pass, with growing, random pauses, for `patience` seconds."""
    return tenacity.Retrying(
        retry=tenacity.retry_if_exception(_may_pass),
        wait=tenacity.wait_random_exponential(multiplier=0.2, max=3.0),
        stop=tenacity.stop_after_delay(patience),
        reraise=True,
    )


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, Exception) and classify(error) != "fatal"


def _worst(failures: list[Ended]) -> Exception:
    errors = [failure.error for failure in failures if failure.error is not None]
    kinds = {classify(error): error for error in errors}
    return kinds.get("fatal") or kinds.get("throttle") or errors[0]
