"""Finds the rows that the server refuses, by halving their request.

A node may refuse a row for a moment, and accept it a little later. So a row is blamed only if the server
refuses the row alone, accepts another row after that, and refuses the row again. If the server has accepted
no other row of the window, two refusals are enough; but many of them mean that the table is at fault, and
not the rows.

The failures of a full disk, a full CDC space or an overload never blame a row: `errors.is_refused` excludes
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from wal_sink.errors import TargetRefused
from wal_sink.targets.base import RefusedRow
from wal_sink.targets.cassandra.driver.errors import is_refused
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.pipeline import FailedRequest
from wal_sink.targets.cassandra.invalid_values import key_text
from wal_sink.targets.cassandra.row_plan import KEY
from wal_sink.targets.refusals import MOST_REFUSED, find_refused

Send = Callable[[EncodedBatch], Exception | None]
"""Sends a request and waits for the answer. Returns the error, or None if the request is acknowledged."""


class RefusedRowSearch:
    """Finds the rows of one window that the server refuses, and writes the others."""

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
