"""The statements that write the rows of a plan: an upsert, and DELETEs by the first columns of the key.

An upsert is an INSERT, or an UPDATE if the option `cassandra.writeMode` says so. Each statement has a marker
for the write timestamp. If two rows have the same key, the later timestamp wins, in any order of arrival. If
the plan has a column of event times, the event time of a row is its write timestamp.

After an outage a row is written late, and after a crash it is written again. If the TTL counted from the time
of writing, the row would expire later each time. So the second in which a row expires is fixed when the row
is published, and the row is written with the remaining TTL.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from cassandra.query import BatchStatement, BatchType, BoundStatement

from wal_sink.model.plan import Column
from wal_sink.targets.cassandra.arrow_buffers import Ints, elements, flags
from wal_sink.targets.cassandra.driver.frames import EncodedBatch, statement_head
from wal_sink.targets.cassandra.encode import (
    Varying,
    concatenated_rows,
    encode,
    reordered,
    routing_keys,
)
from wal_sink.targets.cassandra.row_plan import (
    EXPIRES_US,
    KEY,
    MAX_TTL_S,
    TIMESTAMP_US,
    TTL_S,
    CassandraPlan,
    CassandraRowPlan,
)
from wal_sink.targets.cdc import are_deletes, flag_name
from wal_sink.targets.ddl import quote
from wal_sink.units import now_us

Flags = npt.NDArray[np.bool_]
_SECOND_US = 1_000_000


class TimestampedRows(NamedTuple):
    """Rows of the log with their write timestamps."""

    batch: pa.RecordBatch
    timestamps_us: Ints
    """Microseconds since 1970, one for each row."""


class Statement(NamedTuple):
    """A prepared statement, and the order of its values."""

    prepared: Any
    """The driver's prepared statement."""
    plan: CassandraPlan
    """The plan with the columns of the statement, in the statement's order."""
    head: bytes
    """The bytes before a row's values in a batch, see `frames.statement_head`."""
    timestamp_first: bool
    """True if the write timestamp comes before the columns, False if after them."""
    with_ttl: bool = False
    """True if a TTL follows the timestamp."""

    @property
    def columns(self) -> slice:
        """The positions of the columns among the statement's values."""
        beside = 1 + self.with_ttl
        return slice(beside, None) if self.timestamp_first else slice(None, -beside)


class Statements:
    """Prepares the statements of a plan when they are needed, and encodes rows for them.

    :param plan: the plan, including its control columns.
    :param prepare: `prepare` of the driver's session.
    """

    def __init__(self, plan: CassandraPlan, prepare: Callable[[str], Any]) -> None:
        self._plan = plan
        self._prepare = prepare
        self.keyspace = plan.details.keyspace
        self.sent_once = plan.sent_once
        """True if a row must not be sent twice with the same timestamp."""
        self._prepared: dict[tuple[int | None, bool], Statement] = {}
        self.upsert = self._statement(None, with_ttl=False)

    @property
    def by_id(self) -> dict[bytes, Statement]:
        """The statements that are prepared so far, by the id of the prepared statement."""
        statements = self._prepared.values()
        return {statement.prepared.query_id: statement for statement in statements}

    def encode(self, rows: TimestampedRows, default_ttl_s: int = 0) -> tuple[Varying, pa.Array]:
        """Encode the rows of a slice. Also return the routing key of each row.

        :param default_ttl_s: the table's default TTL in seconds; 0 for none.
        :raises Exception: an error of the driver, which cannot prepare a statement.
        """
        now_s = now_us() // _SECOND_US
        ttls = remaining_ttls(rows, self._plan.details, now_s, default_ttl_s)
        plan, first = self.upsert.plan, self.upsert.columns.start or 0
        indexes = [index - first for index in self.upsert.prepared.routing_key_indexes]
        keys = routing_keys(table_rows(rows.batch, plan), plan, indexes)
        return self.encode_rows(rows, ttls), keys

    def encode_rows(self, rows: TimestampedRows, ttls: Ints | None = None) -> Varying:
        """Encode the rows of a slice in their order, each row for its statement.

        :param ttls: the seconds until each row expires; None if rows never expire.
        :raises Exception: an error of the driver, which cannot prepare a statement.
        """
        if self._plan.details.timestamp_column:
            event_times_us = elements(rows.batch.column(TIMESTAMP_US), "i8")
            rows = rows._replace(timestamps_us=event_times_us)
        masks = _masks(rows.batch, self._plan)
        if len(masks) == 1:
            return self._encoded(next(iter(masks)), rows, ttls)
        parts = [self._encoded(depth, rows, ttls, mask) for depth, mask in masks.items()]
        positions = [np.flatnonzero(mask) for mask in masks.values()]
        return reordered(concatenated_rows(parts), np.argsort(np.concatenate(positions)))

    def _encoded(
        self,
        delete_depth: int | None,
        rows: TimestampedRows,
        ttls: Ints | None,
        mask: Flags | None = None,
    ) -> Varying:
        """Encode rows for one statement.

        :param mask: flags of the rows to encode; None for all rows.
        """
        if delete_depth is not None:
            ttls = None
        statement = self._statement(delete_depth, with_ttl=ttls is not None)
        batch, timestamps_us = table_rows(rows.batch, statement.plan), rows.timestamps_us
        if mask is not None:
            batch, timestamps_us = batch.filter(flags(mask)), timestamps_us[mask]
            ttls = None if ttls is None else ttls[mask]
        first = statement.timestamp_first
        plan, head = statement.plan, statement.head
        return encode(batch, plan, timestamps_us, head, timestamp_first=first, ttls=ttls)

    def _statement(self, delete_depth: int | None, *, with_ttl: bool) -> Statement:
        """Return the upsert, or the DELETE by the first columns of the key.

        :param delete_depth: the number of clustering columns in the WHERE clause; None for the upsert.
        """
        key = delete_depth, with_ttl
        if key not in self._prepared:
            columns = self._columns(delete_depth)
            plan = msgspec.structs.replace(self._plan, columns=columns)
            query = upsert(plan, with_ttl=with_ttl) if delete_depth is None else delete(plan)
            prepared = self._prepare(query)
            head = statement_head(prepared.query_id, len(columns) + 1 + with_ttl)
            first = plan.details.update or delete_depth is not None
            self._prepared[key] = Statement(prepared, plan, head, first, with_ttl)
        return self._prepared[key]

    def _columns(self, delete_depth: int | None) -> tuple[Column, ...]:
        columns, details = self._plan.of_table().columns, self._plan.details
        if delete_depth is None:
            key_last = sorted(columns, key=lambda column: column.role in KEY)
            return tuple(key_last) if details.update else columns
        partition = [column.name for column in columns if column.role == "partition"]
        by_name = {column.name: column for column in columns}
        return tuple(by_name[name] for name in (*partition, *details.clustering[:delete_depth]))


def remaining_ttls(
    rows: TimestampedRows, details: CassandraRowPlan, now_s: int, default_ttl_s: int = 0
) -> Ints | None:
    """Return the seconds until each row expires, 0 or less for an expired row; None if rows never expire.

    :param rows: the rows, with the timestamps at which they were published, not with event times.
    :param now_s: the present time, in seconds since 1970.
    :param default_ttl_s: the table's default TTL in seconds; 0 for none.
    """
    longest_ttl_s: Ints | int = details.ttl_s or default_ttl_s
    if details.expires_at_column:
        longest_ttl_s = MAX_TTL_S
        expiry_s = -(-elements(rows.batch.column(EXPIRES_US), "i8") // _SECOND_US)
    elif details.ttl_column or longest_ttl_s:
        if details.ttl_column:
            longest_ttl_s = elements(rows.batch.column(TTL_S), "i8")
        expiry_s = rows.timestamps_us // _SECOND_US + longest_ttl_s
    else:
        return None
    # If a timestamp is ahead of the clock, the TTL must not become longer.
    remaining_s: Ints = np.minimum(expiry_s - now_s, longest_ttl_s)
    return remaining_s


def driver_statement(request: EncodedBatch) -> Any:
    """Return a request as a batch statement of the driver.

    The driver derives routing key and keyspace of the batch from the first row.
    """
    by_id = request.statements.by_id
    batch = BatchStatement(BatchType.UNLOGGED)  # without a timestamp: each row has its own
    for query_id, values in request.rows():
        row = BoundStatement(by_id[query_id].prepared)
        row.values = values
        batch.add(row)
    return batch


def upsert(plan: CassandraPlan, *, with_ttl: bool = False) -> str:
    """Return the statement that upserts one row.

    It is an UPDATE if `plan.details.update` is true, else an INSERT. The values to bind are the plan's
    columns in their order, then timestamp and TTL. For an UPDATE, timestamp and TTL come first.

    :param plan: for an UPDATE, sorted so that the columns of the key are last.
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


def delete(plan: CassandraPlan) -> str:
    """Return the DELETE with all columns of a plan in its WHERE clause.

    The values to bind are the timestamp, then the columns in the plan's order.
    """
    where = " AND ".join(f"{quote(column.in_table)} = ?" for column in plan.columns)
    return f"DELETE FROM {plan.table} USING TIMESTAMP ? WHERE {where}"  # noqa: S608 -- quoted names


def table_rows(batch: pa.RecordBatch, plan: CassandraPlan) -> pa.RecordBatch:
    """Return the columns of the plan that are in the table, then the flags of their unavailable cells."""
    names = [column.name for column in plan.of_table().columns]
    names += [flag for flag in map(flag_name, names) if flag in batch.schema.names]
    return batch if names == batch.schema.names else batch.select(names)


def _masks(batch: pa.RecordBatch, plan: CassandraPlan) -> dict[int | None, Flags]:
    """Return flags of the rows of each statement that writes rows; of the upsert if there are no rows.

    The key is None for the upsert, and the number of clustering columns in the WHERE clause for a DELETE.
    """
    if plan.operation is None:
        return {None: np.ones(batch.num_rows, np.bool_)}
    deletes = are_deletes(batch.column(plan.operation)).to_numpy(zero_copy_only=False)
    upserts = ~deletes
    masks = _deletes(batch, plan.details.clustering, deletes)
    masks[None] = upserts
    return {depth: mask for depth, mask in masks.items() if mask.any()} or {None: upserts}


def _deletes(
    batch: pa.RecordBatch, clustering: tuple[str, ...], deletes: Flags
) -> dict[int | None, Flags]:
    # In a delete, only the last clustering columns are null (`rows.without_deleted_values`).
    depths = np.full(batch.num_rows, len(clustering), np.int64)
    for name in clustering:
        depths -= batch.column(name).is_null().to_numpy(zero_copy_only=False)
    return {depth: deletes & (depths == depth) for depth in range(len(clustering) + 1)}
