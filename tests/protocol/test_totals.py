"""Totals under the faults that rows have: repeated, late, by two flushers, flushed again after a rewind.

Each value is a power of four, so that a total tells which values it is made of, and how often.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.protocol.engine import NOW_US, Rows, World, in_memory
from tests.protocol.operators import Backup, query, rewind
from wal_sink import errors
from wal_sink.admin.quarantine import plan_retry
from wal_sink.admin.rewind import plan_rewind
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget
from wal_sink.wal.quarantine import entries


class TotalsWorld(World):
    """A query in memory whose values are added; `visible` takes each total apart."""

    adds = True
    dates = False

    def __init__(self) -> None:
        super().__init__(*in_memory(), MemoryTarget(MemoryOptions(keys="k", totals="v")))
        self._places: dict[int, int] = {}

    def frame(self, rows: Rows) -> pa.RecordBatch:
        """Return rows as the DataFrame has them: each value as a power of four of its own."""
        values = [(k, 4 ** self._places.setdefault(v or 0, len(self._places))) for k, v in rows]
        return super().frame(values)

    def visible(self) -> list[tuple[str, int]]:
        """Return the rows that totals are made of."""
        return [
            (key[0], value)
            for key, row in self.store.rows().items()
            for value, place in self._places.items()
            for _ in range(row["v"] // 4**place % 4)
        ]


def flushed() -> TotalsWorld:
    """Return a query with three epochs, all in the table."""
    world = TotalsWorld()
    world.retention_s = 1_000.0
    world.run().flushed_batches([("a", 1), ("b", 1)], [("a", 2)], [("b", 3)])
    return world


def test_rule_27_what_is_flushed_again_is_not_added_again() -> None:
    """A rewind writes nothing to rows that have it, and all that a restored table lacks."""
    world = flushed()
    before = dict(world.store.table)
    rewind(world, -1)
    world.flush()
    assert sorted(world.visible()) == [("a", 1), ("a", 2), ("b", 1), ("b", 3)]
    assert world.store.table == before
    rewind(world, -1)
    del world.store.table[("a",)]
    world.flush()
    assert sorted(world.visible()) == [("a", 1), ("a", 2), ("b", 1), ("b", 3)]
    assert world.store.table[("b",)] == before[("b",)]


def test_rule_27_a_restored_log_is_followed_only_with_the_table_set_back() -> None:
    """Spark computes epochs anew under numbers that totals name already."""
    world = TotalsWorld()
    world.run().flushed_batches([("a", 1)])
    backup, table = Backup(world), dict(world.store.table)
    world.run().flushed_batches([("a", 2)])
    backup.restore()
    world.run().batch([("a", 3)])
    with pytest.raises(errors.Diverged):
        world.flush()
    with pytest.raises(errors.OptionError, match="would count for this one's"):
        rewind(world, 0)
    world.store.table = table
    plan = plan_rewind(query(world), world.target, 0, NOW_US, restored=True)
    assert "cells must be set back to epoch 0" in plan.consequences
    plan.carry_out(NOW_US)
    world.flush()
    assert sorted(world.visible()) == [("a", 1), ("a", 3)]


def test_rule_27_a_row_is_not_taken_out_nor_added_afterwards() -> None:
    """What the flush meets stops it; what the tasks have refused is exported, not sent again."""
    world = TotalsWorld()
    world.on_invalid_row = "quarantine"
    run = world.run().batches([("a", 1), (None, 2)])
    world.flush()
    with pytest.raises(errors.OptionError, match="added to totals"):
        plan_retry(query(world), world.target).carry_out(NOW_US)
    assert len(entries(world.log)) == 1
    run.batch([("b", 3), ("c", 4)])
    world.store.refuses = lambda row: "the store takes no b" if row["k"] == "b" else ""
    with pytest.raises(errors.TargetRefused, match="takes no b"):
        world.flush()
    assert len(entries(world.log)) == 1
    world.store.refuses = lambda _row: ""
    world.flush()
    assert sorted(world.visible()) == [("a", 1), ("b", 3), ("c", 4)]
