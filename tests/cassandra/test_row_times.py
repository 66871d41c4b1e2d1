"""TTLs and event times on a real node: which values stay, and when rows expire."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import NodeTable
from tests.support.waiting import until
from wal_sink.demo.cassandra import Node
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, RowsRefused
from wal_sink.targets.cassandra.row_plan import MAX_TTL_S
from wal_sink.testing.contracts.ledger import Table, new_query
from wal_sink.testing.contracts.rows import SCHEMA
from wal_sink.testing.contracts.sessions import write
from wal_sink.units import now_us

pytestmark = pytest.mark.cassandra

Epoch = tuple[int, list[tuple[Any, ...]]]
"""The timestamp of an epoch's first row, and the rows."""

S_US = 1_000_000
INSTANT = pa.timestamp("us", "UTC")
_CONTROLS = {
    "ttl": pa.int64(),
    "until": INSTANT,
    "at": INSTANT,
    "us": pa.int64(),
    "op": pa.string(),
}
"""The types of columns that rows may have in addition to the columns of `SCHEMA`."""


@pytest.fixture
def table(cassandra: Node, shared: str) -> NodeTable:
    """A table with the columns of `SCHEMA`."""
    return NodeTable(cassandra, shared, "k text, n int, v bigint, t text, PRIMARY KEY (k, n)")


def rows_of(table: NodeTable) -> Table:
    return {(row.k, row.n): (row.v, row.t) for row in table.select()}


class Writer:
    """Writes rows as planner, task and flusher do."""

    def __init__(self, table: NodeTable, options: dict[str, str], controls: Sequence[str]) -> None:
        self._target = table.target(**options)
        extra = [pa.field(name, _CONTROLS[name]) for name in controls]
        self._schema = pa.schema([*SCHEMA, *extra])
        key = plan_key(self._schema, self._target.name, self._target.shape)
        plan = self._target.plan(self._schema, key)
        self._plan = Plan.from_json(plan.to_json(), "plan")
        self.session = self._target.connect(new_query())

    def __call__(self, us: int, rows: Sequence[Sequence[Any]]) -> None:
        columns = zip(zip(*rows, strict=True), self._schema, strict=True)
        batch = pa.record_batch([pa.array(c, f.type) for c, f in columns], schema=self._schema)
        stored = self._target.check(batch, self._plan)
        write(self.session, self._plan, RowSlice(0, stored, us))


@contextmanager
def writer(table: NodeTable, *controls: str, **options: str) -> Iterator[Writer]:
    named = {f"cassandra.{name}": column for name, column in options.items()}
    if "op" in controls:
        named["operationColumn"] = "op"
    opened = Writer(table, named, controls)
    with opened.session:
        yield opened


def instant(us: int) -> dt.datetime:
    return dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)


@pytest.mark.parametrize(
    ("options", "controls"),
    [
        ({"ttl": "1000"}, ()),
        ({"ttlColumn": "ttl"}, ("ttl",)),
        ({"expiresAtColumn": "until"}, ("until",)),
    ],
    ids=["ttl", "column", "expiry"],
)
def test_ttl_begins_when_its_row_was_published(
    table: NodeTable, options: dict[str, str], controls: tuple[str, ...]
) -> None:
    """The TTL begins neither when the row is written, nor when it is written again."""
    now = now_us()
    with writer(table, *controls, **options) as write_rows:
        for ago_s in (400, 0):
            extra = {"ttl": 1000, "until": instant(now + (1000 - ago_s) * S_US)}
            row = ("a", ago_s, 1, "x", *(extra[name] for name in controls))
            for _ in range(2):
                write_rows(now - ago_s * S_US, [row])
    ttls = {row.n: row.ttl_s for row in table.select("n, TTL(v) AS ttl_s")}
    rounded_up = "until" in controls
    assert 580 < ttls[400] <= 600 + rounded_up
    assert 980 < ttls[0] <= 1000 + rounded_up


def test_expired_row_hides_older_values(table: NodeTable) -> None:
    """Rows are written in any order, and again. A null leaves the older value, and newer values stay."""
    now = now_us()
    earlier: Epoch = (
        now - 5000 * S_US,
        [
            ("a", 1, 1, "stays", 90_000),
            ("b", 1, 1, None, 90_000),
            ("c", 1, 1, "x", 90_000),
        ],
    )
    expired: Epoch = (
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
    with writer(table, "ttl", ttlColumn="ttl") as write_rows:
        for _ in range(3):
            for us, rows in chance.sample([earlier, expired, after], 3):
                write_rows(us, rows)
            current = [value for key, value in rows_of(table).items() if key != ("e", 1)]
            assert not {2, "y", "z"} & {item for values in current for item in values}
    expected: Table = {("a", 1): (None, "stays"), ("e", 1): (3, None)}
    until(lambda: rows_of(table) == expected, seconds=20)


@pytest.mark.parametrize("column", ["at", "us"])
def test_row_of_the_later_event_wins(table: NodeTable, column: str) -> None:
    """Epochs come in any order; deletes have event times, too."""
    now = now_us() - 100 * S_US

    def at(us: int) -> Any:
        return instant(now + us) if column == "at" else now + us

    epochs: list[list[tuple[Any, ...]]] = [
        [("a", 1, 3, "new", "upsert", at(300)), ("b", 1, 1, "x", "upsert", at(100))],
        [("a", 1, 1, "old", "upsert", at(100)), ("b", 1, None, None, "delete", at(50))],
        [("a", 1, None, None, "delete", at(200)), ("c", 1, None, None, "delete", at(200))],
        [("c", 1, 1, "y", "upsert", at(199)), ("d", 1, 1, None, "upsert", at(7))],
    ]
    chance = random.Random(6)
    with writer(table, "op", column, timestampColumn=column) as write_rows:
        for _ in range(3):
            for number, rows in enumerate(chance.sample(epochs, len(epochs))):
                write_rows(now + number * S_US, rows)
    assert rows_of(table) == {("a", 1): (3, "new"), ("b", 1): (1, "x"), ("d", 1): (1, None)}


STATIC = "k text, n int, s text static, v set<int>, at timestamp, PRIMARY KEY (k, n)"
STATIC_SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("s", pa.string())])
SETS = STATIC_SCHEMA.append(pa.field("v", pa.list_(pa.int32())))
EVENTS = STATIC_SCHEMA.append(pa.field("at", INSTANT))


def static_row(key: str, value: Any, schema: pa.Schema = SETS) -> pa.RecordBatch:
    last = pa.array([value], schema[-1].type)
    return pa.record_batch([[key], pa.array([1], pa.int32()), ["s"], last], schema=schema)


def test_default_ttl_of_the_table_begins_at_the_publish(cassandra: Node, shared: str) -> None:
    """An ALTER TABLE holds for rows that are written after it."""
    table, now = NodeTable(cassandra, shared, STATIC), now_us()
    cassandra.execute(f"ALTER TABLE {table.name} WITH default_time_to_live = 1000")
    table.write((now - 400 * S_US, static_row("a", [1, 2])))
    (row,) = table.select("TTL(s) AS ttl_s, v")
    assert 580 < row.ttl_s <= 600
    assert set(row.v) == {1, 2}
    cassandra.execute(f"ALTER TABLE {table.name} WITH default_time_to_live = 0")
    table.write((now - 9_000 * S_US, static_row("b", [1, 2])))
    ttls = {row.k: row.ttl_s for row in table.select("k, TTL(s) AS ttl_s")}
    assert ttls["b"] is None
    # An expired row hides the older row, which never expires.
    table.write((now - 200 * S_US, static_row("b", [3])), **{"cassandra.ttl": "100"})
    until(lambda: {row.k for row in table.select("k")} == {"a"}, seconds=20)


def test_event_times_order_rows_by_microseconds(cassandra: Node, shared: str) -> None:
    """The column of the table has milliseconds. A static column is one cell for all rows of a partition."""
    table, now = NodeTable(cassandra, shared, STATIC), now_us()
    events = {"cassandra.timestampColumn": "at"}
    for us in (now + 7, now + 6):
        table.write((now, static_row("c", instant(us), EVENTS)), **events)
    (row,) = table.select("WRITETIME(at) AS us")
    assert row.us == now + 7
    at = [instant(now)] * 2
    keys = [["d", "d"], pa.array([1, 2], pa.int32()), ["z", "a"], pa.array(at, INSTANT)]
    table.write((now, pa.record_batch(keys, schema=EVENTS)), **events)
    rows = {(row.k, row.n, row.s) for row in table.select("k, n, s")}
    assert rows == {("c", 1, "s"), ("d", 1, "z"), ("d", 2, "z")}


def test_ttl_beyond_2038_is_refused_by_the_server(cassandra: Node, shared: str) -> None:
    """Before Cassandra 5, and while nodes may be downgraded, the end of a TTL has 31 bits."""
    table = NodeTable(cassandra, shared, STATIC)
    with pytest.raises(RowsRefused, match="2038"):
        table.write((now_us(), static_row("d", [1])), **{"cassandra.ttl": str(MAX_TTL_S)})
