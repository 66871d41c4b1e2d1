"""Sends requests until all rows are acknowledged, except the rows that the server refuses."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from cassandra import WriteFailure

from wal_sink.errors import TargetRefused, TargetUnavailable, WalSinkError
from wal_sink.targets.base import RefusedRow
from wal_sink.targets.cassandra.check import key_text
from wal_sink.targets.cassandra.driver.concurrency import Concurrency
from wal_sink.targets.cassandra.driver.connection import ROWS, Connection
from wal_sink.targets.cassandra.driver.errors import classify, is_refused, was_not_sent
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.internals import (
    NoConnectionsAvailable,
    PreparedQueryNotFound,
)
from wal_sink.targets.cassandra.driver.requests import (
    PATIENCE_S,
    execute,
    is_worth_repeating,
    retrying,
)
from wal_sink.targets.cassandra.driver.requests_in_flight import (
    FailedRequest,
    RequestPipeline,
    grouped,
)
from wal_sink.targets.cassandra.row_plan import KEY
from wal_sink.targets.cassandra.statements import driver_statement
from wal_sink.targets.refusals import MOST_REFUSED, find_refused
from wal_sink.telemetry import FlushMetrics, line_logger
from wal_sink.units import counted

logger = line_logger(__name__)

_WARN_EVERY_S = 10.0


class Sender:
    """Sends requests over one connection, from one thread. Requests may be in flight between two calls.

    The sender repeats failed requests one by one, through the driver's own classes. The driver tries other
    replicas, and prepares a statement again if a node has forgotten it.

    :param concurrency: limits the requests in flight.
    :param metrics: counts repeated requests and requests in flight.
    :param timeout_s: seconds to wait for an answer.
    :param patience_s: seconds without any acknowledgement after which `send` and `drain` raise an error.
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
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._failures: list[FailedRequest] = []
        self._search = RefusedRowSearch(self._execute)
        self._has_progress = False
        """True if a row was acknowledged or skipped since failed requests were last repeated."""
        self._warned_s = float("-inf")

    @property
    def refused(self) -> list[RefusedRow]:
        """The rows that the server has refused since the last `drain`. The sender skips these rows."""
        return self._search.refused

    def send(self, requests: Iterable[EncodedBatch]) -> None:
        """Send requests, and return without waiting for all answers.

        If requests fail, the sender waits for the requests in flight, and repeats the failed requests with
        growing pauses. New requests come later, because they would be more load for a cluster in trouble.

        If this method or `drain` raises an error, any request since the last `drain` may be lost, and the
        sender must not be used again.

        :param requests: an iterable that is read while earlier requests are in flight.
        :raises TargetUnavailable: no request was acknowledged for `patience_s`.
        :raises TargetRefused: the server refuses rows and accepts none, or refuses a row with an event time.
        :raises Exception: an error of the driver that another try cannot cure.
        """
        for group in grouped(requests, self._pipeline.concurrency):
            while not self._pipeline.has_room(group.places):
                self._await_group()
            if self._failures:
                self._recover()
            if not self._pipeline.send(group):
                error = NoConnectionsAvailable("no connection takes requests now")
                self._failures += [FailedRequest(request, error) for request in group.requests]

    def drain(self) -> list[RefusedRow]:
        """Wait until every row is acknowledged or refused, and return the refused rows.

        :raises Exception: the same errors as `send`.
        """
        self._await_all()
        if self._failures:
            self._recover()
        search, self._search = self._search, RefusedRowSearch(self._execute)
        return search.refused

    def _await_all(self) -> None:
        while self._pipeline:
            self._await_group()

    def _await_group(self) -> None:
        sent = self._pipeline.await_group()
        if sent.witness is not None:
            self._has_progress = True
            self._search.witness = self._search.witness or sent.witness
        self._failures += sent.failed

    def _recover(self) -> None:
        """Repeat failed requests. Raise an error if none is acknowledged for `_patience_s`.

        Each acknowledgement starts the time again, because a cluster that acknowledges some requests is only
        slow. An error would make the flusher write the whole window again, and slow the cluster down further.
        """
        self._await_all()
        sent_once = any(failed.request.statements.sent_once for failed in self._failures)
        patience_s = 0.0 if sent_once else self._patience_s
        try:
            while self._failures:
                self._has_progress = False
                for attempt in retrying(patience_s):
                    with attempt:
                        self._repeat(is_first=attempt.retry_state.attempt_number == 1)
                        if self._failures and not self._has_progress:
                            raise self._worst_error()
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
        """Repeat failed requests until a request fails again. All unfinished requests stay in `_failures`.

        :param is_first: True to repeat only requests that no node has carried out or that were refused. Other
            requests need a pause first.
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
            self._log_failures()

    def _send_alone(self, failed: FailedRequest) -> None:
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
        """Find the rows that the server refuses, and write the other rows of a refused request.

        :raises TargetRefused: the server accepts no row.
        """
        try:
            refused = self._search.write(failed.request)
        except WalSinkError:
            raise
        except Exception as outage:  # noqa: BLE001 -- repeated as a failure
            self._failures.append(FailedRequest(failed.request, outage))
            return
        self._has_progress = True  # a skipped row needs no further request
        if not refused:
            logger.warning(
                "Cassandra refused %d rows in one request and accepted them in several. If this"
                " repeats, lower cassandra.batchRows or cassandra.batchBytes. Cause: %r",
                len(failed.request),
                failed.error,
            )

    def _execute(self, request: EncodedBatch) -> Exception | None:
        """Send a request through the driver, and return its error; None if it is acknowledged."""
        statement, timeout_s = driver_statement(request), self._timeout_s
        try:
            execute(self._session, statement, None, profile=ROWS, timeout_s=timeout_s)
        except Exception as error:  # noqa: BLE001 -- the caller classifies it
            return error
        return None

    def _worst_error(self) -> Exception:
        errors = [failed.error for failed in self._failures]
        classes = {classify(error): error for error in errors}
        return classes.get("fatal") or classes.get("throttle") or errors[0]

    def _log_failures(self) -> None:
        """Log the failures, as a warning only every ten seconds, because an overload may last for hours."""
        now_s = time.monotonic()
        is_due = now_s - self._warned_s >= _WARN_EVERY_S
        logger.log(
            logging.WARNING if is_due else logging.DEBUG,
            "%s failed, the first with %r",
            counted(len(self._failures), "request"),
            self._failures[0].error,
        )
        self._warned_s = now_s if is_due else self._warned_s


def was_not_executed(error: Exception) -> bool:
    """Return True if no node has carried out a request, so the request may be sent again at once.

    Either no connection had room for the request, or a node has forgotten the prepared statement.
    """
    is_unsent = was_not_sent(error) or isinstance(error, NoConnectionsAvailable)
    return is_unsent or isinstance(error, PreparedQueryNotFound)


def _remedy(error: Exception) -> str:
    if not isinstance(error, WriteFailure):
        return "Repair the cluster; the rows are safe in the log and will be written again."
    return (
        "The log of a replica has the exception: its disk or its CDC space may be full. The rows are safe in"
        " the log, and are written again. If only one table fails, an index of it may be unable to take a"
        " value, such as a zero vector: DROP INDEX then."
    )


class RefusedRowSearch:
    """Finds the rows of one window that the server refuses, by halving their requests.

    A node may refuse a row for a moment, and accept it a little later. So the search blames a row only if the
    server refuses the row alone, accepts another row of the window, and refuses the row again. If the server
    accepts no row of the window, two refusals are enough. But more than `MOST_REFUSED` refused rows then mean
    that the table is to blame, and the flush stops.

    :param send: sends a request and waits for the answer. Returns the error; None if all rows are written.
    """

    def __init__(self, send: Callable[[EncodedBatch], Exception | None]) -> None:
        self._send = send
        self.refused: list[RefusedRow] = []
        self.witness: EncodedBatch | None = None
        """An acknowledged request of the window; None if the server has accepted no row yet."""

    def write(self, refused: EncodedBatch) -> int:
        """Write the rows of a refused request in ever smaller parts. Return the number of refused rows.

        After an exception, no row of the request is in `refused`.

        :raises TargetRefused: more than `MOST_REFUSED` rows are refused and none is accepted. Or a refused
            row has an event time, by which the log cannot find the row.
        :raises Exception: an error that is not a refusal, such as an outage.
        """
        suspects = list[FailedRequest]()
        for row, error in find_refused(refused, self._refusal, EncodedBatch.halves):
            suspects.append(FailedRequest(row, error))
            if self.witness is None and len(self.refused) + len(suspects) > MOST_REFUSED:
                raise refusal_error(*suspects[-1])
        # The second search sends an accepted row twice.
        if suspects and not refused.statements.sent_once:
            suspects = self._refused_again(suspects)
        self.refused += [_refused_row(*failed) for failed in suspects]
        return len(suspects)

    def _refused_again(self, suspects: list[FailedRequest]) -> list[FailedRequest]:
        """Send an accepted request, then the suspects. Return the suspects that are refused again."""
        witness = self.witness
        if witness and not witness.statements.sent_once and (outage := self._send(witness)):
            raise outage
        blamed = list[FailedRequest]()
        for suspect in suspects:
            if error := self._refusal(suspect.request):
                blamed.append(FailedRequest(suspect.request, error))
        if witness is None and self.witness is not None:
            return self._refused_again(blamed)  # with the suspect that was accepted as the witness
        return blamed

    def _refusal(self, request: EncodedBatch) -> Exception | None:
        """Send a request. Return the error of a refusal, None after a success, and raise any other error."""
        error = self._send(request)
        if error is None:
            self.witness = request
        elif not is_refused(error):
            raise error
        return error


def _refused_row(request: EncodedBatch, error: Exception) -> RefusedRow:
    refused, us = refusal_error(request, error), log_timestamp_us(request)
    if us is None:
        raise refused
    return RefusedRow(us, refused)


def refusal_error(request: EncodedBatch, error: Exception) -> TargetRefused:
    """Return the error that names the only row of a request."""
    return TargetRefused(
        f"Cassandra refuses {first_row_text(request)}: {type(error).__name__}: {error}",
        "Change the index, the guardrail or the other setting that refuses the row.",
    )


def log_timestamp_us(request: EncodedBatch) -> int | None:
    """Return the write timestamp by which the log finds a request's first row.

    None if the rows are written with event times, since the log cannot find a row by its event time.
    """
    query_id, values = next(request.rows())
    statement = request.statements.by_id[query_id]
    if statement.plan.details.timestamp_column:
        return None
    timestamp = values[0 if statement.timestamp_first else statement.columns.stop]
    return int.from_bytes(timestamp, "big", signed=True)


def first_row_text(request: EncodedBatch) -> str:
    """Return the key of a request's first row, and the table, as errors name the row."""
    query_id, values = next(request.rows())
    statement = request.statements.by_id[query_id]
    types = [column.type for column in statement.prepared.column_metadata]
    decoded = [
        kind.from_binary(value, statement.prepared.protocol_version)
        if column.role in KEY  # `key_text` shows no other values
        else None
        for column, kind, value in zip(
            statement.plan.columns,
            types[statement.columns],
            values[statement.columns],
            strict=True,
        )
    ]
    return f"{key_text(statement.plan, decoded)} of {statement.plan.table}"
