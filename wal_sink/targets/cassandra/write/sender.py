"""Sends idempotent requests, several in flight, until all of them are acknowledged."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from cassandra import WriteFailure

from wal_sink.errors import TargetUnavailable, WalSinkError
from wal_sink.log_context import line_logger
from wal_sink.targets.cassandra.driver.connection import ROWS
from wal_sink.targets.cassandra.driver.errors import (
    PATIENCE_S,
    classify,
    execute,
    is_refused,
    longest_s,
    retrying,
    was_not_sent,
)
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import PreparedQueryNotFound
from wal_sink.targets.cassandra.driver.pipeline import Failed
from wal_sink.targets.cassandra.write.concurrency import PARTS
from wal_sink.targets.cassandra.write.in_flight import InFlight, grouped
from wal_sink.targets.cassandra.write.refusals import find_refused
from wal_sink.targets.cassandra.write.statements import bound
from wal_sink.text import counted

log = line_logger(__name__)

_WARN_EVERY_S = 10.0


class Sender:
    """Sends requests over one connection. Some are in flight between two calls.

    One thread uses it.

    :param session: the driver's session.
    :param patience: seconds to go on trying while no request is acknowledged.
    :param timeout_s: seconds to wait for a request that goes alone: then it is lost.
    """

    def __init__(
        self,
        session: Any,
        in_flight: InFlight,
        patience: float = PATIENCE_S,
        timeout_s: float = longest_s(PATIENCE_S),
    ) -> None:
        self._session = session
        self._in_flight = in_flight
        self._patience = patience
        self._timeout_s = timeout_s
        self._unsent: deque[EncodedBatch] = deque()
        """Requests that no node has taken; each goes out when another one has ended."""
        self._failures: list[Failed] = []
        self._has_progress = False
        """Whether a request was done since the last attempt to repeat those that failed."""
        self._witness: Callable[[], EncodedBatch] | None = None
        """Returns the request that was acknowledged last, of those since the last `drain`."""
        self._warned = float("-inf")

    def send(self, requests: Iterable[EncodedBatch]) -> list[Failed]:
        """Send every request; return when the last is under way, without waiting for its answer.

        The first failure stops the feed, also that of a request which an earlier call has sent. The sender
        then awaits what is in flight and repeats what failed, with growing pauses, before it goes on: a
        cluster that struggles is not buried in requests.

        Once this has raised, any of the requests sent since the last `drain` may be lost, and the sender
        cannot be used any more: the connection is closed.

        :param requests: idempotent, each sent at least once; made while others are in flight.
        :returns: rows that the server refuses, each alone; they are skipped.
        :raises TargetUnavailable: no success for as long as `patience`, or the driver does not end what is
            in flight.
        :raises TargetRefused: the server refuses rows, and takes none.
        :raises Exception: of the driver, at once, when trying again cannot help.
        """
        refused = list[Failed]()
        for group in grouped(requests, self._in_flight.concurrency):
            self._await_capacity(group.parts)
            if self._failures:
                refused += self._recover()
            self._in_flight.start_group(group)
        return refused

    def drain(self) -> list[Failed]:
        """Wait until every request that was sent is acknowledged.

        :returns: what `send` returns.
        :raises Exception: what `send` raises.
        """
        refused = list[Failed]()
        self._await_all()
        while self._failures:
            refused += self._recover()
        self._witness = None
        return refused

    def _await_capacity(self, parts: int = PARTS) -> None:
        """Wait until requests of this size may be in flight; those that no node has taken go first."""
        while True:
            while self._in_flight.have_ended or self._in_flight.is_full(parts):
                self._take()
            if not self._unsent:
                return
            if self._in_flight:
                self._take()
            self._in_flight.start(self._unsent.popleft())

    def _await_all(self) -> None:
        """Send what no node has taken, and wait until nothing is in flight."""
        while self._in_flight or self._unsent:
            self._await_capacity()
            while self._in_flight:
                self._take()

    def _take(self) -> None:
        """Wait until one request or more have ended, and keep what has failed.

        :raises TargetUnavailable: none has, for much longer than a timeout.
        """
        ended = self._in_flight.take()
        if ended.acknowledged:
            self._has_progress, self._witness = True, ended.last
        for failed in ended.failed:
            # A node has forgotten the statement: the driver prepares it again for a future alone.
            is_unknown = ended.is_pipelined and isinstance(failed.error, PreparedQueryNotFound)
            if is_unknown or (self._in_flight and was_not_sent(failed.error)):
                self._unsent.append(failed.request)
            else:
                self._failures.append(failed)

    def _recover(self) -> list[Failed]:
        """Repeat what failed until it is acknowledged, or patience ends.

        :returns: rows that the server refuses.
        """
        self._await_all()
        self._warn()
        sent_once = any(failed.request.statements.sent_once for failed in self._failures)
        patience = 0.0 if sent_once else self._patience
        refused = list[Failed]()
        try:
            while self._failures:  # some were acknowledged: patience begins again
                self._has_progress = False
                for attempt in retrying(patience):
                    with attempt:
                        if attempt.retry_state.attempt_number > 1:
                            self._send_failures()
                        refused += self._take_apart()
                        if self._failures and not self._has_progress:
                            raise self._worst()
        except Exception as error:
            number = len(self._failures)
            self._failures.clear()  # the caller writes everything again
            self._unsent.clear()
            self._witness = None
            if isinstance(error, WalSinkError) or classify(error) == "fatal":
                raise
            duration = f" for {patience:.0f} s" if patience else ""
            raise TargetUnavailable(
                f"Cassandra did not acknowledge {counted(number, 'request')}{duration}: {error}",
                _remedy(error),
            ) from error
        return refused

    def _take_apart(self) -> list[Failed]:
        """Find the rows for which requests are refused, and write the other rows of these requests.

        :raises TargetRefused: no row is taken.
        """
        refused, failures = list[Failed](), list[Failed]()
        for failed in self._failures:
            request = failed.request
            if not is_refused(failed.error):
                failures.append(failed)
                continue
            witness = self._witness() if self._witness else None
            try:
                rows = find_refused(request, self._try, witness)
            except WalSinkError:
                raise
            except Exception as outage:  # noqa: BLE001 -- the attempts go on
                failures.append(Failed(request, outage))
                continue
            self._has_progress = True  # a row that is skipped is done
            refused += rows
            if not rows:
                log.warning(
                    "Cassandra refused %d rows in one request and took them in several. If this"
                    " repeats, lower cassandra.batchRows or cassandra.batchBytes. Cause: %r",
                    *(len(request), failed.error),
                )
        self._failures = failures
        return refused

    def _try(self, request: EncodedBatch) -> Exception | None:
        """Send one request, and wait for its answer."""
        try:
            execute(self._session, bound(request), None, profile=ROWS, timeout_s=self._timeout_s)
        except Exception as error:  # noqa: BLE001 -- the caller says what it means
            return error
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
        """Repeat what failed until one fails again; what was not repeated until then stays a failure."""
        pending, self._failures = deque(self._failures), []
        while pending and not self._failures:
            self._in_flight.repeat(pending.popleft())
            self._await_capacity()
        self._await_all()
        self._failures.extend(pending)


def _remedy(error: Exception) -> str:
    """Return what to do about an outage."""
    if not isinstance(error, WriteFailure):
        return "Repair the cluster; the rows are safe in the log and will be written again."
    return (
        "The log of a replica has the exception: its disk or its CDC space may be full. The rows are safe in"
        " the log, and are written again. If only one table fails, an index of it may be unable to take a"
        " value, such as a zero vector: DROP INDEX then."
    )
