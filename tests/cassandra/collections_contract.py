"""Checks a target that adds to sets and maps and takes out of them: `cassandra.collections.<column>`."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest

from wal_sink.clock import now_us
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import Session, Slice, Target
from wal_sink.testing.contracts.ledger import new_owner

Make = Callable[[dict[str, str]], Target]
Collections = Mapping[tuple[str, int], tuple[set[str] | None, dict[str, int] | None, int | None]]
"""By key (k, n): the set s, the map m, the bigint v; None for what there is not."""

WHOLE = pa.schema(
    [
        ("k", pa.string()),
        ("n", pa.int32()),
        ("s", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("v", pa.int64()),
    ]
)
OUT = WHOLE.set(3, pa.field("m", pa.list_(pa.string())))
"""Entries of a map are taken out by their keys."""
ADD = {"cassandra.collections.s": "add", "cassandra.collections.m": "add"}
REMOVE = {"cassandra.collections.S": "remove", "cassandra.collections.M": "Remove"}

Record = tuple[Any, ...]
"""s, m and v of a row, and what other columns it has."""


class CollectionsContract(ABC):
    """Subclass as `Test…` with a fixture `make` and a method `read`."""

    @pytest.fixture
    @abstractmethod
    def make(self) -> Make:
        """Return a function of options that makes targets over one empty table.

        Its columns are k text, n int, s set<text>, m map<text, bigint> and v bigint, its key is (k, n).
        """

    @abstractmethod
    def read(self, target: Target) -> Collections:
        """Read the whole table by other means than the target."""

    def test_elements_come_and_go(self, make: Make) -> None:
        """By their rows' times alone: in any order, and again, the same is there; and nulls do nothing."""
        writers = {
            "whole": _Writer(make({}), WHOLE),
            "add": _Writer(make({**ADD, "cassandra.nulls": "write"}), WHOLE),
            "out": _Writer(make(REMOVE), OUT),
        }
        epochs: list[tuple[str, Record]] = [
            ("add", (["early"], {"early": 1}, 1)),
            ("whole", (["a", "b"], {"a": 1, "b": 1}, None)),
            ("add", (["b", "c"], {"b": 2, "c": 2}, 2)),
            ("out", (["a", "never"], ["a", "never"], None)),
            ("add", (None, [], 3)),
            ("out", ([], None, None)),
        ]
        orders = list(itertools.permutations(range(len(epochs))))[::97]
        assert [*range(len(epochs))] in map(list, orders)
        start = now_us() - 60_000_000
        for number, order in enumerate(orders):
            for place in (*order, *order[:3]):
                by, record = epochs[place]
                writers[by].write(start + place, f"{number}", record)
        expected = {"b", "c"}, {"b": 2, "c": 2}, 3
        assert self.read(writers["add"].target) == {
            (f"{number}", 1): expected for number in range(len(orders))
        }
        for writer in writers.values():
            writer.session.close()

    def test_a_row_of_nothing_but_elements(self, make: Make) -> None:
        """Exists as long as one of them does: an UPDATE leaves no row marker."""
        adds, takes_out = _Writer(make(ADD), WHOLE), _Writer(make(REMOVE), OUT)
        start = now_us() - 60_000_000
        adds.write(start, "a", (["x"], None, None))
        adds.write(start, "b", ([], None, None))
        assert self.read(adds.target) == {("a", 1): ({"x"}, None, None)}
        takes_out.write(start + 1, "a", (["x"], None, None))
        assert self.read(adds.target) == {}
        adds.session.close()
        takes_out.session.close()

    def test_a_life_that_is_over_takes_its_elements_along(self, make: Make) -> None:
        """As if the row had been written in time; older elements of the same name are hidden, others stay."""
        writer = _Writer(
            make({**ADD, "cassandra.ttlColumn": "life"}), WHOLE.append(pa.field("life", pa.int64()))
        )
        start = now_us() - 5_000_000_000
        epochs: list[Record] = [
            (["stays", "hidden"], {"stays": 1, "hidden": 1}, 1, 90_000),
            (["hidden"], {"hidden": 2}, None, 1_000),
        ]
        for number, order in enumerate([(0, 1), (1, 0), (1, 0, 1)]):
            for place in order:
                writer.write(start + place, f"{number}", epochs[place])
        assert self.read(writer.target) == {
            (f"{number}", 1): ({"stays"}, {"stays": 1}, 1) for number in range(3)
        }
        writer.session.close()

    def test_deletes_take_elements_along(self, make: Make) -> None:
        """Those that are older, whenever they come."""
        writer = _Writer(
            make({**ADD, "operationColumn": "op"}), WHOLE.append(pa.field("op", pa.string()))
        )
        start = now_us() - 60_000_000
        epochs: list[Record] = [
            (["a"], {"a": 1}, 1, "upsert"),
            (None, None, None, "delete"),
            (["b"], {"b": 1}, None, "upsert"),
        ]
        for number, order in enumerate(itertools.permutations(range(3))):
            for place in order:
                writer.write(start + place, f"{number}", epochs[place])
        assert self.read(writer.target) == {
            (f"{number}", 1): ({"b"}, {"b": 1}, None) for number in range(6)
        }
        writer.session.close()


class _Writer:
    """Writes rows of one target, at given times."""

    def __init__(self, target: Target, schema: pa.Schema) -> None:
        self.target = target
        self.schema = schema
        self.plan: Plan = target.plan(schema, plan_key(schema, target.name, target.shape))
        self.session: Session = target.connect(new_owner())

    def write(self, us: int, key: str, record: Record) -> None:
        """Write one row (key, 1), and wait for it."""
        values: Iterable[Any] = (key, 1, *record)
        arrays = [pa.array([v], f.type) for v, f in zip(values, self.schema, strict=True)]
        batch = pa.record_batch(arrays, schema=self.schema)
        self.session.write(self.plan, Slice(0, self.target.check(batch, self.plan), us))
        self.session.drain()
