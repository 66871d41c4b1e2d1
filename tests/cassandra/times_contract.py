"""Checks TTLs and event times of a real node: a part of its contract suite."""

from __future__ import annotations

import datetime as dt
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.support.waiting import until
from wal_sink.clock import now_us
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, Target
from wal_sink.testing.contracts.cells import write
from wal_sink.testing.contracts.ledger import Suite, Table, new_query
from wal_sink.testing.contracts.rows import SCHEMA

Make = Callable[[dict[str, str]], Target]
Epoch = tuple[int, list[tuple[Any, ...]]]
"""The timestamp of its first row, and rows."""

TTL_COLUMN = {"cassandra.ttlColumn": "ttl"}
EXPIRES_COLUMN = {"cassandra.expiresAtColumn": "until"}
EVENT_COLUMN = {"cassandra.timestampColumn": "at"}

S_US = 1_000_000
_INSTANT = pa.timestamp("us", "UTC")
_KINDS = {
    "ttl": pa.int64(),
    "until": _INSTANT,
    "at": _INSTANT,
    "us": pa.int64(),
    "op": pa.string(),
}


class TimesContract(Suite):
    """Subclass as `Test…` with a fixture `make` and the two methods below."""

    @pytest.fixture
    @abstractmethod
    def make(self) -> Make:
        """Return a function of options that makes targets over one empty table with the columns of `SCHEMA`.

        The key is (k, n), and a null leaves a cell as it is.
        """

    @abstractmethod
    def ttls(self, target: Target) -> dict[tuple[str, int], int | None]:
        """Read the TTL that the value v of each row still has, by (k, n); None: it never expires."""

    def test_at_one_timestamp_the_larger_value_stays(self, make: Make) -> None:
        """Ties are resolved cell by cell on the serialized bytes, where -1 is larger than 1."""
        target, now = make({}), now_us()
        with _open(target) as write:
            for row in (("a", 1, 1, "x"), ("a", 1, -1, "b"), ("a", 1, 7, "a")):
                write(now, [row])
        assert self.rows(target) == {("a", 1): (-1, "x")}

    @pytest.mark.parametrize("arguments", ["ttl", "column", "expiry"])
    def test_ttl_begins_when_its_row_was_published(self, make: Make, arguments: str) -> None:
        """Not when it is written, nor when it is written again."""
        options = {
            "ttl": {"cassandra.ttl": "1000"},
            "column": TTL_COLUMN,
            "expiry": EXPIRES_COLUMN,
        }[arguments]
        target, now = make(options), now_us()
        with _open(target, {"column": "ttl", "expiry": "until"}.get(arguments)) as write:
            for ago_s in (400, 0):
                end = _instant(now + (1000 - ago_s) * S_US)
                brought: tuple[Any, ...] = {"ttl": (), "column": (1000,), "expiry": (end,)}[
                    arguments
                ]
                for _ in range(2):
                    write(now - ago_s * S_US, [("a", ago_s, 1, "x", *brought)])
        first, second = (self.ttls(target)["a", ago_s] for ago_s in (400, 0))
        assert first is not None
        assert second is not None
        assert 580 < first <= 600 + (arguments == "expiry")
        assert 980 < second <= 1000 + (arguments == "expiry")

    def test_expired_row_hides_what_it_would_have_hidden(self, make: Make) -> None:
        """As if the row had been written at once; whatever comes in which order, and again.

        What its nulls left, stays. Its values are never seen. What is newer is not touched.
        """
        target, now = make(TTL_COLUMN), now_us()
        earlier: Epoch = (
            now - 5000 * S_US,
            [
                ("a", 1, 1, "stays", 90_000),
                ("b", 1, 1, None, 90_000),
                ("c", 1, 1, "x", 90_000),
            ],
        )
        over: Epoch = (
            now - 4000 * S_US,
            [
                ("a", 1, 2, None, 1000),
                ("b", 1, 2, None, 1000),
                ("c", 1, 2, "y", 1000),
                ("d", 1, 2, "z", 1000),
                ("e", 1, 2, "z", 1000),
            ],
        )
        after: Epoch = now - 3000 * S_US, [("e", 1, 3, None, 90_000)]
        chance = random.Random(4)
        with _open(target, "ttl") as write:
            for _ in range(3):
                for us, rows in chance.sample([earlier, over, after], 3):
                    write(us, rows)
                current = [value for key, value in self.rows(target).items() if key != ("e", 1)]
                assert not {2, "y", "z"} & {item for values in current for item in values}
        expected: Table = {("a", 1): (None, "stays"), ("e", 1): (3, None)}
        until(lambda: self.rows(target) == expected, seconds=20)

    @pytest.mark.parametrize("kind", ["at", "us"])
    def test_later_event_stays(self, make: Make, kind: str) -> None:
        """In whichever epoch it comes; deletes have event times, too."""
        options = {"cassandra.timestampColumn": kind, "operationColumn": "op"}
        target, now = make(options), now_us() - 100 * S_US

        def at(us: int) -> Any:
            return _instant(now + us) if kind == "at" else now + us

        epochs: list[list[tuple[Any, ...]]] = [
            [("a", 1, 3, "new", "upsert", at(300)), ("b", 1, 1, "x", "upsert", at(100))],
            [("a", 1, 1, "old", "upsert", at(100)), ("b", 1, None, None, "delete", at(50))],
            [("a", 1, None, None, "delete", at(200)), ("c", 1, None, None, "delete", at(200))],
            [("c", 1, 1, "y", "upsert", at(199)), ("d", 1, 1, None, "upsert", at(7))],
        ]
        chance = random.Random(6)
        with _open(target, "op", kind) as write:
            for _ in range(3):
                for number, rows in enumerate(chance.sample(epochs, len(epochs))):
                    write(now + number * S_US, rows)
        assert self.rows(target) == {("a", 1): (3, "new"), ("b", 1): (1, "x"), ("d", 1): (1, None)}


class _open:  # noqa: N801 -- used as a function
    """Connect; writes rows as planner, task and flusher do, at a timestamp of the ledger."""

    def __init__(self, target: Target, *names: str | None) -> None:
        self._target = target
        self._names = [name for name in names if name]
        self._plan = _plan(target, *self._names)
        self._session = target.connect(new_query())

    def __call__(self, us: int, rows: Sequence[Sequence[Any]]) -> None:
        stored = self._target.check(_frame(rows, *self._names), self._plan)
        write(self._session, self._plan, RowSlice(0, stored, us))

    def __enter__(self) -> _open:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()


def _fields(*names: str) -> pa.Schema:
    return pa.schema([*SCHEMA, *(pa.field(name, _KINDS[name]) for name in names)])


def _plan(target: Target, *names: str) -> Plan:
    fields = _fields(*names)
    plan = target.plan(fields, plan_key(fields, target.name, target.shape))
    return Plan.from_json(plan.to_json(), "plan")


def _frame(rows: Sequence[Sequence[Any]], *names: str) -> pa.RecordBatch:
    fields = _fields(*names)
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(c, field.type) for c, field in zip(columns, fields, strict=True)]
    return pa.record_batch(arrays, schema=fields)


def _instant(us: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
