"""The statements by which a plan's rows are written: an INSERT, and a DELETE for each prefix of the key.

INSERT, so that a row without values exists, too; an UPDATE where the option says that it shall not. Every
statement has a marker for the write timestamp: the order between rows of one key is by their timestamps
alone, whichever statement comes first. Where rows have a TTL, an upsert takes what is left of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cassandra.query import BatchStatement, BatchType, BoundStatement

from wal_sink.clock import now_us
from wal_sink.targets.cassandra.arrow_buffers import flags
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, statement_head
from wal_sink.targets.cassandra.encode import (
    Encoded,
    encode,
    one_after_the_other,
    routing_keys,
)
from wal_sink.targets.cassandra.row_plan import KEY, CassandraPlan
from wal_sink.targets.cassandra.rows import (
    Ints,
    TimestampedRows,
    remaining_ttls,
    with_event_times,
)
from wal_sink.targets.deletes import are_deletes
from wal_sink.targets.sql_text import quote
from wal_sink.targets.unavailable import flag_name

Flags = npt.NDArray[np.bool_]


class StatementKind(enum.Enum):
    """The kinds of statements that write a row."""

    UPSERT = enum.auto()
    DELETE_ROW = enum.auto()
    DELETE_RANGE = enum.auto()
    """Of all rows of a partition, or of those under a prefix of the clustering columns."""


class Statement(NamedTuple):
    """A prepared statement, and what it takes of a row."""

    prepared: Any
    """The driver's; while it is held, the driver prepares it where a server forgot it."""
    plan: CassandraPlan
    """With the columns whose values it takes, in their order."""
    head: bytes
    """What stands before the values of each row in a batch."""
    timestamp_first: bool
    """Whether the write timestamp comes before the columns, not after them."""
    with_ttl: bool = False
    """Whether the TTL comes after the timestamp."""

    @property
    def columns(self) -> slice:
        """Where the values of the columns are among all that it takes."""
        beside = 1 + self.with_ttl
        return slice(beside, None) if self.timestamp_first else slice(None, -beside)


class StatementRows(NamedTuple):
    """The rows of a slice that one statement writes."""

    statement: Statement
    positions: Ints | None
    """In the slice, ascending; None: it is the whole slice."""
    rows: TimestampedRows
    """With the statement's columns."""
    ttls: Ints | None = None
    """The TTL of each row in seconds, 1 or more; None: the statement takes none."""
    expired: bool = False
    """Whether the rows have expired: each value is written as null, with a TTL of one second."""


class EncodedRows(NamedTuple):
    """The rows of a slice as bytes."""

    encoded: Encoded
    """Those of one statement after those of another."""
    positions: Ints | None
    """Where each row of the slice is among them; None: they are in the order of the slice."""
    keys: pa.Array
    """The routing key of each row of the slice, binary."""


class Statements:
    """The statements of a plan; that for each kind of deletes is prepared when such a row comes first.

    :param plan: with its operation column, if it has one.
    :param prepare: of the driver's session.
    """

    def __init__(self, plan: CassandraPlan, prepare: Callable[[str], Any]) -> None:
        self._plan = plan
        self._prepare = prepare
        self.keyspace = plan.details.keyspace
        self.sent_once = plan.sent_once
        """True if a row may be sent once only with each timestamp."""
        table = plan.of_table()
        self.upsert = self._upsert(_values_first(table) if plan.details.update else table)
        self._prepared = {(StatementKind.UPSERT, 0, False): self.upsert}

    @property
    def by_id(self) -> dict[bytes, Statement]:
        """The statements that are prepared so far, by their ids."""
        statements = self._prepared.values()
        return {statement.prepared.query_id: statement for statement in statements}

    def encode(self, rows: TimestampedRows, default_ttl_s: int = 0) -> EncodedRows:
        """Encode the rows of a slice.

        :param default_ttl_s: of the table, seconds; 0: rows never expire by it.
        :raises Exception: of the driver, when it cannot prepare a statement.
        """
        now_s = now_us() // 1_000_000
        parts = self.divide(
            rows, remaining_ttls(rows, self._plan.details.ttl, now_s, default_ttl_s)
        )
        encoded = one_after_the_other([_encoded(part) for part in parts])
        plan, first = self.upsert.plan, self.upsert.columns.start or 0
        indexes = [index - first for index in self.upsert.prepared.routing_key_indexes]
        keys = routing_keys(table_rows(rows.batch, plan), plan, indexes)
        return EncodedRows(encoded, places(parts), keys)

    def divide(self, rows: TimestampedRows, ttls: Ints | None = None) -> list[StatementRows]:
        """Divide the rows of a slice by the statement that writes them; at least one part.

        :param ttls: seconds that each row still has, 0 or less where it has expired; None: none ever expires.
        :raises Exception: of the driver, when it cannot prepare one.
        """
        rows = with_event_times(rows, self._plan)
        masks = _masks(rows.batch, self._plan, ttls)
        if len(masks) == 1:
            return [self._part(way, None, rows, ttls) for way in masks]
        return [self._part(way, mask, rows, ttls) for way, mask in masks.items()]

    def _part(
        self, way: RowWay, mask: Flags | None, rows: TimestampedRows, ttls: Ints | None
    ) -> StatementRows:
        if way.kind is not StatementKind.UPSERT:
            ttls = None
        statement = self._statement(way.kind, way.depth, with_ttl=ttls is not None)
        batch, positions = table_rows(rows.batch, statement.plan), None
        timestamps_us = rows.timestamps_us
        if mask is not None:
            batch, positions = batch.filter(flags(mask)), np.flatnonzero(mask)
            timestamps_us = timestamps_us[mask]
            ttls = None if ttls is None else ttls[mask]
        ttls = None if ttls is None else np.maximum(ttls, 1)
        part = TimestampedRows(batch, timestamps_us)
        return StatementRows(statement, positions, part, ttls, way.expired)

    def _statement(self, kind: StatementKind, depth: int, *, with_ttl: bool) -> Statement:
        key = kind, depth, with_ttl
        if key not in self._prepared:
            is_upsert = kind is StatementKind.UPSERT
            self._prepared[key] = (
                self._upsert(self.upsert.plan, with_ttl=with_ttl)
                if is_upsert
                else self._delete(depth)
            )
        return self._prepared[key]

    def _delete(self, depth: int) -> Statement:
        partition = [column.name for column in self._plan.columns if column.role == "partition"]
        names = [*partition, *self._plan.details.clustering[:depth]]
        by_name = {column.name: column for column in self._plan.columns}
        columns = tuple(by_name[name] for name in names)
        plan = msgspec.structs.replace(self._plan, columns=columns)
        return self._statement_of(delete(plan), plan, timestamp_first=True)

    def _upsert(self, table: CassandraPlan, *, with_ttl: bool = False) -> Statement:
        query = upsert(table, with_ttl=with_ttl)
        first = table.details.update
        return self._statement_of(query, table, timestamp_first=first, with_ttl=with_ttl)

    def _statement_of(
        self, query: str, plan: CassandraPlan, *, timestamp_first: bool, with_ttl: bool = False
    ) -> Statement:
        prepared = self._prepare(query)
        prepared.is_idempotent = True
        head = statement_head(prepared.query_id, len(plan.columns) + 1 + with_ttl)
        return Statement(prepared, plan, head, timestamp_first, with_ttl)


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


def _encoded(part: StatementRows) -> Encoded:
    statement = part.statement
    return encode(
        part.rows.batch,
        statement.plan,
        part.rows.timestamps_us,
        statement.head,
        timestamp_first=statement.timestamp_first,
        ttls=part.ttls,
        expired=part.expired,
    )


def table_rows(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Return the columns that the table has, and after them the flags of unavailable cells."""
    names = [column.name for column in plan.of_table().columns]
    names += [flag for flag in map(flag_name, names) if flag in batch.schema.names]
    return batch if names == batch.schema.names else batch.select(names)


class RowWay(NamedTuple):
    """How a row is written."""

    kind: StatementKind = StatementKind.UPSERT
    depth: int = 0
    """The number of clustering columns by which a delete finds rows."""
    expired: bool = False
    """True for upserts that have expired: they are written as null, with a TTL of one second."""


def _masks(
    batch: pa.RecordBatch, plan: CassandraPlan, ttls: Ints | None = None
) -> dict[RowWay, Flags]:
    """Return which rows of the log are written in which way, at least one.

    :param ttls: see `remaining_ttls`.
    """
    upserts = np.ones(batch.num_rows, np.bool_)
    if plan.operation is None and ttls is None:
        return {RowWay(): upserts}
    masks: dict[RowWay, Flags] = {}
    if plan.operation is not None:
        deletes = are_deletes(batch.column(plan.operation)).to_numpy(zero_copy_only=False)
        upserts = ~deletes
        masks = _deletes(batch, plan.details.clustering, deletes)
    expired = ~upserts if ttls is None else ttls < 1
    masks |= {RowWay(expired=True): upserts & expired, RowWay(): upserts & ~expired}
    return {way: mask for way, mask in masks.items() if mask.any()} or {RowWay(): upserts}


def _deletes(
    batch: pa.RecordBatch, clustering: tuple[str, ...], deletes: Flags
) -> dict[RowWay, Flags]:
    """Divide deletes by the number of clustering columns that they have; the tasks let nulls come last."""
    depths = np.full(batch.num_rows, len(clustering), np.int64)
    for name in clustering:
        depths -= batch.column(name).is_null().to_numpy(zero_copy_only=False)
    return {
        RowWay(
            StatementKind.DELETE_ROW if depth == len(clustering) else StatementKind.DELETE_RANGE,
            depth,
        ): deletes & (depths == depth)
        for depth in range(len(clustering) + 1)
    }


def places(parts: list[StatementRows]) -> Ints | None:
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
