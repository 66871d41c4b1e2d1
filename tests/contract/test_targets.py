"""The target contract over the in-memory store; tests/cassandra runs the same over a real node."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from wal_sink.options import parse
from wal_sink.targets.base import Target
from wal_sink.testing.cell_store import CellStore, CellStoreOptions
from wal_sink.testing.contracts.absent import AbsentContract
from wal_sink.testing.contracts.absent import Make as MakeAbsent
from wal_sink.testing.contracts.collections import Collections, CollectionsContract
from wal_sink.testing.contracts.collections import Make as MakeCollections
from wal_sink.testing.contracts.deletes import COLUMN, OPERATIONS, RangeDeletesContract
from wal_sink.testing.contracts.ledger import mark_of, new_owner
from wal_sink.testing.contracts.tables import Rows, TablesContract
from wal_sink.testing.contracts.target import CellsContract, Table
from wal_sink.testing.contracts.times import Make, TimesContract
from wal_sink.testing.contracts.updates import UpdatesContract


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


class TestCellStoreTimes(TimesContract):
    """Its cells expire as those of Cassandra do."""

    @pytest.fixture
    def make(self) -> Make:
        return lambda options: CellStore(parse({"keys": "k,n", **options}, CellStoreOptions))

    rows = TestCellStore.rows

    def lives(self, target: Target) -> dict[tuple[str, int], int | None]:
        assert isinstance(target, CellStore)
        now_s = target.clock_us() // 1_000_000
        ends = {key: row.cells["v"].ends_s for key, row in target.table.items()}
        return {(k, n): None if end is None else end - now_s for (k, n), end in ends.items()}


class TestCellStoreTables(TablesContract):
    """Its tables are those of Cassandra."""

    @pytest.fixture
    def target(self) -> CellStore:
        return CellStore(parse(TABLES, CellStoreOptions))

    @pytest.fixture
    def naming(self) -> CellStore:
        return CellStore(parse({**TABLES, "tableColumn": "goes"}, CellStoreOptions))

    def rows(self, target: Target, table: str) -> Rows:
        assert isinstance(target, CellStore)
        values = ("v", "t") if table == "by_k" else ("v",)
        found = target.rows(table).items()
        return {key: tuple(row[value] for value in values) for key, row in found}


TABLES = {
    "tables": "by_k,by_n",
    "keys": "k,n;n,k",
    "columns": "k,n,v,t;k,n,v",
    "operationColumn": "op",
}


class TestCellStoreUpdates(UpdatesContract):
    """Its rows exist by their values, as those of Cassandra."""

    @pytest.fixture
    def target(self) -> CellStore:
        return CellStore(CellStoreOptions(keys="k,n", write_mode="update"))

    rows = TestCellStore.rows


def over_one_table() -> Callable[[dict[str, str]], CellStore]:
    """Return a function of options that makes stores with one table."""
    first = CellStore(CellStoreOptions(keys="k,n"))

    def make(options: dict[str, str]) -> CellStore:
        store = CellStore(parse({"keys": "k,n", **options}, CellStoreOptions))
        store.tables = first.tables
        return store

    return make


class TestCellStoreCollections(CollectionsContract):
    """The elements of its collections have cells of their own, as those of Cassandra."""

    @pytest.fixture
    def make(self) -> MakeCollections:
        return over_one_table()

    def read(self, target: Target) -> Collections:
        assert isinstance(target, CellStore)
        return {
            (k, n): (
                set(row.get("s") or ()) or None,
                dict(row.get("m") or ()) or None,
                row.get("v"),
            )
            for (k, n), row in target.rows().items()
        }


class TestCellStoreAbsent(AbsentContract):
    """Its rows with a condition are those of Cassandra."""

    @pytest.fixture
    def make(self) -> MakeAbsent:
        return over_one_table()

    rows = TestCellStore.rows


def test_a_suite_shows_the_values_of_what_fails() -> None:
    """Also to the author of a plug-in, in whose tests pytest would say "AssertionError" and no more."""
    unknown = CellStore(CellStoreOptions(keys="k")).connect(new_owner())
    with pytest.raises(AssertionError, match="assert None is not None"):
        mark_of(unknown)
