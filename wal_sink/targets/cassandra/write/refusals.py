"""Rows that the server refuses: found by halving their request, and blamed after a second refusal only.

A node may refuse for a moment what it takes a little later. So a row is blamed only if the server refuses the
row alone, takes another row after that, and refuses the row again. The failures that a full disk, a full CDC
space or an overload brings never blame a row: `errors.is_refused` does not know them.
"""

from __future__ import annotations

from collections.abc import Callable

from wal_sink.errors import TargetRefused
from wal_sink.targets.cassandra.driver.errors import is_refused
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.driver.pipeline import Failed
from wal_sink.targets.cassandra.fitness import OLD_ROWS, is_too_old
from wal_sink.targets.cassandra.row_plan import KEY
from wal_sink.targets.cassandra.rules import key_text
from wal_sink.targets.refusals import MOST_REFUSED

Send = Callable[[EncodedBatch], Exception | None]
"""Sends a request and waits for its answer; returns the error, None when it is acknowledged."""


def find_refused(request: EncodedBatch, send: Send, witness: EncodedBatch | None) -> list[Failed]:
    """Send the rows of a refused request in ever smaller parts; return those that the server refuses.

    The number of requests is twice the logarithm of the rows, for each row that is refused. All other rows
    are acknowledged at the end.

    :param witness: a request of the same window that was acknowledged before; None: there is none.
    :raises TargetRefused: rows are refused, and none is taken; or they are too old for the server.
    :raises Exception: what `send` has returned, if the error is not about a row: an outage.
    """
    suspects = list[Failed]()
    parts = [request]
    while parts:
        part = parts.pop()
        if not _refuses(part, send, suspects):
            witness = part
        elif halves := part.halves():
            suspects.pop()
            parts += reversed(halves)
        elif is_too_old(suspects[-1].error):
            raise refusal(suspects[-1])
        elif witness is None and len(suspects) > MOST_REFUSED:
            break
    if not suspects or request.statements.sent_once:
        return suspects  # no row that was taken may be sent again
    if witness is None:
        raise refusal(suspects[0], is_alone=True)
    if (outage := send(witness)) is not None:
        raise outage
    blamed = list[Failed]()
    for suspect in suspects:
        _refuses(suspect.request, send, blamed)
    return blamed


def _refuses(request: EncodedBatch, send: Send, refused: list[Failed]) -> bool:
    """Return True if the server refuses a request, which is added to the list then."""
    error = send(request)
    if error is None:
        return False
    if not is_refused(error):
        raise error
    refused.append(Failed(request, error))
    return True


def refusal(failed: Failed, *, is_alone: bool = False) -> TargetRefused:
    """Return the error that names a row.

    :param failed: the request of this row alone.
    :param is_alone: whether no other row was taken to compare.
    """
    error = failed.error
    remedy = "Change in the table what refuses it."
    if is_alone:
        remedy += " No other row was written to compare: the cause may also be the table itself."
    return TargetRefused(
        f"Cassandra refuses {described(failed.request)}: {type(error).__name__}: {error}",
        OLD_ROWS if is_too_old(error) else remedy,
    )


def ledger_us(request: EncodedBatch) -> int | None:
    """Return the write timestamp that the ledger has for the row of a request.

    None: the row has the time of its event in place of that timestamp.
    """
    query_id, values = next(request.rows())
    statement = request.statements.by_id[query_id]
    if statement.plan.details.timestamp_column:
        return None
    timestamp = values[0 if statement.stamp_first else statement.columns.stop]
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
