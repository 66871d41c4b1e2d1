"""The statements by which a plan's rows are written: an INSERT, and a DELETE for each prefix of the key.

INSERT, not UPDATE, so that a row without values exists, too. Every statement has a marker for the write
timestamp: the order between rows of one key is by their timestamps alone, whichever statement comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.driver.frames import statement_head
from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.names import quote
from wal_sink.targets.cassandra.types.clustering import clustering_of
from wal_sink.targets.cassandra.write.slice_buffer import Stamped
from wal_sink.targets.values.operations import are_deletes

Ints = npt.NDArray[np.int64]

_UPSERT = -1
"""The kind of a row that is inserted; that of a delete is the number of clustering columns that it has."""


class Statement(NamedTuple):
    """A prepared statement, and what it takes of a row."""

    prepared: Any
    """The driver's; while it is held, the driver prepares it where a server forgot it."""
    plan: Plan
    """With the columns whose values it takes, in their order."""
    head: bytes
    """What stands before the values of each row in a batch."""
    stamp_first: bool
    """Whether the timestamp comes before the columns, not after them."""


class Part(NamedTuple):
    """The rows of a slice that one statement writes."""

    statement: Statement
    positions: Ints | None
    """In the slice, ascending; None: it is the whole slice."""
    rows: Stamped
    """With the statement's columns."""


class Statements:
    """The statements of a plan; that for each kind of deletes is prepared when such a row comes first.

    :param plan: with its operation column, if it has one.
    :param prepare: of the driver's session.
    """

    def __init__(self, plan: Plan, prepare: Callable[[str], Any]) -> None:
        self._plan = plan
        self._prepare = prepare
        table = plan.of_table()
        self.upsert = self._prepared(insert(table), table, stamp_first=False)
        self._by_kind = {_UPSERT: self.upsert}

    def known(self) -> Iterator[Statement]:
        """Yield what is prepared so far."""
        yield from self._by_kind.values()

    def divide(self, rows: Stamped) -> list[Part]:
        """Divide the rows of a slice by the statement that writes them; at least one part.

        :raises Exception: of the driver, when it cannot prepare one.
        """
        if self._plan.operation is None:
            return [Part(self.upsert, None, rows)]
        kinds = _kinds(rows.batch, self._plan)
        found = (np.flatnonzero(np.bincount(kinds - _UPSERT)) + _UPSERT).tolist()
        if len(found) < 2:
            statement = self._of(found[0]) if found else self.upsert
            return [_part(statement, None, rows)]
        return [_part(self._of(kind), kinds == kind, rows) for kind in found]

    def _of(self, kind: int) -> Statement:
        if kind not in self._by_kind:
            partition = [each.name for each in self._plan.columns if each.role == "partition"]
            names = [*partition, *clustering_of(self._plan)[:kind]]
            by_name = {column.name: column for column in self._plan.columns}
            columns = tuple(by_name[name] for name in names)
            plan = msgspec.structs.replace(self._plan, columns=columns)
            self._by_kind[kind] = self._prepared(delete(plan), plan, stamp_first=True)
        return self._by_kind[kind]

    def _prepared(self, query: str, plan: Plan, *, stamp_first: bool) -> Statement:
        statement = self._prepare(query)
        statement.is_idempotent = True
        head = statement_head(statement.query_id, len(plan.columns) + 1)
        return Statement(statement, plan, head, stamp_first)


def insert(plan: Plan) -> str:
    """Return the statement for one row: a value for each column of the plan, then the timestamp."""
    columns = ", ".join(quote(column.in_table) for column in plan.columns)
    marks = ", ".join("?" for _ in plan.columns)
    return f"INSERT INTO {plan.table} ({columns}) VALUES ({marks}) USING TIMESTAMP ?"  # noqa: S608 -- quoted names


def delete(plan: Plan) -> str:
    """Return the statement for one delete: the timestamp, then a value for each column of the plan."""
    where = " AND ".join(f"{quote(column.in_table)} = ?" for column in plan.columns)
    return f"DELETE FROM {plan.table} USING TIMESTAMP ? WHERE {where}"  # noqa: S608 -- quoted names


def table_rows(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Return the columns that the table has."""
    return batch if plan.operation is None else batch.drop_columns([plan.operation])


def _kinds(batch: pa.RecordBatch, plan: Plan) -> Ints:
    """Return what kind of statement writes each row; `check` has seen that nulls come last."""
    names = clustering_of(plan)
    given = np.full(batch.num_rows, len(names), np.int64)
    for name in names:
        column = batch.column(name)
        if column.null_count:
            given -= column.is_null().to_numpy(zero_copy_only=False)
    deletes = are_deletes(batch.column(plan.operation)).to_numpy(zero_copy_only=False)
    return np.where(deletes, given, _UPSERT)


def _part(statement: Statement, chosen: npt.NDArray[np.bool_] | None, rows: Stamped) -> Part:
    batch = rows.batch.select([column.name for column in statement.plan.columns])
    if chosen is None:
        return Part(statement, None, Stamped(batch, rows.stamps))
    kept = batch.filter(views.flags(chosen))
    return Part(statement, np.flatnonzero(chosen), Stamped(kept, rows.stamps[chosen]))


def places(parts: list[Part]) -> Ints | None:
    """Return where each row of the slice is, when the rows of the parts come one after the other.

    None: they are in the order of the slice.
    """
    positions = [part.positions for part in parts if part.positions is not None]
    if not positions:
        return None
    order = np.concatenate(positions)
    found = np.empty_like(order)
    found[order] = np.arange(len(order))
    return found
