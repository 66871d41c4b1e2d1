"""The contract of idempotent targets over the target in memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, RowsRefused, Target
from wal_sink.testing.contracts import CellDeletesContract, SequentialContract
from wal_sink.testing.contracts.ledger import Stored, new_query, row_of
from wal_sink.testing.contracts.operations import COLUMN, OPERATIONS
from wal_sink.testing.contracts.rows import BASE_US
from wal_sink.testing.contracts.sessions import write
from wal_sink.testing.memory_target import MemoryOptions, MemoryTarget


class TestMemory(SequentialContract):
    kind: type[MemoryTarget] = MemoryTarget
    unwritable_error = RowsRefused

    @pytest.fixture
    def target(self) -> MemoryTarget:
        store = self.kind(MemoryOptions(keys="k,n"))
        store.refuses = lambda row: "It is not wanted." if row["k"] == "unwanted" else ""
        return store

    def unwritable(self, target: Target, plan: Plan) -> tuple[Plan, RowSlice]:
        return plan, self.slice(target, plan, [("unwanted", 1, 1, "x")])

    def records(self, target: Target) -> list[Stored]:
        assert isinstance(target, MemoryTarget)
        table = target.rows().items()
        return [(k, n, row["v"], row["t"], row.get("d")) for (k, n), row in table]


class TestMemoryDeletes(CellDeletesContract):
    @pytest.fixture
    def target(self) -> MemoryTarget:
        return MemoryTarget(
            MemoryOptions(keys="k,n", operation_column=COLUMN, operations=OPERATIONS)
        )

    records = TestMemory.records


@pytest.mark.parametrize(("lists", "twice"), [("", [1]), ("v", [1, 1])])
def test_list_sent_twice_has_its_elements_twice(lists: str, twice: list[int]) -> None:
    """The target in memory doubles lists, as Cassandra does, so that tests of lists can fail."""
    target = MemoryTarget(MemoryOptions(keys="k", lists=lists))
    batch = pa.RecordBatch.from_pylist([{"k": "a", "v": [1]}])
    plan = target.plan(batch.schema, "key")
    assert plan.sent_once == bool(lists)
    with target.connect(new_query()) as session:
        for us, value in ((BASE_US, [1]), (BASE_US, twice), (BASE_US + 1, [1])):
            write(session, plan, RowSlice(0, batch, us))
            assert target.rows() == {("a",): {"v": value}}


def test_suite_shows_the_values_of_an_assertion() -> None:
    """By default pytest shows them only in test files."""
    unknown = MemoryTarget(MemoryOptions(keys="k")).connect(new_query())
    with pytest.raises(AssertionError, match="assert None is not None"):
        row_of(unknown)
