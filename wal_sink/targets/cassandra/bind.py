"""From the log's columns to the values that the driver binds, a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from cassandra.query import UNSET_VALUE

from wal_sink.targets.base import Plan
from wal_sink.targets.cassandra import storage
from wal_sink.targets.cassandra.constants import long

_DATE_OFFSET = 2**31
"""CQL counts days from -5877641-06-23; the driver takes its numbers for these."""


class Rows(NamedTuple):
    """A batch as Python values."""

    values: list[tuple[Any, ...]]
    """Each row in the order of the plan's columns, then its write timestamp."""
    keys: Sequence[Any]
    """Each row's partition key: a value, or a tuple when it is composite."""
    sizes: list[int]
    """Each row's bytes, about."""


def bind(batch: pa.RecordBatch, plan: Plan, first_us: int) -> Rows:
    """Convert a batch that `check` returned."""
    unset = plan.details["nulls"] == "unset"
    lists = []
    for column, values in zip(plan.columns, batch.columns, strict=True):
        bound = _BOUND.get(column.type, pa.Array.to_pylist)(values)
        if unset and values.null_count:
            bound = [UNSET_VALUE if value is None else value for value in bound]
        lists.append(bound)
    partition = [
        bound
        for column, bound in zip(plan.columns, lists, strict=True)
        if column.role == "partition"
    ]
    stamps = range(first_us, first_us + batch.num_rows)
    return Rows(
        values=list(zip(*lists, stamps, strict=True)),
        keys=partition[0] if len(partition) == 1 else list(zip(*partition, strict=True)),
        sizes=list(_sizes(batch)),
    )


def _sizes(batch: pa.RecordBatch) -> Iterator[int]:
    total = long(0)
    for values in batch.columns:
        total = pc.add(total, storage.sizes(values))
    yield from total.to_pylist()


def _dates(values: pa.Array) -> list[Any]:
    days = values.cast(pa.int32()).cast(pa.int64())
    return list(pc.add(days, long(_DATE_OFFSET)).to_pylist())


def _uuids(values: pa.Array) -> list[Any]:
    return [None if packed is None else UUID(bytes=packed) for packed in values.to_pylist()]


_BOUND: dict[str, Callable[[pa.Array], list[Any]]] = {"date": _dates, "uuid": _uuids}
"""The types whose values are not bound as Arrow gives them."""
