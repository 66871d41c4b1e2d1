"""The target contract over the in-memory store; tests/cassandra runs the same over a real node."""

from __future__ import annotations

import pytest

from wal_sink.targets.base import Target
from wal_sink.testing.cell_store import CellStore, CellStoreOptions
from wal_sink.testing.contracts.deletes import COLUMN, OPERATIONS, RangeDeletesContract
from wal_sink.testing.contracts.target import CellsContract, Table


class TestCellStore(CellsContract):
    """CellStore keeps the contract, so tests on it mean something."""

    @pytest.fixture
    def target(self) -> CellStore:
        return CellStore(CellStoreOptions(keys="k,n"))

    def rows(self, target: Target) -> Table:
        assert isinstance(target, CellStore)
        return {(k, n): (row["v"], row["t"]) for (k, n), row in target.rows().items()}


class TestCellStoreDeletes(RangeDeletesContract):
    """Its tombstones are those of Cassandra."""

    @pytest.fixture
    def target(self) -> CellStore:
        return CellStore(
            CellStoreOptions(keys="k,n", operation_column=COLUMN, operations=OPERATIONS)
        )

    rows = TestCellStore.rows
