"""Rows that the server refuses: found by halving their request.

The failures that a full disk, a full CDC space or an overload brings never blame a row: `errors.is_refused`
does not know them. Where the server has taken no row of the window, many refusals say that the table is at
fault, and not the rows.
"""

from __future__ import annotations

from collections.abc import Callable

from wal_sink.errors import TargetRefused
from wal_sink.targets.base import RefusedRow
from wal_sink.targets.cassandra.driver.errors import is_refused
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.row_plan import KEY
from wal_sink.targets.cassandra.rules import key_text
from wal_sink.targets.refusals import MOST_REFUSED

Send = Callable[[EncodedBatch], Exception | None]
"""Sends a request and waits for its answer; returns the error, None when it is acknowledged."""


class RefusalSearch:
    """Finds the rows of one window that the server refuses; the others are written."""

    def __init__(self) -> None:
        self.refused: list[RefusedRow] = []
        self.takes_others = False
        """True once the server has taken a row of the window."""

    def write(self, refused: EncodedBatch, send: Send) -> int:
        """Write the rows of a refused request in ever smaller parts; return how many rows are refused.

        The number of requests is twice the logarithm of the rows, for each row that is refused.

        :raises TargetRefused: none of more than `MOST_REFUSED` rows is taken: the table is at fault. Or
            nobody can say which row of the log it is.
        :raises Exception: what `send` has returned, if the error is not about a row: an outage.
        """
        known, parts = len(self.refused), [refused]
        while parts:
            part = parts.pop()
            error = send(part)
            if error is None:
                self.takes_others = True
            elif not is_refused(error):
                raise error
            elif halves := part.halves():
                parts += reversed(halves)
            else:
                self._blame(part, error)
        return len(self.refused) - known

    def _blame(self, request: EncodedBatch, error: Exception) -> None:
        row, us = refusal(request, error), ledger_us(request)
        if us is None or (not self.takes_others and len(self.refused) >= MOST_REFUSED):
            raise row
        self.refused.append(RefusedRow(us, row))


def refusal(request: EncodedBatch, error: Exception) -> TargetRefused:
    """Return the error that names the only row of a request."""
    return TargetRefused(
        f"Cassandra refuses {described(request)}: {type(error).__name__}: {error}",
        "Change in the table what refuses it.",
    )


def ledger_us(request: EncodedBatch) -> int | None:
    """Return the write timestamp that the ledger has for the row of a request.

    None: the row has the time of its event in place of that timestamp.
    """
    query_id, values = next(request.rows())
    statement = request.statements.by_id[query_id]
    if statement.plan.details.timestamp_column:
        return None
    timestamp = values[0 if statement.timestamp_first else statement.columns.stop]
    return int.from_bytes(timestamp, "big", signed=True)


def described(request: EncodedBatch) -> str:
    """Name the first row of a request by its key, and its table."""
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
