"""Checks rows of several tables: a part of the contract suite of a real node.

Derive `TablesContract`::

    class TestMyTables(TablesContract):
        @pytest.fixture
        def target(self) -> Target:
            ...  # tables=by_k,by_n, operationColumn=op; by_k has the columns k text, n int, v bigint and t
            #      text, and the key (k, n); by_n has n, k and v, and the key (n, k)

        @pytest.fixture
        def naming(self) -> Target:
            ...  # the same with tableColumn=goes

        def rows(self, target: Target, table: str) -> Rows:
            ...  # read a table by other means: {(k, n): (v, t)}, in by_n {(n, k): (v,)}
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from wal_sink.errors import InvalidRow
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import Session, Slice, Target
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.testing.contracts.ledger import create, new_owner
from wal_sink.testing.contracts.rows import BASE_US, deliver

FIELDS = pa.schema(
    [
        ("op", pa.string()),
        ("goes", pa.string()),
        ("k", pa.string()),
        ("n", pa.int32()),
        ("v", pa.int64()),
        ("t", pa.string()),
    ]
)
EVERY = FIELDS.remove(1)
"""Without the column that names a table."""

Rows = dict[tuple[Any, ...], tuple[Any, ...]]
Change = tuple[Any, ...]
"""The operation, the table where a column names it, then k, n, v and t."""


class TablesContract(ABC):
    """Subclass as `Test…` with the fixtures `target` and `naming`, and `rows`: rows are cells."""

    @abstractmethod
    def rows(self, target: Target, table: str) -> Rows:
        """Read a whole table by other means than the target."""

    def test_each_row_goes_to_every_table(self, target: Target) -> None:
        """By the columns that it has; of two rows of a key in one slice the later one stays in each."""
        changes: list[Change] = [
            ("upsert", "a", 1, 10, "x"),
            ("upsert", "b", 1, 20, None),
            ("upsert", "a", 1, 30, None),
        ]
        self.deliver(target, changes)
        assert self.rows(target, "by_k") == {("a", 1): (30, "x"), ("b", 1): (20, None)}
        assert self.rows(target, "by_n") == {(1, "a"): (30,), (1, "b"): (20,)}

    def test_random_changes_end_alike_in_every_table(self, target: Target) -> None:
        """Upserts and deletes, in several slices, and written again and late."""
        chance = random.Random(5)
        expected: dict[tuple[str, int], int] = {}
        slices = []
        for _number in range(8):
            changes: list[Change] = []
            for _ in range(40):
                k, n, v = chance.choice("abcd"), chance.randrange(6), chance.randrange(100)
                if chance.random() < 0.4:
                    changes.append(("delete", k, n, None, None))
                    expected.pop((k, n), None)
                else:
                    changes.append(("upsert", k, n, v, str(v)))
                    expected[k, n] = v
            slices.append(changes)
        self.deliver(target, *slices)
        for _ in range(2):
            assert 0 < len(expected) < 24
            assert self.rows(target, "by_k") == {key: (v, str(v)) for key, v in expected.items()}
            assert self.rows(target, "by_n") == {(n, k): (v,) for (k, n), v in expected.items()}
            self.write_again(target, *slices)

    def test_a_delete_is_by_the_key_of_each_table(self, target: Target) -> None:
        """A range of one is not a range of the other: a row that one of them refuses is refused."""
        self.deliver(target, [("upsert", "a", 1, 1, "x"), ("delete", "a", 1, 9, "y")])
        assert self.rows(target, "by_k") == self.rows(target, "by_n") == {}
        for key in (("a", None), (None, 1)):
            with pytest.raises(InvalidRow, match="null"):
                self.deliver(target, [("delete", *key, None, None)])

    def test_each_row_goes_to_the_table_that_it_names(self, naming: Target) -> None:
        """And to no other; an operation is one of that table."""
        changes: list[Change] = [
            ("upsert", "by_k", "a", 1, 10, "x"),
            ("upsert", "by_n", "a", 1, 20, "not in by_n"),
            ("upsert", "by_n", "b", 2, 30, None),
            ("upsert", "by_k", "c", 3, 40, None),
            ("delete", "by_n", None, 2, None, None),
            ("delete", "by_k", "c", None, None, None),
        ]
        self.deliver(naming, changes)
        assert self.rows(naming, "by_k") == {("a", 1): (10, "x")}
        assert self.rows(naming, "by_n") == {(1, "a"): (20,)}
        self.write_again(naming, changes[:4])
        assert self.rows(naming, "by_k") == {("a", 1): (10, "x")}
        self.deliver(naming, [("upsert", "by_n", "a", 1, 50, None)], us=BASE_US + 1_000)
        assert self.rows(naming, "by_k") == {("a", 1): (10, "x")}
        assert self.rows(naming, "by_n") == {(1, "a"): (50,)}

    # --- what the suite does ---

    def deliver(self, target: Target, *slices: Sequence[Change], us: int = BASE_US) -> None:
        """Write slices as one window, one behind the other."""
        plan = _plan(target)
        with target.connect(new_owner()) as session:
            create(session)
            deliver(session, plan, *_slices(target, plan, slices, us))

    def write_again(self, target: Target, *slices: Sequence[Change]) -> None:
        """Write slices once more, in any order, as a flusher does that stood still."""
        plan = _plan(target)
        chance = random.Random(7)
        made = _slices(target, plan, slices, BASE_US)
        with target.connect(new_owner()) as session:
            for each in chance.sample(made, len(made)):
                _written(session, plan, each)


def _plan(target: Target) -> Plan:
    fields = FIELDS if target.shape.get("tableColumn") else EVERY
    return target.plan(fields, plan_key(fields, target.name, target.shape))


def _naming(plan: Plan) -> str:
    return CassandraPlan.of(plan).details.table_column


def _slices(target: Target, plan: Plan, slices: Sequence[Sequence[Change]], us: int) -> list[Slice]:
    fields = EVERY if not _naming(plan) else FIELDS
    made = []
    for changes in slices:
        columns = list(zip(*changes, strict=True))
        arrays = [pa.array(c, field.type) for c, field in zip(columns, fields, strict=True)]
        batch = pa.record_batch(arrays, schema=fields)
        made.append(Slice(0, target.check(batch, plan), us))
        us += batch.num_rows
    return made


def _written(session: Session, plan: Plan, rows: Slice) -> None:
    session.write(plan, rows)
    session.drain()
