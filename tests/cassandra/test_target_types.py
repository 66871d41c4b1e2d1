"""Nested types on a real node: there and back, written again, written late, and in keys."""

from __future__ import annotations

import secrets
import uuid
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.cassandra import target_of
from tests.support.cql_values import FIELDS, SCALARS, Case, expected, plain, shapes, type_name
from tests.support.waiting import until
from wal_sink.clock import now_us
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice
from wal_sink.targets.cassandra import CassandraTarget

pytestmark = pytest.mark.cassandra

V1 = "123e4567-e89b-12d3-a456-426614174000"
US = 1_700_000_000_000_000
S_US = 1_000_000


class Place:
    """A keyspace, and rows written to its tables."""

    def __init__(self, node: Node, keyspace: str) -> None:
        self.node = node
        self.keyspace = keyspace

    def target(self, table: str, nulls: str = "unset", **more: str) -> CassandraTarget:
        options = {f"cassandra.{name}": value for name, value in {"nulls": nulls, **more}.items()}
        return target_of(self.node, self.keyspace, table, **options)

    def write(
        self, table: str, *batches: tuple[int, pa.RecordBatch], nulls: str = "unset", **more: str
    ) -> Plan:
        """Plan, check and write batches of one schema with their timestamps."""
        target = self.target(table, nulls, **more)
        plan = target.plan(batches[0][1].schema, uuid.uuid4().hex)
        with target.connect(uuid.uuid4().hex) as session:
            for us, batch in batches:
                session.write(plan, RowSlice(0, target.check(batch, plan), us))
            session.drain()
        return plan

    def create(self, columns: str) -> str:
        table = f"t_{secrets.token_hex(4)}"
        self.node.execute(f"CREATE TABLE {self.keyspace}.{table} ({columns})")
        return table

    def select(self, table: str, what: str = "*") -> list[Any]:
        return self.node.execute(f"SELECT {what} FROM {self.keyspace}.{table}")


@pytest.fixture(scope="module")
def place(cassandra: Node, shared: str) -> Place:
    """One keyspace for all tests here, with a type of two ints."""
    cassandra.execute(f"CREATE TYPE {shared}.pair (x int, y int)")
    return Place(cassandra, shared)


def ints(*values: int) -> pa.Array:
    return pa.array(values, pa.int32())


# --- there and back --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide(place: Place) -> tuple[str, list[Case]]:
    """A table with a column for every type in every shape, all of them user-defined types too."""
    for cql in {case.cql: case for case in SCALARS}.values():
        quoted = (f'"{name}"'.replace('a "b', 'a ""b') for name in FIELDS)
        fields = ", ".join(f"{name} {cql.cql}" for name in quoted)
        place.node.execute(f'CREATE TYPE {place.keyspace}."{type_name(cql)}" ({fields})')
    cases = [shape for case in SCALARS for shape in shapes(case) if not in_place_list(shape)]
    columns = ", ".join(f"c{i} {case.cql}" for i, case in enumerate(cases))
    return place.create(f"id int PRIMARY KEY, {columns}"), cases


def in_place_list(case: Case) -> bool:
    """Return True if it is a list that is not frozen: a row with one has no TTL of its own."""
    return case.cql.startswith("list<")


def some(case: Case, count: int) -> list[Any]:
    """Draw values, nulls among them; a draw for all cases at once is more than Hypothesis gives."""
    result = []

    @settings(max_examples=count, database=None, phases=[Phase.generate], deadline=None)
    @given(st.none() | case.values)
    def draw(value: Any) -> None:
        result.append(value)

    draw()
    return [*result, *[None] * count][:count]


def test_values_of_every_type_are_read_back(place: Place, wide: tuple[str, list[Case]]) -> None:
    """Every type, alone and as a part of every shape; three batches that are slices of one.

    Then again with TTLs; and the rows of the first batch expire.
    """
    table, cases = wide
    drawn = [some(case, 12) for case in cases]
    columns = {f"c{i}": case.array(drawn[i]) for i, case in enumerate(cases)}
    batch = pa.record_batch({"id": ints(*range(12)), **columns})
    slices = [batch.slice(begin, 4) for begin in (0, 4, 8)]
    for us, options in ((US, {}), (now_us() - 90 * S_US, {"ttl": "100000"})):
        place.write(table, *((us, item) for item in slices), **options)
        rows = {row.id: row for row in place.select(table)}
        for i, (case, values) in enumerate(zip(cases, drawn, strict=True)):
            back = [getattr(rows[j], f"c{i}") for j in range(12)]
            got = [None if item is None else plain(item) for item in back]
            assert got == [expected(case, value) for value in values], case.cql
    place.write(table, (now_us() - 50 * S_US, slices[0]), ttl="1")
    until(lambda: {row.id for row in place.select(table, "id")} == {*range(4, 12)}, seconds=20)


def test_element_of_a_set_may_be_long(place: Place) -> None:
    """More than the 64 KiB that older protocols allowed; keys of maps, too."""
    table = place.create("id int PRIMARY KEY, s set<text>, m map<text, int>")
    long = "x" * 70_000
    batch = pa.record_batch(
        {
            "id": ints(1),
            "s": pa.array([[long, ""]]),
            "m": pa.array([[(long, 1)]], pa.map_(pa.string(), pa.int32())),
        }
    )
    place.write(table, (US, batch))
    (row,) = place.select(table)
    assert (set(row.s), dict(row.m)) == ({long, ""}, {long: 1})


# --- again, late, and nulls ------------------------------------------------------------------


def collections(*rows: tuple[int, Any, Any, Any]) -> pa.RecordBatch:
    """Rows of n and the three columns."""
    n, s, m, u = zip(*rows, strict=True)
    pair = pa.struct([("x", pa.int32()), ("y", pa.int32())])
    return pa.record_batch(
        {
            "k": ints(*(1 for _ in n)),
            "n": ints(*n),
            "s": pa.array(s, pa.list_(pa.int32())),
            "m": pa.array(m, pa.map_(pa.int32(), pa.int32())),
            "u": pa.array(u, pair),
        }
    )


def read(place: Place, table: str) -> dict[int, Any]:
    """Read the three columns by n."""
    return {
        row.n: (
            None if row.s is None else list(row.s),
            None if row.m is None else dict(row.m),
            None if row.u is None else tuple(row.u),
        )
        for row in place.select(table)
    }


@pytest.mark.parametrize("alone", [True, False])
def test_written_three_times_and_an_older_one_late(place: Place, alone: bool) -> None:
    """As a statement and in a batch: what stays is the newest write, whole, nothing twice."""
    table = create_in_place(place)
    old = collections((1, [1, 2], [(1, 1), (2, 2)], {"x": 1, "y": 1}))
    new = collections((1, [2, 3], [(2, 9)], {"x": 2, "y": None}))
    if not alone:
        other = collections((2, [7], [(7, 7)], {"x": 7, "y": 7}))
        old, new = (pa.concat_batches([item, other]) for item in (old, new))
    place.write(table, (US + 10, new), (US + 10, new), (US + 10, new), (US, old), (US + 10, new))
    later = {} if alone else {2: ([7], {7: 7}, (7, 7))}
    assert read(place, table) == {1: ([2, 3], {2: 9}, (2, None))} | later
    place.write(table, (US, old), (US, old))
    assert read(place, table) == {1: ([2, 3], {2: 9}, (2, None))} | later


def create_in_place(place: Place) -> str:
    """Create a table with everything that is not frozen."""
    return place.create("k int, n int, s set<int>, m map<int, int>, u pair, PRIMARY KEY (k, n)")


def test_lists_that_are_not_frozen(place: Place) -> None:
    """The same write doubles them; that of a later attempt does not; a late one changes nothing (rule 15)."""
    cases = [shape for case in SCALARS for shape in shapes(case) if in_place_list(shape)]
    columns = ", ".join(f"c{i} {case.cql}" for i, case in enumerate(cases))
    types = place.create(f"id int PRIMARY KEY, {columns}")
    drawn = [some(case, 6) for case in cases]
    arrays = {f"c{i}": case.array(drawn[i]) for i, case in enumerate(cases)}
    batch = pa.record_batch({"id": ints(*range(6)), **arrays})
    plan = place.write(types, (US, batch), (US + 6, batch), (US, batch))
    assert plan.sent_once
    rows = {row.id: row for row in place.select(types)}
    for i, (case, values) in enumerate(zip(cases, drawn, strict=True)):
        back = [getattr(rows[j], f"c{i}") for j in range(6)]
        got = [None if item is None else plain(item) for item in back]
        assert got == [expected(case, value) for value in values], case.cql
    table = place.create("k int PRIMARY KEY, l list<int>, v int")
    kind = pa.list_(pa.int32())

    def rows_of(*lists: list[int] | None) -> pa.RecordBatch:
        many = len(lists)
        return pa.record_batch(
            {"k": ints(*[1] * many), "l": pa.array(lists, kind), "v": ints(*range(many))}
        )

    def there() -> list[tuple[Any, int]]:
        return [(row.l, row.v) for row in place.select(table)]

    place.write(table, (US, rows_of([1, 2])), (US, rows_of([1, 2])))
    assert there() == [([1, 2, 1, 2], 0)], "the trap"
    one_key = rows_of([3, 4], [5])
    place.write(table, (US + 2, one_key), (US, rows_of([1, 2])), (US + 1, rows_of([9])))
    assert there() == [([5], 1)], (
        "rows of a key in one request, and late ones of the attempt before"
    )
    place.write(table, (US + 4, rows_of([6], None)))
    assert there() == [([6], 1)], "a null leaves it"
    place.write(table, (US + 6, rows_of([6], [])))
    assert there() == [(None, 1)], "an empty one clears it"
    place.write(table, (US + 8, rows_of([7, 7])), nulls="write", writeMode="update")
    place.write(table, (US + 9, rows_of([8], None)), nulls="write", writeMode="update")
    assert there() == [(None, 1)]
    with pytest.raises(SchemaMismatch, match=r"have a TTL in seconds \(cassandra.ttl\)"):
        place.target(table, ttl="60").plan(one_key.schema, "key")


# --- keys, and types that change -------------------------------------------------------------


def test_nested_types_in_the_key(place: Place) -> None:
    """Frozen ones, with nulls within a tuple; equal sets are one key."""
    table = place.create(
        "s frozen<set<int>>, t frozen<tuple<int, text>>, u frozen<pair>, m frozen<map<int, int>>, "
        "l frozen<list<int>>, n int, PRIMARY KEY ((s, u, m), t, l)"
    )
    pair = pa.struct([("y", pa.int32())])
    batch = pa.record_batch(
        {
            "s": pa.array([[2, 1, 1], [1, 2], []], pa.list_(pa.int32())),
            "t": pa.array(
                [{"a": None, "b": "x"}] * 3, pa.struct([("a", pa.int8()), ("b", pa.string())])
            ),
            "u": pa.array([{"y": 1}, {"y": 1}, {"y": None}], pair),
            "m": pa.array(
                [[(2, 2), (1, 1)], [(1, 1), (2, 2)], []], pa.map_(pa.int32(), pa.int32())
            ),
            "l": pa.array([[2, 1], [2, 1], []], pa.list_(pa.int32())),
            "n": ints(1, 2, 3),
        }
    )
    place.write(table, (US, batch), (US, batch))
    rows = {row.n: row for row in place.select(table)}
    assert set(rows) == {2, 3}
    assert (list(rows[2].s), tuple(rows[2].t), tuple(rows[2].u)) == ([1, 2], (None, "x"), (None, 1))
    assert (dict(rows[2].m), rows[2].l) == ({1: 1, 2: 2}, [2, 1])


def test_user_defined_type_that_grows(place: Place) -> None:
    """A new field is null in what an older plan writes; a renamed one stops it."""
    place.node.execute(f"CREATE TYPE {place.keyspace}.growing (x int)")
    table = place.create("id int PRIMARY KEY, u frozen<growing>, l frozen<list<frozen<growing>>>")
    value = pa.struct([("x", pa.int32())])
    batch = pa.record_batch(
        {
            "id": ints(1),
            "u": pa.array([{"x": 1}], value),
            "l": pa.array([[{"x": 2}]], pa.list_(value)),
        }
    )
    plan = place.write(table, (US, batch))
    place.node.execute(f"ALTER TYPE {place.keyspace}.growing ADD y int")
    target = place.target(table)
    checked = RowSlice(0, target.check(batch, plan), US + 1)
    with target.connect("q") as session:
        session.write(plan, checked)
    assert [(tuple(row.u), tuple(row.l[0])) for row in place.select(table)] == [
        ((1, None), (2, None))
    ]
    place.node.execute(f"ALTER TYPE {place.keyspace}.growing RENAME x TO z")
    with (
        target.connect("q") as session,
        pytest.raises(
            SchemaMismatch, match=r'type growing was \("x" int\), is \("z" int, "y" int\)'
        ),
    ):
        session.write(plan, checked)


def test_printed_types_can_be_created(place: Place) -> None:
    """CREATE TYPE for structs, CREATE TABLE with frozen lists; the DataFrame then fits."""
    inner = pa.struct([("Zip code", pa.int16()), ("m", pa.map_(pa.string(), pa.list_(pa.int8())))])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("a b", pa.struct([("order", pa.list_(inner)), ("t", pa.time64("ns"))])),
            ("maps", pa.list_(pa.map_(pa.string(), inner))),
            ("scores", pa.map_(pa.string(), pa.map_(pa.int32(), pa.float32()))),
        ]
    )
    with pytest.raises(SchemaMismatch) as refused:
        place.target("new").plan(schema, "k")
    text = str(refused.value)
    for statement in text[text.index("CREATE TYPE") :].split(";")[:-1]:
        place.node.execute(statement)
    assert [column.type for column in place.target("new").plan(schema, "k").columns][1:] == [
        "frozen<a_b>",
        "frozen<list<frozen<map<text, frozen<maps_element_value>>>>>",
        "map<text, frozen<map<int, float>>>",
    ]
