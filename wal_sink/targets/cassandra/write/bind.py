"""Converts the log's columns to the values that the driver binds to statements, a column at a time.

Only for a driver whose batches `driver.frames` cannot encode.
"""

from __future__ import annotations

import functools
import itertools
import socket
from collections.abc import Callable, Iterable
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from cassandra.query import UNSET_VALUE
from cassandra.util import Duration

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.types.collection_mode import planned_changes
from wal_sink.targets.cassandra.types.cql_type import CqlType, column_types
from wal_sink.targets.cassandra.types.unnest import unnest
from wal_sink.targets.cassandra.types.value_sizes import sizes
from wal_sink.targets.values.literals import long

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
