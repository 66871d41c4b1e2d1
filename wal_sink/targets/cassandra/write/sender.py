"""Sends idempotent requests, several in flight, until all of them are acknowledged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from wal_sink.errors import TargetUnavailable, WalSinkError
from wal_sink.log_context import line_logger
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.errors import (
    PATIENCE_S,
    asks_to_slow_down,
    classify,
    execute,
    is_refused,
    longest_s,
    may_be_a_row,
    retrying,
    was_not_sent,
)
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import PreparedQueryNotFound
from wal_sink.targets.cassandra.driver.pipeline import Failed, PipelinedRequests
from wal_sink.targets.cassandra.write.in_flight import PARTS, Bind, Concurrency, InFlight, grouped
from wal_sink.targets.cassandra.write.refusals import Refusals
from wal_sink.text import counted

log = line_logger(__name__)

_WARN_EVERY_S = 10.0
_LOOK_AT_ROWS = 4
"""Attempts, a second in all, after which a failure that may pass is looked at row by row."""


class Sender:
    """Sends requests over one connection. Some are in flight between two calls.

    One thread uses it. The driver's threads only put requests that have ended into a queue.

    :param session: the driver's session.
    :param concurrency: how many may be in flight.
    :param bind: returns a request as the driver takes it.
    :param patience: seconds to go on trying while no request is acknowledged.
    :param describe: names the first row of a request.
    :param timeout_s: seconds to wait for requests in flight of which none ends: then they are lost.
    :param pipelined: by which requests go at first; what fails goes by the driver's futures.
    """

    def __init__(
        self,
        session: Any,
        concurrency: Concurrency,
        bind: Bind,
        patience: float = PATIENCE_S,
        describe: Callable[[EncodedBatch], str] = str,
        timeout_s: float = longest_s(PATIENCE_S),
        pipelined: PipelinedRequests | None = None,
    ) -> None:
        self._session = session
        self._concurrency = concurrency
        self._bind = bind
        self._patience = patience
        self._timeout_s = timeout_s
        self.in_flight = InFlight(session, concurrency, bind, pipelined, timeout_s)
        self._unsent: deque[EncodedBatch] = deque()
        """Requests for which the socket had no room at that moment; each goes out when another has ended."""
        self._failures: list[Failed] = []
        self._acknowledgements = 0
        self.repeats = True
        """Whether a request that has failed is sent again. Not where that would double what it has written:
        then its error is raised at once. What was certainly not carried out is sent again all the same."""
        self._taken: Callable[[], EncodedBatch] | None = None
        """Returns the request that was acknowledged last, of those since the last `drain`."""
        self.refusals = Refusals(describe, self._try, self._takes_others)
        self._warned = float("-inf")

    def send(self, requests: Iterable[EncodedBatch]) -> None:
        """Send every request; return when the last is under way, without waiting for its answer.

        The first failure stops the feed, also that of a request which an earlier call has sent. The sender
        then awaits what is in flight and repeats what failed, with growing pauses, before it goes on: a
        cluster that struggles is not buried in requests.

        Once this has raised, any of the requests sent since the last `drain` may be lost, and the sender
        is of no more use: the connection is closed.

        :param requests: idempotent, each sent at least once; made while others are in flight.
        :raises TargetUnavailable: no success for as long as `patience`, or the driver does not end what is
            in flight.
        :raises TargetRefused: the server refuses a row, which is named, and takes others.
        :raises Exception: of the driver, at once, when trying again cannot help.
        """
        for group in grouped(requests, self._concurrency):
            self._await_capacity(group.parts)
            if self._failures:
                self._recover()
            self.in_flight.start_group(group)

    def drain(self) -> None:
        """Wait until every request that was sent is acknowledged.

        :raises Exception: what `send` raises.
        """
        self._finish()
        while self._failures:
            self._recover()
            self._finish()
        self._taken = None
        self.refusals.clear()

    def _await_capacity(self, parts: int = PARTS) -> None:
        """Wait until requests of so many parts may be in flight; those that the socket refused go first."""
        while True:
            while self.in_flight.have_ended or self.in_flight.is_full(parts):
                self._take()
            if not self._unsent:
                return
            if self.in_flight:
                self._take()
            self.in_flight.start(self._unsent.popleft())

    def _await_all(self) -> None:
        while self.in_flight:
            self._take()

    def _finish(self) -> None:
        """Send what the socket refused, and wait until nothing is in flight."""
        while self.in_flight or self._unsent:
            self._await_capacity()
            self._await_all()

    def _clear(self) -> None:
        self._failures.clear()
        self._unsent.clear()
        self._taken = None
        self.refusals.clear()

    def _take(self) -> None:
        """Wait until one request or more have ended, and count them; what has failed is kept.

        :raises TargetUnavailable: none has, for much longer than a timeout.
        """
        ended = self.in_flight.take()
        if ended.acknowledged:
            self._acknowledgements += ended.acknowledged
            self._taken = ended.last
        for failed in ended.failed:
            # A node has forgotten the statement: the driver prepares it again for a future alone.
            is_unknown = ended.is_pipelined and isinstance(failed.error, PreparedQueryNotFound)
            if is_unknown or (self.in_flight and was_not_sent(failed.error)):
                self._unsent.append(failed.request)
                continue
            self._failures.append(failed)
            if asks_to_slow_down(failed.error):
                self._concurrency.overloaded(ended.sent, ended.ended)

    def _recover(self) -> None:
        """Repeat what failed until it is acknowledged, or patience ends."""
        self._await_all()
        self._warn()
        try:
            while not self._is_recovered():
                pass  # some were acknowledged: patience begins again
        except Exception as error:
            left, suspect = len(self._failures), self.refusals.suspect
            self._clear()  # the caller writes everything again
            if isinstance(error, WalSinkError) or classify(error) == "fatal":
                raise
            waited = f" for {self._patience:.0f} s" if self.repeats else ""
            raise TargetUnavailable(
                f"Cassandra did not acknowledge {counted(left, 'request')}{waited}: {error}{suspect}",
                "See to the cluster; the rows are safe in the log and will be written again.",
            ) from error

    def _is_recovered(self) -> bool:
        """Repeat what failed, with growing pauses; return False when some of it is acknowledged, and not all.

        :raises Exception: patience has ended, or the error is fatal.
        """
        taken = self._acknowledgements
        for attempt in retrying(self._patience if self.repeats else 0.0):
            with attempt:
                # The first attempt was the one that failed.
                if attempt.retry_state.attempt_number > 1:
                    self._send_failures()
                if self._failures and self._acknowledgements == taken:
                    self._look_for_a_row(attempt.retry_state.attempt_number)
                if self._failures and self._acknowledgements == taken:
                    raise self._worst()
        return not self._failures

    def _look_for_a_row(self, attempt: int) -> None:
        """Find the rows for which a request fails, if it is they; a request whose parts are taken is done.

        :param attempt: the number of the attempt after which nothing was acknowledged.
        :raises TargetRefused: the server says that the row is wrong; or does not say it, but fails again and
            again for this row, and takes others.
        """
        first = self._failures[:1] if attempt == _LOOK_AT_ROWS else []
        found = [each for each in self._failures if is_refused(each.error)]
        found += [each for each in first if may_be_a_row(each.error)]
        if not found:
            return
        failed = found[0]
        number = self.refusals.look(failed.request, failed.error)
        if number is None:
            return
        self._failures.remove(failed)
        self._acknowledgements += number  # a row that is skipped is done
        if not number:
            log.warning(
                "Cassandra refused %d rows in one request and took them in several. If this"
                " repeats, lower cassandra.batchRows or cassandra.batchBytes. Cause: %r",
                *(len(failed.request), failed.error),
            )

    def _takes_others(self) -> bool:
        """Whether the server takes rows at all: what it acknowledged last is sent to it again."""
        return self._taken is not None and self._try(self._taken()) is None

    def _try(self, request: EncodedBatch) -> Exception | None:
        """Send one request, and wait for its answer."""
        try:
            sent = self._bind(request)
            execute(self._session, sent, None, profile=ROWS, timeout_s=self._timeout_s)
        except Exception as error:
            if not (self.repeats or is_refused(error)):
                raise  # it may have been carried out, so no part of it is sent again
            return error
        self._acknowledgements += 1
        return None

    def _worst(self) -> Exception:
        """Return the error that decides what follows."""
        errors = [failed.error for failed in self._failures]
        kinds = {classify(error): error for error in errors}
        return kinds.get("fatal") or kinds.get("throttle") or errors[0]

    def _warn(self) -> None:
        """Log the failures, as a warning every ten seconds: a cluster may be overloaded for hours."""
        now = time.monotonic()
        is_due = now - self._warned >= _WARN_EVERY_S
        log.log(
            logging.WARNING if is_due else logging.DEBUG,
            "%s failed, the first with %r",
            counted(len(self._failures), "request"),
            self._failures[0].error,
        )
        self._warned = now if is_due else self._warned

    def _send_failures(self) -> None:
        """Repeat what failed until one fails again; what was not repeated by then stays a failure."""
        waiting, self._failures = deque(self._failures), []
        while waiting and not self._failures:
            failed = waiting.popleft()
            self.in_flight.observer.retried(classify(failed.error))
            self.in_flight.start(failed.request)
            self._await_capacity()
        self._finish()
        self._failures.extend(waiting)
