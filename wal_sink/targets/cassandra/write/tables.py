"""Divides the rows of a slice by their tables: each goes to every one, or to the one that it names. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow.compute as pc

from wal_sink.model.plan import Plan
from wal_sink.targets.cassandra.types.table_plans import columns_of
from wal_sink.targets.cassandra.write.slice_buffer import Stamped
from wal_sink.targets.values import literals


def by_table(rows: Stamped, plan: Plan, tables: Sequence[Plan]) -> Iterator[Stamped]:
    """Yield the rows of each table, in the order of `tables`, each with its own timestamp.

    :param rows: with the columns of `plan`.
    :param plan: the one that the log has.
    :param tables: its `table_plans`.
    """
    for table in tables:
        batch, stamps = rows
        if plan.table_column is not None:
            name = literals.text(table.details["table"])
            mine = pc.equal(batch.column(plan.table_column), name)
            batch, stamps = batch.filter(mine), stamps[mine.to_numpy(zero_copy_only=False)]
        yield Stamped(columns_of(batch, plan, table), stamps)
