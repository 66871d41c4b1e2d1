"""The statements by which a plan's rows are written: an INSERT, and a DELETE for each prefix of the key.

INSERT, so that a row without values exists, too; an UPDATE where the option says that it shall not. Every
statement has a marker for the write timestamp: the order between rows of one key is by their timestamps
alone, whichever statement comes first. Where rows have a TTL, an upsert takes what is left of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from cassandra.query import BatchStatement, BatchType, BoundStatement

from wal_sink.targets.cassandra.arrow_buffers import flags
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, statement_head
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan
from wal_sink.targets.cassandra.rows import (
    Ints,
    RowGroup,
    StatementKind,
    TimestampedRows,
    row_groups,
    with_event_times,
)
from wal_sink.targets.names import quote
from wal_sink.targets.unavailable import flag_name


class Statement(NamedTuple):
    """A prepared statement, and what it takes of a row."""

    prepared: Any
    """The driver's; while it is held, the driver prepares it where a server forgot it."""
    plan: CassandraPlan
    """With the columns whose values it takes, in their order."""
    head: bytes
    """What stands before the values of each row in a batch."""
    stamp_first: bool
    """Whether the timestamp comes before the columns, not after them."""
    with_ttl: bool = False
    """Whether the TTL comes after the timestamp."""

    @property
    def columns(self) -> slice:
        """Where the values of the columns are among all that it takes."""
        beside = 1 + self.with_ttl
        return slice(beside, None) if self.stamp_first else slice(None, -beside)


class Part(NamedTuple):
    """The rows of a slice that one statement writes."""

    statement: Statement
    positions: Ints | None
    """In the slice, ascending; None: it is the whole slice."""
    rows: TimestampedRows
    """With the statement's columns."""
    ttls: Ints | None = None
    """The TTL of each row in seconds, 1 or more; None: the statement takes none."""
    cleared: bool = False
    """Whether the rows have expired: each value is written as null, with a TTL of one second."""


class Statements:
    """The statements of a plan; that for each kind of deletes is prepared when such a row comes first.

    :param plan: with its operation column, if it has one.
    :param prepare: of the driver's session.
    """

    def __init__(self, plan: CassandraPlan, prepare: Callable[[str], Any]) -> None:
        self._plan = plan
        self._prepare = prepare
        table = plan.of_table()
        self.upsert = self._upsert(_values_first(table) if plan.details.update else table)
        self._by_kind = {(StatementKind.UPSERT, 0, False): self.upsert}

    @property
    def keyspace(self) -> str:
        """The keyspace of the table."""
        return self._plan.details.keyspace

    @property
    def sent_once(self) -> bool:
        """Return True if a row may be sent once only with each timestamp."""
        return self._plan.sent_once

    @property
    def by_id(self) -> dict[bytes, Statement]:
        """The statements that are prepared so far, by their ids."""
        statements = self._by_kind.values()
        return {statement.prepared.query_id: statement for statement in statements}

    def divide(self, rows: TimestampedRows, ttls: Ints | None = None) -> list[Part]:
        """Divide the rows of a slice by the statement that writes them; at least one part.

        :param ttls: seconds that each row still has, 0 or less where it has expired; None: none ever expires.
        :raises Exception: of the driver, when it cannot prepare one.
        """
        rows = with_event_times(rows, self._plan)
        return [
            _part(self._of(group, with_ttl=ttls is not None), group, rows, ttls)
            for group in row_groups(rows.batch, self._plan, ttls)
        ]

    def _of(self, group: RowGroup, *, with_ttl: bool) -> Statement:
        with_ttl = with_ttl and group.kind is StatementKind.UPSERT
        statement = group.kind, group.depth, with_ttl
        if statement not in self._by_kind:
            self._by_kind[statement] = self._new(*statement)
        return self._by_kind[statement]

    def _new(self, kind: StatementKind, depth: int, with_ttl: bool) -> Statement:
        if kind is StatementKind.UPSERT:
            return self._upsert(self.upsert.plan, with_ttl=with_ttl)
        partition = [column.name for column in self._plan.columns if column.role == "partition"]
        names = [*partition, *self._plan.details.clustering[:depth]]
        by_name = {column.name: column for column in self._plan.columns}
        columns = tuple(by_name[name] for name in names)
        plan = msgspec.structs.replace(self._plan, columns=columns)
        return self._prepared(delete(plan), plan, stamp_first=True)

    def _upsert(self, table: CassandraPlan, *, with_ttl: bool = False) -> Statement:
        query = upsert(table, with_ttl=with_ttl)
        return self._prepared(query, table, stamp_first=table.details.update, with_ttl=with_ttl)

    def _prepared(
        self, query: str, plan: CassandraPlan, *, stamp_first: bool = False, with_ttl: bool = False
    ) -> Statement:
        statement = self._prepare(query)
        statement.is_idempotent = True
        head = statement_head(statement.query_id, len(plan.columns) + 1 + with_ttl)
        return Statement(statement, plan, head, stamp_first, with_ttl)


def bound(request: EncodedBatch) -> Any:
    """Return a request by the driver's public classes.

    A batch gets routing key and keyspace from its first row. It has no timestamp of its own, which would be
    the same for all its rows.
    """
    by_id = request.statements.by_id
    batch = BatchStatement(BatchType.UNLOGGED)
    batch.is_idempotent = True
    for query_id, values in request.rows():
        row = BoundStatement(by_id[query_id].prepared)
        row.values = values
        row.is_idempotent = True
        batch.add(row)
    return batch


def upsert(plan: CassandraPlan, *, with_ttl: bool = False) -> str:
    """Return the statement for one row: a value for each column of the plan, then the timestamp.

    :param plan: for an UPDATE with the columns of the key after the others; its timestamp comes first.
    :param with_ttl: whether the TTL follows the timestamp.
    """
    using = " USING TIMESTAMP ? AND TTL ?" if with_ttl else " USING TIMESTAMP ?"
    if not plan.details.update:
        columns = ", ".join(quote(column.in_table) for column in plan.columns)
        marks = ", ".join("?" for _ in plan.columns)
        return f"INSERT INTO {plan.table} ({columns}) VALUES ({marks}){using}"  # noqa: S608 -- quoted names
    keys, values = list[str](), list[str]()
    for column in plan.columns:
        (keys if column.role in KEY else values).append(f"{quote(column.in_table)} = ?")
    where = " AND ".join(keys)
    return f"UPDATE {plan.table}{using} SET {', '.join(values)} WHERE {where}"  # noqa: S608 -- quoted names


def _values_first(plan: CassandraPlan) -> CassandraPlan:
    columns = sorted(plan.columns, key=lambda column: column.role in KEY)
    return msgspec.structs.replace(plan, columns=tuple(columns))


def delete(plan: CassandraPlan) -> str:
    """Return the statement for one delete: the timestamp, then a value for each column of the plan."""
    where = " AND ".join(f"{quote(column.in_table)} = ?" for column in plan.columns)
    return f"DELETE FROM {plan.table} USING TIMESTAMP ? WHERE {where}"  # noqa: S608 -- quoted names


def table_rows(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Return the columns that the table has, and after them the flags of unavailable cells."""
    names = [column.name for column in plan.of_table().columns]
    names += [flag for flag in map(flag_name, names) if flag in batch.schema.names]
    return batch if names == batch.schema.names else batch.select(names)


def _part(statement: Statement, group: RowGroup, rows: TimestampedRows, ttls: Ints | None) -> Part:
    batch = table_rows(rows.batch, statement.plan)
    ttls = np.maximum(ttls, 1) if ttls is not None and statement.with_ttl else None
    chosen = group.rows
    if chosen is None:
        kept = TimestampedRows(batch, rows.timestamps_us)
        return Part(statement, None, kept, ttls, group.expired)
    kept = TimestampedRows(batch.filter(flags(chosen)), rows.timestamps_us[chosen])
    ttls = None if ttls is None else ttls[chosen]
    return Part(statement, np.flatnonzero(chosen), kept, ttls, group.expired)


def places(parts: list[Part]) -> Ints | None:
    """Return where each row of the slice is, when the rows of the parts come one after the other.

    None: they are in the order of the slice.
    """
    positions = [part.positions for part in parts if part.positions is not None]
    if not positions:
        return None
    order = np.concatenate(positions)
    ranks = np.empty_like(order)
    ranks[order] = np.arange(len(order))
    return ranks
