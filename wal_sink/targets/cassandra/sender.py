"""Sends idempotent requests until all are acknowledged, and finds the rows that the server refuses."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from cassandra import WriteFailure

from wal_sink.errors import TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.targets.base import RefusedRow
from wal_sink.targets.cassandra.check import key_text
from wal_sink.targets.cassandra.driver.connection import ROWS, Connection
from wal_sink.targets.cassandra.driver.errors import (
    PATIENCE_S,
    classify,
    execute,
    is_refused,
    is_worth_repeating,
    longest_s,
    retrying,
    was_not_sent,
)
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import (
    NoConnectionsAvailable,
    PreparedQueryNotFound,
)
from wal_sink.targets.cassandra.driver.requests_in_flight import (
    Concurrency,
    FailedRequest,
    RequestPipeline,
    grouped,
)
from wal_sink.targets.cassandra.row_plan import KEY
from wal_sink.targets.cassandra.statements import driver_statement
from wal_sink.targets.refusals import MOST_REFUSED, find_refused
from wal_sink.telemetry import FlushMetrics, line_logger
from wal_sink.units import counted

log = line_logger(__name__)

_WARN_EVERY_S = 10.0


class Sender:
    """Sends requests over one connection. Requests may be in flight between two calls.

    A failed request is sent again through the driver's own classes, one request at a time. The driver
    prepares a statement that a node has forgotten, and tries other replicas.

    One thread uses it.

    :param concurrency: limits the requests in flight.
    :param metrics: counts the requests that are sent again, and those in flight.
    :param timeout_s: seconds to wait for an answer.
    :param patience_s: seconds without any acknowledgement after which the sender gives up.
    """

    def __init__(
        self,
        connection: Connection,
        concurrency: Concurrency,
        metrics: FlushMetrics,
        *,
        timeout_s: float,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._session = connection.session
        self._pipeline = RequestPipeline(connection, concurrency, timeout_s, metrics)
        self._metrics = metrics
        self._lost_s = longest_s(timeout_s)
        self._patience_s = patience_s
        self._failures: list[FailedRequest] = []
        self._search = RefusedRowSearch()
        self._has_progress = False
        """True if a request has succeeded since the last try to repeat the failed requests."""
        self._warned_s = float("-inf")

    @property
    def refused(self) -> list[RefusedRow]:
        """The rows that the server has refused since the last `drain`. They are skipped."""
        return self._search.refused

    def send(self, requests: Iterable[EncodedBatch]) -> None:
        """Send every request. Return when the last one is sent, without its answer.

        After a failure, including that of a request of an earlier call, no new requests are sent. The sender
        waits for the requests in flight and repeats the failed ones, with growing pauses, so that it adds no
        load to a cluster in trouble.

        After an error any request since the last `drain` may be lost, and the sender must not be used again.

        :param requests: created while earlier requests are in flight.
        :raises TargetUnavailable: no request has succeeded for `patience_s`.
        :raises TargetRefused: the server refuses rows, and accepts none.
        :raises Exception: an error of the driver that another try cannot cure.
        """
        for group in grouped(requests, self._pipeline.concurrency):
            while not self._pipeline.has_room(group.places):
                self._await_group()
            if self._failures:
                self._recover()
            if not self._pipeline.send(group):
                none = NoConnectionsAvailable("no connection takes requests now")
                self._failures += [FailedRequest(request, none) for request in group.requests]

    def drain(self) -> list[RefusedRow]:
        """Wait until every request is acknowledged.

        :returns: the rows that the server refuses.
        :raises Exception: the same errors as `send`.
        """
        self._await_all()
        if self._failures:
            self._recover()
        search, self._search = self._search, RefusedRowSearch()
        return search.refused

    def _await_all(self) -> None:
        while self._pipeline:
            self._await_group()

    def _await_group(self) -> None:
        """Wait until a group has ended, and keep its failed requests."""
        sent = self._pipeline.await_group()
        if sent.witness is not None:
            self._has_progress = True
            self._search.witness = self._search.witness or sent.witness
        self._failures += sent.failed

    def _recover(self) -> None:
        """Repeat failed requests until all are acknowledged, or patience ends."""
        self._await_all()
        sent_once = any(failed.request.statements.sent_once for failed in self._failures)
        patience_s = 0.0 if sent_once else self._patience_s
        try:
            while self._failures:  # each acknowledgement renews the patience
                self._has_progress = False
                for attempt in retrying(patience_s):
                    with attempt:
                        self._repeat(is_first=attempt.retry_state.attempt_number == 1)
                        if self._failures and not self._has_progress:
                            raise self._worst()
        except Exception as error:
            number = len(self._failures)
            self._failures.clear()  # the flusher writes the window again
            if not is_worth_repeating(error):
                raise
            duration = f" for {patience_s:.0f} s" if patience_s else ""
            raise TargetUnavailable(
                f"Cassandra did not acknowledge {counted(number, 'request')}{duration}: {error}",
                _remedy(error),
            ) from error

    def _repeat(self, *, is_first: bool) -> None:
        """Send failed requests again until one fails again. Requests after that one are kept as failed.

        :param is_first: True to send only requests that no node has carried out. Others wait for the first
            pause.
        """
        pending, self._failures = deque(self._failures), []
        deferred = list[FailedRequest]()
        while pending and not self._failures:
            failed = pending.popleft()
            if is_refused(failed.error):
                self._halve(failed)
            elif is_first and not was_not_executed(failed.error):
                deferred.append(failed)
            else:
                self._send_alone(failed)
        self._failures += [*deferred, *pending]
        if self._failures:
            self._warn()

    def _send_alone(self, failed: FailedRequest) -> None:
        """Send a request again, and wait for its answer."""
        if not was_not_executed(failed.error):
            self._metrics.retried(classify(failed.error))
        error = self._execute(failed.request)
        if error is None:
            self._has_progress, self._search.witness = True, failed.request
        elif is_refused(error):
            self._halve(FailedRequest(failed.request, error))
        else:
            self._failures.append(FailedRequest(failed.request, error))

    def _halve(self, failed: FailedRequest) -> None:
        """Find the rows for which a request is refused, and write its other rows.

        :raises TargetRefused: the server accepts no row.
        """
        try:
            refused = self._search.write(failed.request, self._execute)
        except WalSinkError:
            raise
        except Exception as outage:  # noqa: BLE001 -- repeated as a failure
            self._failures.append(FailedRequest(failed.request, outage))
            return
        self._has_progress = True  # a skipped row needs no further request
        if not refused:
            log.warning(
                "Cassandra refused %d rows in one request and accepted them in several. If this"
                " repeats, lower cassandra.batchRows or cassandra.batchBytes. Cause: %r",
                *(len(failed.request), failed.error),
            )

    def _execute(self, request: EncodedBatch) -> Exception | None:
        """Send a request through the driver, and wait for its answer. Return its error."""
        try:
            execute(
                self._session,
                driver_statement(request),
                None,
                profile=ROWS,
                timeout_s=self._lost_s,
            )
        except Exception as error:  # noqa: BLE001 -- the caller classifies it
            return error
        return None

    def _worst(self) -> Exception:
        """Return the error with the worst class."""
        errors = [failed.error for failed in self._failures]
        classes = {classify(error): error for error in errors}
        return classes.get("fatal") or classes.get("throttle") or errors[0]

    def _warn(self) -> None:
        """Log the failures.

        Only one log line in ten seconds is a warning: an overload may last for hours.
        """
        now_s = time.monotonic()
        is_due = now_s - self._warned_s >= _WARN_EVERY_S
        log.log(
            logging.WARNING if is_due else logging.DEBUG,
            "%s failed, the first with %r",
            counted(len(self._failures), "request"),
            self._failures[0].error,
        )
        self._warned_s = now_s if is_due else self._warned_s


def was_not_executed(error: Exception) -> bool:
    """Return True if no node has carried out a request, so it may be sent again at once.

    Either no connection had room for the request, or a node has forgotten its statement.
    """
    is_unsent = was_not_sent(error) or isinstance(error, NoConnectionsAvailable)
    return is_unsent or isinstance(error, PreparedQueryNotFound)


def _remedy(error: Exception) -> str:
    """Return the remedy for an outage."""
    if not isinstance(error, WriteFailure):
        return "Repair the cluster; the rows are safe in the log and will be written again."
    return (
        "The log of a replica has the exception: its disk or its CDC space may be full. The rows are safe in"
        " the log, and are written again. If only one table fails, an index of it may be unable to take a"
        " value, such as a zero vector: DROP INDEX then."
    )


Send = Callable[[EncodedBatch], Exception | None]
"""Sends a request and waits for the answer. Returns the error, or None if the request is acknowledged."""


class RefusedRowSearch:
    """Finds the rows of one window that the server refuses by halving their request, and writes the others.

    A node may refuse a row for a moment, and accept it a little later. So a row is blamed only if the server
    refuses the row alone, accepts another row after that, and refuses the row again. If the server has
    accepted no other row of the window, two refusals are enough; but many of them mean that the table is at
    fault, and not the rows.

    The failures of a full disk, a full CDC space or an overload never blame a row: `errors.is_refused`
    excludes them.
    """

    def __init__(self) -> None:
        self.refused: list[RefusedRow] = []
        self.witness: EncodedBatch | None = None
        """An acknowledged request of the window; None if the server has accepted no row yet."""

    def write(self, refused: EncodedBatch, send: Send) -> int:
        """Write the rows of a refused request in ever smaller parts. Return the number of refused rows.

        For each refused row of n rows, about 2 log2(n) requests are sent. If an error is raised, no row of
        the request is blamed.

        :raises TargetRefused: more than `MOST_REFUSED` rows are refused and none is accepted: the table is
            at fault. Or the refused row cannot be named.
        :raises Exception: an error that `send` has returned and that does not concern a row: an outage.
        """
        suspects = list[FailedRequest]()
        for row, error in find_refused(refused, partial(self._sent, send), EncodedBatch.halves):
            suspects.append(FailedRequest(row, error))
            if self.witness is None and len(self.refused) + len(suspects) > MOST_REFUSED:
                raise refusal_error(*suspects[-1])
        if suspects and not refused.statements.sent_once:  # else no accepted row may be sent again
            suspects = self._refused_again(suspects, send)
        self.refused += [
            RefusedRow(_required_us(failed), refusal_error(*failed)) for failed in suspects
        ]
        return len(suspects)

    def _refused_again(self, suspects: list[FailedRequest], send: Send) -> list[FailedRequest]:
        """Send an accepted row, then the suspects. Return the suspects that are refused again."""
        witness = self.witness
        if witness and not witness.statements.sent_once and (outage := send(witness)):
            raise outage
        blamed = list[FailedRequest]()
        for suspect in suspects:
            if error := self._sent(send, suspect.request):
                blamed.append(FailedRequest(suspect.request, error))
        if witness is None and self.witness is not None:
            return self._refused_again(blamed, send)  # with the row that is accepted now
        return blamed

    def _sent(self, send: Send, request: EncodedBatch) -> Exception | None:
        """Send a request; return the error by which it is refused, and raise any other error."""
        error = send(request)
        if error is None:
            self.witness = request
        elif not is_refused(error):
            raise error
        return error


def _required_us(failed: FailedRequest) -> int:
    """Return the write timestamp by which the log finds the only row of a request.

    :raises TargetRefused: the row has no such timestamp.
    """
    us = ledger_us(failed.request)
    if us is None:
        raise refusal_error(*failed)
    return us


def refusal_error(request: EncodedBatch, error: Exception) -> TargetRefused:
    """Return the error that names the only row of a request."""
    return TargetRefused(
        f"Cassandra refuses {first_row_text(request)}: {type(error).__name__}: {error}",
        "Change in the table what refuses it.",
    )


def ledger_us(request: EncodedBatch) -> int | None:
    """Return the write timestamp that the ledger counts for the first row of a request.

    None if the row has an event time in place of that timestamp.
    """
    query_id, values = next(request.rows())
    statement = request.statements.by_id[query_id]
    if statement.plan.details.timestamp_column:
        return None
    timestamp = values[0 if statement.timestamp_first else statement.columns.stop]
    return int.from_bytes(timestamp, "big", signed=True)


def first_row_text(request: EncodedBatch) -> str:
    """Return the key of the first row of a request, and its table."""
    query_id, values = next(request.rows())
    statement = request.statements.by_id[query_id]
    types = [column.type for column in statement.prepared.column_metadata]
    decoded = [
        kind.from_binary(value, statement.prepared.protocol_version)
        if column.role in KEY  # others are not shown
        else None
        for column, kind, value in zip(
            statement.plan.columns,
            types[statement.columns],
            values[statement.columns],
            strict=True,
        )
    ]
    return f"{key_text(statement.plan, decoded)} of {statement.plan.table}"
