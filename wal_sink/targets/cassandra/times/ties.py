"""Settles rows of one key and one event time: the later position wins, cell by cell. Pure.

Cassandra would keep the larger value of each cell. The tasks settle the rows of a batch before they go into
the log, so every flusher finds the same rows there.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.encode import views
from wal_sink.targets.cassandra.encode.keys import distinct_keys
from wal_sink.targets.cassandra.encode.segments import fixed
from wal_sink.targets.cassandra.encode.views import Array
from wal_sink.targets.values.operations import are_deletes


def settled(
    batch: pa.RecordBatch, plan: Plan, times: str, groups: Callable[[], Array]
) -> pa.RecordBatch:
    """Return the batch with one upsert, and one delete before it, of each key and time.

    An upsert gets the cells of the earlier ones since the last delete where it has nulls that leave a cell as
    it is. A delete that an upsert follows moves a microsecond back: of two equal times a tombstone wins.

    :param batch: as the log has it.
    :param plan: with its operation column, if it has one.
    :param times: the column of event times, int64 microseconds.
    :param groups: returns a number for each row, the same for rows of one key and time.
    """
    stamps = views.elements(batch.column(times), "i8")
    in_order = np.sort(stamps)
    if not (in_order[1:] == in_order[:-1]).any():
        return batch
    numbers = groups()
    order = np.argsort(numbers, kind="stable")
    firsts = np.append(True, np.diff(numbers[order]) != 0)
    if firsts.all():
        return batch
    at = np.arange(len(order))
    begins = np.maximum.accumulate(np.where(firsts, at, 0))
    deletes = np.zeros(len(order), np.bool_)
    if plan.operation is not None:
        deletes = views.booleans(are_deletes(batch.column(plan.operation)))[order]
    deleted = np.maximum.accumulate(np.where(deletes, at, -1))
    ends = np.flatnonzero(np.append(firsts[1:], True))
    upserts = ends[~deletes[ends]]
    tombstones = deleted[ends][deleted[ends] >= begins[ends]]
    chosen = np.sort(np.concatenate([upserts, tombstones]))
    chosen = chosen[np.argsort(order[chosen])]  # in the order of the batch
    since = np.maximum(begins, deleted + 1)  # of an upsert: the first of those that it is made of
    merges = plan.details["nulls"] == "unset"
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        source = chosen
        if name == times:
            moved = stamps[order[chosen]] - (deletes[chosen] & ~np.isin(chosen, ends))
            columns.append(views.indices(moved))
            continue
        if merges and column.null_count:
            valid = views.booleans(column.is_valid())[order]
            last = np.maximum.accumulate(np.where(valid, at, -1))[chosen]
            source = np.where(deletes[chosen] | (last < since[chosen]), chosen, last)
        columns.append(column.take(views.indices(order[source])))
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def by_key(batch: pa.RecordBatch, table: Plan, times: str) -> Array:
    """Return a number for each row, the same for rows of one key and time.

    :param table: the plan's columns that the table has.
    """
    time = fixed(views.elements(batch.column(times), "i8"), ">i8")
    return distinct_keys(batch, table, time).numbers
