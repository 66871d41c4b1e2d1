"""TTLs and event times on a real node: what stays of rows, and when it goes."""

from __future__ import annotations

import datetime as dt
import random
import secrets
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cassandra import target_of
from tests.support.waiting import until
from wal_sink.clock import now_us
from wal_sink.demo.servers.cassandra import Node
from wal_sink.model.plan import Plan, plan_key
from wal_sink.targets.base import RowSlice, RowsRefused, Target
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.targets.cassandra.row_plan import MAX_TTL_S
from wal_sink.testing.contracts.cells import write
from wal_sink.testing.contracts.ledger import Table, new_query
from wal_sink.testing.contracts.rows import SCHEMA

pytestmark = pytest.mark.cassandra

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


class Place:
    """An empty table with the columns of `SCHEMA`, and targets that write to it."""

    def __init__(self, node: Node, keyspace: str) -> None:
        self._node, self._keyspace = node, keyspace
        self._table = f"t_{secrets.token_hex(4)}"
        columns = "k text, n int, v bigint, t text, PRIMARY KEY (k, n)"
        node.execute(f"CREATE TABLE {keyspace}.{self._table} ({columns})")

    def target(self, options: dict[str, str]) -> Target:
        return target_of(self._node, self._keyspace, self._table, **options)

    def rows(self) -> Table:
        rows = self._node.execute(f"SELECT k, n, v, t FROM {self._keyspace}.{self._table}")
        return {(row.k, row.n): (row.v, row.t) for row in rows}

    def ttls(self) -> dict[tuple[str, int], int | None]:
        """Read the TTL that the value v of each row still has; None: it never expires."""
        query = f"SELECT k, n, TTL(v) AS ttl_s FROM {self._keyspace}.{self._table}"
        return {(row.k, row.n): row.ttl_s for row in self._node.execute(query)}


@pytest.fixture
def place(cassandra: Node, shared: str) -> Place:
    """A table of the test's own."""
    return Place(cassandra, shared)


def test_equal_timestamps_keep_the_larger_value(place: Place) -> None:
    """Ties are resolved cell by cell on the serialized bytes, where -1 is larger than 1."""
    target, now = place.target({}), now_us()
    with _open(target) as write:
        for row in (("a", 1, 1, "x"), ("a", 1, -1, "b"), ("a", 1, 7, "a")):
            write(now, [row])
    assert place.rows() == {("a", 1): (-1, "x")}


@pytest.mark.parametrize("arguments", ["ttl", "column", "expiry"])
def test_ttl_begins_when_its_row_was_published(place: Place, arguments: str) -> None:
    """Not when it is written, nor when it is written again."""
    options = {
        "ttl": {"cassandra.ttl": "1000"},
        "column": TTL_COLUMN,
        "expiry": EXPIRES_COLUMN,
    }[arguments]
    target, now = place.target(options), now_us()
    with _open(target, {"column": "ttl", "expiry": "until"}.get(arguments)) as write:
        for ago_s in (400, 0):
            end = _instant(now + (1000 - ago_s) * S_US)
            brought: tuple[Any, ...] = {"ttl": (), "column": (1000,), "expiry": (end,)}[arguments]
            for _ in range(2):
                write(now - ago_s * S_US, [("a", ago_s, 1, "x", *brought)])
    first, second = (place.ttls()["a", ago_s] for ago_s in (400, 0))
    assert first is not None
    assert second is not None
    assert 580 < first <= 600 + (arguments == "expiry")
    assert 980 < second <= 1000 + (arguments == "expiry")


def test_expired_row_hides_what_it_would_have_hidden(place: Place) -> None:
    """As if the row had been written at once; whatever comes in which order, and again.

    What its nulls left, stays. Its values are never seen. What is newer is not touched.
    """
    target, now = place.target(TTL_COLUMN), now_us()
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
            current = [value for key, value in place.rows().items() if key != ("e", 1)]
            assert not {2, "y", "z"} & {item for values in current for item in values}
    expected: Table = {("a", 1): (None, "stays"), ("e", 1): (3, None)}
    until(lambda: place.rows() == expected, seconds=20)


@pytest.mark.parametrize("kind", ["at", "us"])
def test_row_of_the_later_event_stays(place: Place, kind: str) -> None:
    """In whichever epoch it comes; deletes have event times, too."""
    options = {"cassandra.timestampColumn": kind, "operationColumn": "op"}
    target, now = place.target(options), now_us() - 100 * S_US

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
    assert place.rows() == {("a", 1): (3, "new"), ("b", 1): (1, "x"), ("d", 1): (1, None)}


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


# --- static columns, defaults of the table, limits ----------------------------------------------


INSTANT = pa.timestamp("us", "UTC")
TABLE = "k text, n int, s text static, v set<int>, at timestamp, PRIMARY KEY (k, n)"
STATIC_SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int32()), ("s", pa.string())])


def write_rows(target: CassandraTarget, us: int, batch: pa.RecordBatch) -> None:
    plan = target.plan(batch.schema, "key")
    with target.connect("query") as session:
        session.write(plan, RowSlice(0, target.check(batch, plan), us))
        session.drain()


def test_on_a_real_node(cassandra: Node, keyspace: str) -> None:
    """What the table says of TTLs counts from when a row was published, too; its times keep their digits."""
    table = f"{keyspace}.t"
    cassandra.execute(f"CREATE TABLE {table} ({TABLE}) WITH default_time_to_live = 1000")
    target, now = target_of(cassandra, keyspace), now_us()
    sets = STATIC_SCHEMA.append(pa.field("v", pa.list_(pa.int32())))

    def row(key: str, *more: pa.Array, schema: pa.Schema = sets) -> pa.RecordBatch:
        arrays = [pa.array([key]), pa.array([1], pa.int32()), pa.array(["s"]), *more]
        return pa.record_batch(arrays, schema=schema)

    numbers = pa.array([[1, 2]], pa.list_(pa.int32()))
    write_rows(target, now - 400 * S_US, row("a", numbers))
    (rows,) = cassandra.execute(f"SELECT TTL(s) AS s, v FROM {table} WHERE k = 'a'")
    assert 580 < rows.s <= 600
    assert set(rows.v) == {1, 2}

    # Altered while rows wait. What is over takes what an older row without end had written.
    cassandra.execute(f"ALTER TABLE {table} WITH default_time_to_live = 0")
    write_rows(target, now - 9_000 * S_US, row("b", numbers))
    (rows,) = cassandra.execute(f"SELECT TTL(s) AS s FROM {table} WHERE k = 'b'")
    assert rows.s is None
    short = target_of(cassandra, keyspace, **{"cassandra.ttl": "100"})
    write_rows(short, now - 200 * S_US, row("b", pa.array([[3]], pa.list_(pa.int32()))))
    read = f"SELECT k, s, v FROM {table} WHERE k = 'b'"
    until(lambda: cassandra.execute(read) == [], seconds=20)

    # The event time that the table has in milliseconds orders rows by microseconds.
    events = target_of(cassandra, keyspace, **{"cassandra.timestampColumn": "at"})
    fields = STATIC_SCHEMA.append(pa.field("at", INSTANT))
    for us in (now + 7, now + 6):
        at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
        write_rows(events, now, row("c", pa.array([at], INSTANT), schema=fields))
    (rows,) = cassandra.execute(f"SELECT at, WRITETIME(at) AS us FROM {table} WHERE k = 'c'")
    assert rows.us == now + 7

    # A static column is a cell of the partition, so rows of several keys and one time share it.
    names = events.plan(fields, "key").of_table().columns
    assert {column.name for column in names if column.role == "static"} == {"s"}
    both = [["d", "d"], pa.array([1, 2], pa.int32()), ["z", "a"], pa.array([at, at], INSTANT)]
    write_rows(events, now, pa.record_batch(both, schema=fields))
    rows = cassandra.execute(f"SELECT n, s FROM {table} WHERE k = 'd'")
    assert [tuple(item) for item in rows] == [(1, "z"), (2, "z")]
    cassandra.execute(f"DELETE FROM {table} USING TIMESTAMP {now + 10} WHERE k = 'd'")

    # Before Cassandra 5, and until no node may be downgraded, the end of a TTL is kept in 31 bits.
    with pytest.raises(RowsRefused, match="2038"):
        write_rows(
            target_of(cassandra, keyspace, **{"cassandra.ttl": str(MAX_TTL_S)}),
            now_us(),
            row("d", numbers),
        )
