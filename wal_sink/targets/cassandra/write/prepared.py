"""What is prepared once for a plan: its tables with their statements; and which row a request begins with.

Takes a request apart that the server refuses, down to the row for which it does.

Makes requests of the parts of a slice, each of which another statement writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from wal_sink.errors import TargetRefused
from wal_sink.log_context import line_logger
from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.driver.errors import is_refused, may_be_a_row
from wal_sink.targets.cassandra.driver.frames import EncodedBatch
from wal_sink.targets.cassandra.encode import encode, one_after_the_other, routing_keys
from wal_sink.targets.cassandra.row_plan import planned_times
from wal_sink.targets.cassandra.rules import key_text
from wal_sink.targets.cassandra.schema.server import OLD_ROWS, is_too_old
from wal_sink.targets.cassandra.write.batches import (
    BoundBatch,
    Limits,
    Replicas,
    bound_requests,
    encoded_requests,
    in_batches,
)
from wal_sink.targets.cassandra.write.slices import SliceBuffer, Stamped
from wal_sink.targets.cassandra.write.statements import (
    Part,
    Statement,
    Statements,
    bind,
    places,
    table_rows,
)

log = line_logger(__name__)

Send = Callable[[Any], Exception | None]
"""Sends a request and waits for its answer; returns the error, None when it is acknowledged."""


class RefusedRow(NamedTuple):
    """A row that the server refuses by itself."""

    request: Any
    """Of this row alone."""
    error: Exception
    others_are_taken: bool
    """Whether other rows of the request were acknowledged meanwhile."""


class Refusals:
    """Finds the rows for which requests fail: raises the first one, or goes on behind them.

    :param describe: names the first row of a request.
    :param send: sends a request and waits for its answer.
    :param takes_others: asks the server whether it takes rows at all.
    """

    def __init__(
        self, describe: Callable[[Any], str], send: Send, takes_others: Callable[[], bool]
    ) -> None:
        self._describe = describe
        self._send = send
        self._takes_others = takes_others
        self.on_refused: Callable[[Any, TargetRefused], None] | None = None
        """Told of a request of one row that is refused, which is passed over then; None: it is raised."""
        self.suspect = ""
        """A row that fails by itself, where no other row was taken to compare."""
        self._alone = False

    def forget(self) -> None:
        """Forget what the rows of a window have shown."""
        self.suspect, self._alone = "", False

    def look(self, request: Any, error: Exception) -> int | None:
        """Return how many rows of a request are passed over, all others being taken; None: it is not known.

        :raises TargetRefused: the server says that a row is wrong; or does not say it, but fails again and
            again for this row, and takes others.
        """
        number = 0
        found = refused_rows(request, error, self._send)
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
            if told and self.on_refused is None:
                raise refusal(row, refused.error)
            compared = refused.others_are_taken or self._takes_others()
            if not (compared or told):
                self.suspect = f"; {row} fails by itself, too"
                return None
            self._pass_over(refused, refusal(row, refused.error), compared=compared)
            number += 1

    def _pass_over(self, refused: RefusedRow, error: TargetRefused, *, compared: bool) -> None:
        """Go on behind a row, if that is wanted, and the row is wrong and not every one.

        :param compared: whether the server takes other rows. A lone row without any is believed once.
        """
        if self.on_refused is None or is_too_old(refused.error) or (self._alone and not compared):
            raise error
        self._alone = self._alone or not compared
        self.on_refused(refused.request, error)


def refused_rows(request: Any, error: Exception, send: Send) -> Iterator[RefusedRow]:
    """Yield each row that is refused by itself; at the end all others of the request are taken.

    Sends ever smaller parts, twice the logarithm of the rows for each that is refused. Rows are idempotent,
    so those of the parts that are taken need not be sent again. Who wants the first row alone is told whether
    any other one is taken.

    :param error: with which the request has failed.
    :raises Exception: what `send` has returned, if it says nothing of rows: an outage.
    """
    waiting = halves(request)
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
        parts = halves(part)
        if not parts:
            others_are_taken = others_are_taken or any(send(each) is None for each in waiting)
            yield RefusedRow(part, failed, others_are_taken)
        waiting = [*parts, *waiting]


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
    " docs/reference/errors.md, TargetRefused."
)


class Prepared(NamedTuple):
    """A plan of one table, and what is prepared once to write by it."""

    plan: Plan
    statements: Statements
    limits: Limits
    replicas: Replicas


class Planned(NamedTuple):
    """A plan of the log, its tables, and the rows that wait to be written by it."""

    plan: Plan
    tables: tuple[Prepared, ...]
    buffer: SliceBuffer


class FirstRow(NamedTuple):
    """The first row of a request."""

    values: list[bytes | None]
    """As its statement takes them."""
    plan: Plan
    """Of its table."""
    statement: Statement


def row_of(request: Any, plans: Iterable[Planned]) -> FirstRow | None:
    """Return the first row of a request; None when none of the plans has its statement."""
    query_id, values = first_row(request)
    for planned in plans:
        for table in planned.tables:
            for statement in table.statements.known():
                if statement.prepared.query_id == query_id:
                    return FirstRow(values, table.plan, statement)
    return None


def ledger_us(request: Any, plans: Collection[Planned]) -> int | None:
    """Return the write timestamp that the ledger has for the row of a request; None: that is not known.

    Where a plan has event times, a request has these instead; and two plans may share a statement. A total is
    of several rows, and a row with a condition is dated by the server.
    """
    row = row_of(request, plans)
    if row is None or any(planned_times(each.plan).event_column for each in plans):
        return None
    if row.plan.one_session:
        return None
    of = row.statement
    stamp = row.values[0 if of.stamp_first else of.columns.stop]
    assert stamp is not None
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
        if column.role in ("partition", "clustering")  # others are not shown
        else None
        for column, kind, value in zip(
            of.plan.columns, types[of.columns], row.values[of.columns], strict=True
        )
    ]
    return f"{key_text(of.plan, decoded)} of {of.plan.table}"


_LENGTH, _STAMP = 4, 8
"""Bytes on the wire: before each value, and of a write timestamp."""


def encoded(prepared: Prepared, rows: Stamped, parts: list[Part]) -> Iterator[Any]:
    """Make requests of encoded rows.

    :param rows: of which `parts` are the parts.
    """
    found = one_after_the_other(
        [
            encode(
                part.rows.batch,
                part.statement.plan,
                part.rows.stamps,
                part.statement.head,
                stamp_first=part.statement.stamp_first,
                ttls=part.ttls,
                cleared=part.cleared,
            )
            for part in parts
        ]
    )
    sizes, where = np.diff(found.offsets), places(parts)
    sizes = sizes if where is None else sizes[where]
    of = prepared.statements.upsert
    before = of.columns.start or 0
    indexes = [index - before for index in of.prepared.routing_key_indexes]
    keys = routing_keys(table_rows(rows.batch, of.plan), of.plan, indexes)
    batches = in_batches(keys, sizes, prepared.limits, prepared.replicas)
    keyspace, nodes = prepared.plan.details["keyspace"], prepared.replicas.nodes
    return encoded_requests(found, keys, batches, keyspace, where, nodes)


def bound(prepared: Prepared, rows: Stamped, parts: list[Part]) -> Iterator[Any]:  # noqa: ARG001 -- as `encoded`
    """Make requests by the classes of a driver that `frames` does not know."""
    statements: list[Any] = []
    lengths: list[int] = []
    for part in parts:
        of = part.statement
        values = bind(
            part.rows.batch,
            of.plan,
            part.rows.stamps.tolist(),
            stamp_first=of.stamp_first,
            ttls=None if part.ttls is None else part.ttls.tolist(),
            cleared=part.cleared,
        )
        statements += [of.prepared.bind(each) for each in values.values]
        around = len(of.head) + _LENGTH * (len(of.plan.columns) + 1) + _STAMP
        lengths += [size + around for size in values.sizes]
    if (where := places(parts)) is not None:
        statements = [statements[place] for place in where]
        lengths = [lengths[place] for place in where]
    keys = pa.array([statement.routing_key for statement in statements], pa.binary())
    sizes = np.array(lengths, np.int64)
    batches = in_batches(keys, sizes, prepared.limits, prepared.replicas)
    return bound_requests(statements, batches)
