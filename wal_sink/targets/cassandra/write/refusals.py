"""Rows that the server refuses: a request that fails for one of its rows is taken apart, down to that row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

from wal_sink.errors import TargetRefused
from wal_sink.log_context import line_logger
from wal_sink.targets.cassandra.driver.errors import is_refused, may_be_a_row
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.fitness import OLD_ROWS, is_too_old
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan
from wal_sink.targets.cassandra.rules import key_text
from wal_sink.targets.cassandra.write.batches import PreparedPlan
from wal_sink.targets.cassandra.write.statements import Statement

log = line_logger(__name__)

Send = Callable[[EncodedBatch], Exception | None]
"""Sends a request and waits for its answer; returns the error, None when it is acknowledged."""


class RefusedRow(NamedTuple):
    """A row that the server refuses by itself."""

    request: EncodedBatch
    """Of this row alone."""
    error: Exception
    others_are_taken: bool
    """Whether other rows of the request were acknowledged meanwhile."""


class Refusals:
    """Finds the rows for which requests fail, and goes on without them.

    :param describe: names the first row of a request.
    :param send: sends a request and waits for its answer.
    :param takes_others: asks the server whether it takes rows at all.
    """

    def __init__(
        self, describe: Callable[[EncodedBatch], str], send: Send, takes_others: Callable[[], bool]
    ) -> None:
        self._describe = describe
        self._send = send
        self._takes_others = takes_others
        self.on_refused: Callable[[EncodedBatch, TargetRefused], None] = _raise
        """Called with a request of one row that is refused, which is skipped if this returns."""
        self.suspect = ""
        """A row that fails by itself, where no other row was taken to compare."""
        self._alone = False

    def clear(self) -> None:
        """Begin the next window."""
        self.suspect, self._alone = "", False

    def look(self, request: EncodedBatch, error: Exception) -> int | None:
        """Return how many rows of a request are skipped, all others being taken; None: it is not known.

        :raises TargetRefused: `on_refused` does; or the server takes no row at all, or none so old.
        """
        number = 0
        found = find_refused(request, error, self._send)
        while True:
            try:
                refused = next(found, None)
            except Exception as outage:  # noqa: BLE001 -- the attempts go on
                log.debug("the rows that are refused were not found: %r", outage)
                return None
            if refused is None:
                return number
            row = self._describe(refused.request)
            told = is_refused(refused.error)
            compared = refused.others_are_taken or self._takes_others()
            if not (compared or told):
                self.suspect = f"; {row} fails by itself, too"
                return None
            self._skip(refused, refusal(row, refused.error), compared=compared)
            number += 1

    def _skip(self, refused: RefusedRow, error: TargetRefused, *, compared: bool) -> None:
        """Skip a row, if it is wrong and not every row is.

        :param compared: whether the server takes other rows. A lone row without any is believed once.
        """
        if is_too_old(refused.error) or (self._alone and not compared):
            raise error
        self._alone = self._alone or not compared
        self.on_refused(refused.request, error)


def _raise(_request: EncodedBatch, error: TargetRefused) -> None:
    raise error


def find_refused(request: EncodedBatch, error: Exception, send: Send) -> Iterator[RefusedRow]:
    """Yield each row that is refused by itself; at the end all others of the request are taken.

    Sends ever smaller parts, twice the logarithm of the rows for each that is refused. Rows are idempotent,
    so those of the parts that are taken need not be sent again. A caller that stops at the first row also
    gets whether any other one is taken.

    :param error: with which the request has failed.
    :raises Exception: what `send` has returned, if it says nothing of rows: an outage.
    """
    waiting = request.halves()
    if not waiting:
        yield RefusedRow(request, error, others_are_taken=False)
        return
    others_are_taken = False
    while waiting:
        part, *waiting = waiting
        failed = send(part)
        if failed is None:
            others_are_taken = True
            continue
        if not (is_refused(failed) or may_be_a_row(failed)):
            raise failed
        parts = part.halves()
        if not parts:
            others_are_taken = others_are_taken or any(send(each) is None for each in waiting)
            yield RefusedRow(part, failed, others_are_taken)
        waiting = [*parts, *waiting]


def refusal(row: str, error: Exception) -> TargetRefused:
    """Return the error that names a row.

    :param error: with which the server refuses it.
    """
    said = f"{type(error).__name__}: {error}"
    if is_refused(error):
        what = f"Cassandra refuses {row}: {said}"
        remedy = OLD_ROWS if is_too_old(error) else "Change in the table what refuses it."
    else:
        what = f"Cassandra fails to write {row}, and takes other rows: {said}"
        remedy = (
            "The log of a replica has the exception. An index that cannot take a value does this, such as one"
            " of vectors: drop it then, DROP INDEX."
        )
    return TargetRefused(what, remedy)


class FirstRow(NamedTuple):
    """The first row of a request."""

    values: list[Any]
    """As its statement takes them."""
    plan: CassandraPlan
    """Of its table."""
    statement: Statement


def row_of(request: EncodedBatch, plans: Iterable[PreparedPlan]) -> FirstRow | None:
    """Return the first row of a request; None when none of the plans has its statement."""
    query_id, values = next(request.statements())
    for prepared in plans:
        for statement in prepared.statements.known():
            if statement.prepared.query_id == query_id:
                return FirstRow(values, prepared.plan, statement)
    return None


def ledger_us(request: EncodedBatch, plans: Collection[PreparedPlan]) -> int | None:
    """Return the write timestamp that the ledger has for the row of a request; None: that is not known.

    Where a plan has event times, a request has these instead; and two plans may share a statement.
    """
    row = row_of(request, plans)
    if row is None or any(each.plan.details.timestamp_column for each in plans):
        return None
    of = row.statement
    stamp = row.values[0 if of.stamp_first else of.columns.stop]
    return int.from_bytes(stamp, "big", signed=True)


def described(row: FirstRow | None, version: int) -> str:
    """Name a row by its key, and its table.

    :param version: of the native protocol.
    """
    if row is None:
        return "a row"
    of = row.statement
    types = [column.type for column in of.prepared.column_metadata]
    decoded = [
        kind.from_binary(value, version)
        if column.role in KEY  # others are not shown
        else None
        for column, kind, value in zip(
            of.plan.columns, types[of.columns], row.values[of.columns], strict=True
        )
    ]
    return f"{key_text(of.plan, decoded)} of {of.plan.table}"
