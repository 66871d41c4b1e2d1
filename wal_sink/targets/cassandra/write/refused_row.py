"""Takes a request apart that the server refuses, down to the row for which it does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from wal_sink.errors import TargetRefused
from wal_sink.targets.cassandra.driver.classify import is_refused, may_be_a_row
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.schema.fitness import OLD_ROWS, is_too_old
from wal_sink.targets.cassandra.write.requests import BoundBatch

Send = Callable[[Any], Exception | None]
"""Sends a request and waits for its answer; returns the error, None when it is acknowledged."""


class RefusedRow(NamedTuple):
    """A row that the server refuses by itself."""

    request: Any
    """Of this row alone."""
    error: Exception
    others_are_taken: bool
    """Whether other rows of the request were acknowledged meanwhile."""


def find_refused_row(request: Any, error: Exception, send: Send) -> RefusedRow | None:
    """Return the first row that is refused by itself; None when each part of the request is taken.

    Sends ever smaller parts, twice the logarithm of the rows where one is refused. Rows are idempotent, so
    those of the parts that are taken need not be sent again.

    :param error: with which the request has failed.
    :raises Exception: what `send` has returned, if it says nothing of rows: an outage.
    """
    waiting = halves(request)
    if not waiting:
        return RefusedRow(request, error, others_are_taken=False)
    others_are_taken = False
    while waiting:
        part, *waiting = waiting
        failed = send(part)
        if failed is None:
            others_are_taken = True
            continue
        if not (is_refused(failed) or may_be_a_row(failed)):
            raise failed
        parts = halves(part)
        if not parts:
            others_are_taken = others_are_taken or any(send(each) is None for each in waiting)
            return RefusedRow(part, failed, others_are_taken)
        waiting = [*parts, *waiting]
    return None


def halves(request: Any) -> list[Any]:
    """Return the two halves of a request; none for that of a single row."""
    if isinstance(request, EncodedBatch):
        return request.halves()
    if not isinstance(request, BoundBatch):
        return []
    middle = len(request.bound) // 2
    parts = request.bound[:middle], request.bound[middle:]
    return [part[0] if len(part) == 1 else BoundBatch(part) for part in parts]


def first_row(request: Any) -> tuple[bytes, list[bytes | None]]:
    """Return the id of the prepared statement of a request's first row, and its values."""
    if isinstance(request, EncodedBatch):
        return request.first_row()
    bound = request.bound[0] if isinstance(request, BoundBatch) else request
    values = [value if isinstance(value, bytes) else None for value in bound.values]
    return bound.prepared_statement.query_id, values


def refusal(row: str, error: Exception) -> TargetRefused:
    """Return the error that names a row.

    :param error: with which the server refuses it.
    """
    said = f"{type(error).__name__}: {error}"
    if is_refused(error):
        what = f"Cassandra refuses {row}: {said}"
        remedy = (
            OLD_ROWS if is_too_old(error) else "Change in the table what refuses it. " + _OR_ELSE
        )
    else:
        what = f"Cassandra fails to write {row}, and takes other rows: {said}"
        remedy = (
            "The log of a replica has the exception. An index that cannot take a value does this, such as one"
            " of vectors: drop it then, DROP INDEX. " + _OR_ELSE
        )
    return TargetRefused(what, remedy)


_OR_ELSE = (
    "The flush tries again, and goes on by itself. Or give the epoch up, and keep its rows in a file:"
    " docs/operations.md, TargetRefused."
)
