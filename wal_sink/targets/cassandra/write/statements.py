"""The statements by which a plan's rows are written: an INSERT, and a DELETE for each prefix of the key.

INSERT, so that a row without values exists, too; an UPDATE where the option says that it shall not. Every
statement has a marker for the write timestamp: the order between rows of one key is by their timestamps
alone, whichever statement comes first. Where rows live for a time only, an upsert takes what is left of it;
elements that a row would have added to a collection are taken out once its life is over.

Converts the log's columns to the values that the driver binds to statements, a column at a time.

Only for a driver whose batches `driver.frames` cannot encode.

Makes requests of rows that are written where there is none of their key: one for the first row of each.

A batch with conditions is taken as a whole or not at all, so each row is a request by itself. Of the rows of
a key that wait together the first one alone is sent: once it is acknowledged there is a row, from here or
from elsewhere, and the others would change nothing.

The server agrees on such rows one after the other within a partition; several at once would be in each
other's way, and time out. So requests come in rounds, in each of which a partition has one row.
"""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from cassandra.query import UNSET_VALUE
from cassandra.util import Duration

from wal_sink.model.plan import Plan
from wal_sink.targets.arrow_values import are_deletes, long
from wal_sink.targets.cassandra.casts import sizes, unnest
from wal_sink.targets.cassandra.driver.frames import statement_head
from wal_sink.targets.cassandra.encode import buffers
from wal_sink.targets.cassandra.encode.rows import distinct_keys
from wal_sink.targets.cassandra.names import quote
from wal_sink.targets.cassandra.row_plan import (
    clustering_of,
    only_absent,
    planned_changes,
    taking_out,
    updates,
)
from wal_sink.targets.cassandra.rules import EVENT_US
from wal_sink.targets.cassandra.types import CqlType, column_types
from wal_sink.targets.cassandra.write.slices import Stamped

Ints = npt.NDArray[np.int64]

_KEY = ("partition", "clustering")

_EXPIRED, _UPSERT = -2, -1
"""The kinds of rows that are inserted: a row whose life is over is written as it is afterwards. The kind of a
delete is the number of clustering columns that it has."""


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
    with_ttl: bool = False
    """Whether the seconds that the row lives come after the timestamp."""
    stamped: bool = True
    """Whether it takes the timestamp: a statement with a condition is dated by the server."""

    @property
    def columns(self) -> slice:
        """Where the values of the columns are among all that it takes."""
        beside = self.stamped + self.with_ttl
        return slice(beside, None) if self.stamp_first else slice(None, -beside or None)


class Part(NamedTuple):
    """The rows of a slice that one statement writes."""

    statement: Statement
    positions: Ints | None
    """In the slice, ascending; None: it is the whole slice."""
    rows: Stamped
    """With the statement's columns."""
    ttls: Ints | None = None
    """Seconds that each row lives, 1 or more; None: the statement does not take them."""
    cleared: bool = False
    """Whether the lives of the rows are over: each value is written as null, and the row lives a second."""


class Statements:
    """The statements of a plan; that for each kind of deletes is prepared when such a row comes first.

    :param plan: with its operation column, if it has one.
    :param prepare: of the driver's session.
    """

    def __init__(self, plan: Plan, prepare: Callable[[str], Any]) -> None:
        self._plan = plan
        self._prepare = prepare
        self._updates, self._stamps = updates(plan), not only_absent(plan)
        self._query = update if self._updates else insert if self._stamps else insert_absent
        table = _values_first(plan.of_table()) if self._updates else plan.of_table()
        self.upsert = self._upsert(table)
        self._by_kind = {(_UPSERT, False): self.upsert}

    def known(self) -> Iterator[Statement]:
        """Yield what is prepared so far."""
        yield from self._by_kind.values()

    def divide(self, rows: Stamped, lives: Ints | None = None) -> list[Part]:
        """Divide the rows of a slice by the statement that writes them; at least one part.

        :param lives: seconds that are left to each row, 0 or less for none; None: they live for ever.
        :raises Exception: of the driver, when it cannot prepare one.
        """
        if EVENT_US in rows.batch.schema.names:
            rows = Stamped(rows.batch, buffers.elements(rows.batch.column(EVENT_US), "i8"))
        if self._plan.operation is None and lives is None:
            return [_part(self.upsert, None, rows, None)]
        kinds = _kinds(rows.batch, self._plan, lives)
        found = (np.flatnonzero(np.bincount(kinds - _EXPIRED)) + _EXPIRED).tolist() or [_UPSERT]
        return [
            _part(
                self._of(kind, with_ttl=lives is not None and kind < 0),
                None if len(found) == 1 else kinds == kind,
                rows,
                lives,
                cleared=kind == _EXPIRED,
            )
            for kind in found
        ]

    def _of(self, kind: int, *, with_ttl: bool) -> Statement:
        statement = kind if planned_changes(self._plan) else max(kind, _UPSERT), with_ttl
        if statement not in self._by_kind:
            self._by_kind[statement] = self._new(*statement)
        return self._by_kind[statement]

    def _new(self, kind: int, with_ttl: bool) -> Statement:
        if kind == _UPSERT:
            return self._upsert(self.upsert.plan, with_ttl=with_ttl)
        if kind == _EXPIRED:
            return self._upsert(taking_out(self.upsert.plan), with_ttl=with_ttl)
        partition = [each.name for each in self._plan.columns if each.role == "partition"]
        names = [*partition, *clustering_of(self._plan)[:kind]]
        by_name = {column.name: column for column in self._plan.columns}
        columns = tuple(by_name[name] for name in names)
        plan = msgspec.structs.replace(self._plan, columns=columns)
        return self._prepared(delete(plan), plan, stamp_first=True)

    def _upsert(self, table: Plan, *, with_ttl: bool = False) -> Statement:
        query = self._query(table, with_ttl=with_ttl)
        return self._prepared(query, table, stamp_first=self._updates, with_ttl=with_ttl)

    def _prepared(
        self, query: str, plan: Plan, *, stamp_first: bool = False, with_ttl: bool = False
    ) -> Statement:
        statement = self._prepare(query)
        statement.is_idempotent = True
        head = statement_head(statement.query_id, len(plan.columns) + self._stamps + with_ttl)
        return Statement(statement, plan, head, stamp_first, with_ttl, self._stamps)


def insert(plan: Plan, *, with_ttl: bool = False) -> str:
    """Return the statement for one row: a value for each column of the plan, then the timestamp.

    :param with_ttl: whether the seconds that the row lives follow.
    """
    return f"{_insert(plan)} {_using(with_ttl)}"


def insert_absent(plan: Plan, *, with_ttl: bool = False) -> str:
    """Return the statement for one row of a key of which there is none: a value for each column of the plan.

    :param with_ttl: whether the seconds that the row lives follow.
    """
    return f"{_insert(plan)} IF NOT EXISTS{' USING TTL ?' if with_ttl else ''}"


def _insert(plan: Plan) -> str:
    columns = ", ".join(quote(column.in_table) for column in plan.columns)
    marks = ", ".join("?" for _ in plan.columns)
    return f"INSERT INTO {plan.table} ({columns}) VALUES ({marks})"  # noqa: S608 -- quoted names


def update(plan: Plan, *, with_ttl: bool = False) -> str:
    """Return the statement for the values of one row: the timestamp, then a value for each of the columns.

    :param plan: with the columns of the key behind the others.
    :param with_ttl: whether the seconds that the row lives come after the timestamp.
    """
    signs = {"add": "+", "remove": "-"}
    changes, keys, values = planned_changes(plan), [], []
    for column in plan.columns:
        name = quote(column.in_table)
        if column.role in _KEY:
            keys.append(f"{name} = ?")
        elif column.name in changes:
            values.append(f"{name} = {name} {signs[changes[column.name]]} ?")
        else:
            values.append(f"{name} = ?")
    where = " AND ".join(keys)
    return f"UPDATE {plan.table} {_using(with_ttl)} SET {', '.join(values)} WHERE {where}"  # noqa: S608 -- quoted names


def _using(with_ttl: bool) -> str:
    return "USING TIMESTAMP ? AND TTL ?" if with_ttl else "USING TIMESTAMP ?"


def _values_first(plan: Plan) -> Plan:
    columns = sorted(plan.columns, key=lambda column: column.role in _KEY)
    return msgspec.structs.replace(plan, columns=tuple(columns))


def delete(plan: Plan) -> str:
    """Return the statement for one delete: the timestamp, then a value for each column of the plan."""
    where = " AND ".join(f"{quote(column.in_table)} = ?" for column in plan.columns)
    return f"DELETE FROM {plan.table} USING TIMESTAMP ? WHERE {where}"  # noqa: S608 -- quoted names


def table_rows(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Return the columns that the table has."""
    names = [column.name for column in plan.of_table().columns]
    return batch if names == batch.schema.names else batch.select(names)


def with_keys_of_maps(batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
    """Return the batch with the keys in place of maps whose entries are taken out."""
    changes = planned_changes(plan)
    for position, (name, column) in enumerate(zip(batch.schema.names, batch.columns, strict=True)):
        if changes.get(name) == "remove" and pa.types.is_map(column.type):
            offsets, entries = unnest(column)
            keys = pa.ListArray.from_arrays(offsets, entries.flatten()[0])
            batch = batch.set_column(position, name, keys)
    return batch


def _kinds(batch: pa.RecordBatch, plan: Plan, lives: Ints | None) -> Ints:
    """Return what kind of statement writes each row; `check` has seen that nulls come last."""
    upserts = np.full(batch.num_rows, _UPSERT, np.int64)
    if lives is not None:
        upserts[lives < 1] = _EXPIRED
    if plan.operation is None:
        return upserts
    names = clustering_of(plan)
    given = np.full(batch.num_rows, len(names), np.int64)
    for name in names:
        column = batch.column(name)
        if column.null_count:
            given -= column.is_null().to_numpy(zero_copy_only=False)
    deletes = are_deletes(batch.column(plan.operation)).to_numpy(zero_copy_only=False)
    return np.where(deletes, given, upserts)


def _part(
    statement: Statement,
    chosen: npt.NDArray[np.bool_] | None,
    rows: Stamped,
    lives: Ints | None,
    *,
    cleared: bool = False,
) -> Part:
    batch = with_keys_of_maps(table_rows(rows.batch, statement.plan), statement.plan)
    ttls = np.maximum(lives, 1) if lives is not None and statement.with_ttl else None
    if chosen is None:
        return Part(statement, None, Stamped(batch, rows.stamps), ttls, cleared)
    kept = Stamped(batch.filter(buffers.flags(chosen)), rows.stamps[chosen])
    ttls = None if ttls is None else ttls[chosen]
    return Part(statement, np.flatnonzero(chosen), kept, ttls, cleared)


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


_DATE_OFFSET = 2**31
"""CQL counts days from -5877641-06-23, and so does the driver where it gets a number."""

_MAPPED = bytes(10) + b"\xff\xff"
"""The first bytes of an IPv6 address that stands for an IPv4 one."""


class BoundRows(NamedTuple):
    """A batch as Python values."""

    values: list[tuple[Any, ...]]
    """Each row in the order of the plan's columns, then its write timestamp, then how long it lives; or the
    timestamp before them."""
    sizes: list[int]
    """Bytes of each row's values, about."""


def bind(
    batch: pa.RecordBatch,
    plan: Plan,
    stamps: Iterable[int] | None,
    *,
    stamp_first: bool = False,
    ttls: Iterable[int] | None = None,
    cleared: bool = False,
) -> BoundRows:
    """Convert a batch that `check` returned, or some of its columns.

    :param stamps: write timestamp of each row; None: the statement does not take them.
    :param stamp_first: whether it stands before the columns.
    :param ttls: seconds to live; None: the statement does not take them.
    :param cleared: whether every value beside the key is written as null; the elements of a changed
        collection are not: the plan has them taken out.
    """
    changes, unset = planned_changes(plan), plan.details["nulls"] == "unset"
    lists: list[Iterable[Any]] = []
    for column, tree, values in zip(plan.columns, column_types(plan), batch.columns, strict=True):
        bound = bind_column(values, tree)
        if values.null_count and (unset or column.name in changes):
            bound = [UNSET_VALUE if value is None else value for value in bound]
        if cleared and column.name not in {*changes, *_keys(plan)}:
            bound = [value if value is UNSET_VALUE else None for value in bound]
        lists.append(bound)
    beside = [each for each in (stamps, ttls) if each is not None]
    return _rows([*beside, *lists] if stamp_first else [*lists, *beside], batch)


def _keys(plan: Plan) -> list[str]:
    return [each.name for each in plan.columns if each.role in ("partition", "clustering")]


def _rows(columns: list[Iterable[Any]], batch: pa.RecordBatch) -> BoundRows:
    total = functools.reduce(pc.add, map(sizes, batch.columns), long(0))
    return BoundRows(values=list(zip(*columns, strict=True)), sizes=total.to_pylist())


class Pairs(tuple[tuple[Any, Any], ...]):
    """A map for the driver's serializers, whose keys need not be hashable."""

    __slots__ = ()

    def items(self) -> Pairs:
        """Return the pairs."""
        return self


class Fields(tuple[Any, ...]):
    """A value of a user-defined type; fields that the type got since are null."""

    __slots__ = ()

    def __getitem__(self, position: Any) -> Any:
        """Return a field; the driver asks for each by its position."""
        return super().__getitem__(position) if position < len(self) else None


def bind_column(values: pa.Array, tree: CqlType) -> list[Any]:
    """Convert a column that `cast_column` returned, and its parts, which are columns, too."""
    if values.type == pa.null():
        return [None] * len(values)
    if tree.kind in ("tuple", "udt"):
        rows: Iterable[Any] = _zipped(values.flatten(), tree)
        return _or_null(values, map(Fields, rows) if tree.kind == "udt" else rows)
    if tree.parts:
        offsets, elements = unnest(values)
        bounds = itertools.pairwise(offsets.to_pylist())
        if tree.kind == "map":
            entries = _zipped(elements.flatten(), tree)
            return _or_null(values, (Pairs(entries[i:j]) for i, j in bounds))
        bound = bind_column(elements, tree.parts[0])
        return _or_null(values, (tuple(bound[i:j]) for i, j in bounds))
    return list(_BOUND.get(tree.kind, pa.Array.to_pylist)(values))


def _zipped(columns: list[pa.Array], tree: CqlType) -> list[Any]:
    bound = (bind_column(each, part) for each, part in zip(columns, tree.parts, strict=True))
    return list(zip(*bound, strict=True))


def _or_null(values: pa.Array, bound: Iterable[Any]) -> list[Any]:
    if not values.null_count:
        return list(bound)
    valid = values.is_valid().to_pylist()
    return [value if is_valid else None for value, is_valid in zip(bound, valid, strict=True)]


def _dates(values: pa.Array) -> list[Any]:
    days = values.cast(pa.int32()).cast(pa.int64())
    return list(pc.add(days, long(_DATE_OFFSET)).to_pylist())


def _each(convert: Callable[[Any], Any]) -> Callable[[pa.Array], list[Any]]:
    def bound(values: pa.Array) -> list[Any]:
        return [None if value is None else convert(value) for value in values.to_pylist()]

    return bound


def _address(text: str) -> str:
    """Write ::ffff:192.0.2.1 as 192.0.2.1, as Cassandra does, but within frozen collections only."""
    if ":" in text:
        packed = socket.inet_pton(socket.AF_INET6, text)
        if packed.startswith(_MAPPED):
            return socket.inet_ntoa(packed[len(_MAPPED) :])
    return text


_BOUND: dict[str, Callable[[pa.Array], list[Any]]] = {
    "date": _dates,
    "uuid": _each(lambda packed: UUID(bytes=packed)),
    "timeuuid": _each(lambda packed: UUID(bytes=packed)),
    "varint": _each(int),
    "decimal": _each(Decimal),  # of the log's decimals, and of its texts
    "inet": _each(_address),
    "duration": _each(lambda nanoseconds: Duration(nanoseconds=nanoseconds)),
}
"""How to convert the types whose values Arrow does not return as the driver takes them."""


def absent_requests(
    statements: Statements, rows: Stamped, plan: Plan, lives: Ints | None
) -> Iterator[list[Any]]:
    """Yield requests for the first living row of each key, in rounds.

    :param plan: of the rows' table.
    :param lives: seconds that are left to each row, 0 or less for none: it hides nothing, so it is left out.
        None: rows live for ever.
    """
    found = rounds(rows, plan, first_of_each_key(rows, plan, lives))
    if not found:
        return
    places = np.concatenate(found)
    these = Stamped(rows.batch.take(buffers.indices(places)), rows.stamps[places])
    (part,) = statements.divide(these, None if lives is None else lives[places])
    ttls = None if part.ttls is None else part.ttls.tolist()
    values = iter(bind(part.rows.batch, part.statement.plan, None, ttls=ttls).values)
    for each in found:
        yield [part.statement.prepared.bind(next(values)) for _ in each]


def first_of_each_key(rows: Stamped, plan: Plan, lives: Ints | None = None) -> Ints:
    """Return the place of the first living row of each key, ascending."""
    places = np.arange(len(rows.stamps)) if lives is None else np.flatnonzero(lives >= 1)
    _, firsts = np.unique(_numbers(rows, places, plan.of_table()), return_index=True)
    return places[np.sort(firsts)]


def rounds(rows: Stamped, plan: Plan, places: Ints) -> list[Ints]:
    """Divide places of rows into rounds; none for no row. Rows of a partition stay in their order."""
    if not len(places):
        return []
    columns = tuple(column for column in plan.columns if column.role == "partition")
    partitions = _numbers(rows, places, msgspec.structs.replace(plan, columns=columns))
    order = np.argsort(partitions, kind="stable")
    begins = np.flatnonzero(np.append(True, np.diff(partitions[order]) != 0))
    ranks = np.empty(len(places), np.int64)
    ranks[order] = np.arange(len(places)) - np.repeat(begins, np.diff([*begins, len(places)]))
    by_rank = np.argsort(ranks, kind="stable")
    return np.split(places[by_rank], np.flatnonzero(np.diff(ranks[by_rank])) + 1)


def _numbers(rows: Stamped, places: Ints, plan: Plan) -> Ints:
    """Return a number for each of the rows at some places, the same for those of one key."""
    return distinct_keys(rows.batch.take(buffers.indices(places)), plan).numbers
