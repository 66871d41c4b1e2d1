"""The target contract over the target in memory; tests/cassandra runs the same over a real node."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from wal_sink.errors import TargetRefused
from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice, Target
from wal_sink.testing.contracts.cells import SequentialContract, Table
from wal_sink.testing.contracts.deletes import COLUMN, OPERATIONS, CellDeletesContract
from wal_sink.testing.contracts.ledger import begun_window, new_owner, row_of
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget


class TestMemory(SequentialContract):
    """It keeps the contract, so tests over it mean something."""

    kind: type[MemoryTarget] = MemoryTarget
    unwritable_error = TargetRefused

    @pytest.fixture
    def target(self) -> MemoryTarget:
        store = self.kind(MemoryOptions(keys="k,n"))
        store.refuses = lambda row: "It is not wanted." if row["k"] == "unwanted" else ""
        return store

    def unwritable(self, target: Target, plan: Plan) -> tuple[Plan, Slice]:
        return plan, self.slice(target, plan, [("unwanted", 1, 1, "x")])

    def rows(self, target: Target) -> Table:
        assert isinstance(target, MemoryTarget)
        return {(k, n): (row["v"], row["t"]) for (k, n), row in target.rows().items()}

    def doubles(self, target: Target) -> list[float | None]:
        assert isinstance(target, MemoryTarget)
        return [row.get("d") for row in target.rows().values()]


class TestMemoryDeletes(CellDeletesContract):
    """Its deletes have timestamps, too."""

    @pytest.fixture
    def target(self) -> MemoryTarget:
        return MemoryTarget(
            MemoryOptions(keys="k,n", operation_column=COLUMN, operations=OPERATIONS)
        )

    rows = TestMemory.rows


@pytest.mark.parametrize(
    ("demand", "once", "again", "later"),
    [
        ({}, [1], [1], [1]),
        ({"lists": "v"}, [1], [1, 1], [1]),
    ],
)
def test_what_a_target_demands_can_be_missed(
    demand: dict[str, Any], once: Any, again: Any, later: Any
) -> None:
    """Else no test over it could fail: a row that is written again, and in an epoch of its own."""
    target = MemoryTarget(MemoryOptions(keys="k", **demand))
    batch = pa.RecordBatch.from_pylist([{"k": "a", "v": once}])
    plan = target.plan(batch.schema, "key")
    assert plan.sent_once == ("lists" in demand)
    with target.connect(new_owner()) as session:
        for epoch, found in ((0, once), (0, again), (1, later)):
            window = begun_window(epoch, rows=1)
            session.start(window)
            session.write(plan, Slice(epoch, batch, window.epochs[0].base_us))
            session.drain()
            assert target.rows() == {("a",): {"v": found}}


def test_a_suite_shows_the_values_of_what_fails() -> None:
    """Also to the author of a plug-in, in whose tests pytest would say "AssertionError" and no more."""
    unknown = MemoryTarget(MemoryOptions(keys="k")).connect(new_owner())
    with pytest.raises(AssertionError, match="assert None is not None"):
        row_of(unknown)
