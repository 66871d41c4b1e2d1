"""Checks a target that writes rows where there is none of their key: `cassandra.ifNotExists`."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from wal_sink.clock import now_us
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import Slice, Target
from wal_sink.testing.contracts.ledger import create, new_owner
from wal_sink.testing.contracts.rows import SCHEMA, Table, deliver

Make = Callable[[dict[str, str]], Target]
ABSENT = {"cassandra.ifNotExists": "true"}


class AbsentContract(ABC):
    """Subclass as `Test…` with a fixture `make` and a method `rows`."""

    @pytest.fixture
    @abstractmethod
    def make(self) -> Make:
        """Return a function of options that makes targets over one empty table with the columns of `SCHEMA`.

        The key is (k, n), k the partition's.
        """

    @abstractmethod
    def rows(self, target: Target) -> Table:
        """Read the whole table by other means than the target."""

    def test_the_first_row_of_a_key_stays(self, make: Make) -> None:
        """In a slice, in a window and after it; however often it comes again, and whatever its timestamp."""
        target, plain = make(ABSENT), make({})
        start = now_us() - 3_600_000_000
        # Its timestamp is a later one: that does not count.
        there = _planned(plain, [("there", 1, 0, "x")], start + 3_000_000_000)
        with plain.connect(new_owner()) as session:
            create(session)
            deliver(session, *there)
        first: list[Any] = [("a", 1, 1, "x"), ("a", 2, 1, None), ("a", 1, 2, "y"), ("b", 1, 1, "x")]
        later: list[Any] = [
            ("a", 2, 2, "y"),
            ("there", 1, 2, "y"),
            ("c", 1, 1, "x"),
            ("c", 1, 2, "y"),
        ]
        expected = {
            ("there", 1): (0, "x"),
            ("a", 1): (1, "x"),
            ("a", 2): (1, None),
            ("b", 1): (1, "x"),
            ("c", 1): (1, "x"),
        }
        plan, one = _planned(target, first, start)
        _, other = _planned(target, later, start + 10)
        assert plan.demands.one_session
        with target.connect(new_owner()) as session:
            create(session)
            deliver(session, plan, one, other)
            assert self.rows(target) == expected
            deliver(session, plan, other, one)
        assert self.rows(target) == expected

    def test_rows_of_another_plan_come_before_it(self, make: Make) -> None:
        """What was published before the option was set is written before what came after it."""
        plain, absent = make({}), make(ABSENT)
        start = now_us() - 3_600_000_000
        replaces, one = _planned(plain, [("a", 1, 1, "x")], start)
        keeps, other = _planned(absent, [("a", 1, 2, "y"), ("b", 1, 2, "y")], start + 10)
        with absent.connect(new_owner()) as session:
            create(session)
            session.write(replaces, one)
            session.write(keeps, other)
            session.drain()
        assert self.rows(absent) == {("a", 1): (1, "x"), ("b", 1): (2, "y")}

    def test_a_row_whose_life_is_over_leaves_its_place(self, make: Make) -> None:
        """It is not written, and the first row that lives is."""
        target = make({**ABSENT, "cassandra.ttlColumn": "life"})
        schema = SCHEMA.append(pa.field("life", pa.int64()))
        rows: list[Any] = [("a", 1, 1, "x", 60), ("a", 1, 2, "y", 9_000), ("b", 1, 1, "x", 60)]
        plan, one = _planned(target, rows, now_us() - 3_600_000_000, schema)
        with target.connect(new_owner()) as session:
            for _ in range(2):
                session.write(plan, one)
                session.drain()
        assert self.rows(target) == {("a", 1): (2, "y")}

    def test_many_rows_of_a_partition(self, make: Make) -> None:
        """Each once, though the server agrees on them one after the other."""
        target = make(ABSENT)
        rows: list[Any] = [(f"k{n % 3}", n % 20, n, None) for n in range(120)]
        plan, one = _planned(target, rows, now_us())
        with target.connect(new_owner()) as session:
            session.write(plan, one)
            session.drain()
        expected: dict[tuple[str, int], tuple[int, None]] = {}
        for (k, n), group in itertools.groupby(sorted(rows, key=lambda r: r[:2]), lambda r: r[:2]):
            expected[k, n] = (min(row[2] for row in group), None)
        assert self.rows(target) == expected


def _planned(
    target: Target, records: Sequence[Any], us: int, schema: pa.Schema = SCHEMA
) -> tuple[Plan, Slice]:
    plan = target.plan(schema, plan_key(schema, target.name, target.shape))
    columns = zip(*records, strict=True)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
    batch = pa.record_batch(arrays, schema=schema)
    return plan, Slice(0, target.check(batch, plan), us)
