"""Values of every type on a real node: read back, written again, written late, and in keys."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.support.cassandra import NodeTable
from tests.support.cql_values import FIELDS, SCALARS, Case, expected, plain, shapes, type_name
from tests.support.waiting import until
from wal_sink.demo.cassandra import Node
from wal_sink.errors import SchemaMismatch
from wal_sink.targets.base import RowSlice
from wal_sink.units import now_us

pytestmark = pytest.mark.cassandra

US = 1_700_000_000_000_000
S_US = 1_000_000
INTS = pa.list_(pa.int32())
PAIR = pa.struct([("x", pa.int32()), ("y", pa.int32())])


@pytest.fixture(scope="module")
def types(cassandra: Node, shared: str) -> str:
    """A keyspace with user-defined types: a pair of ints, and a type of two fields for each CQL type."""
    cassandra.execute(f"CREATE TYPE {shared}.pair (x int, y int)")
    for case in {case.cql: case for case in SCALARS}.values():
        quoted = (f'"{name}"'.replace('a "b', 'a ""b') for name in FIELDS)
        fields = ", ".join(f"{name} {case.cql}" for name in quoted)
        cassandra.execute(f'CREATE TYPE {shared}."{type_name(case)}" ({fields})')
    return shared


def ints(*values: int) -> pa.Array:
    return pa.array(values, pa.int32())


def drawn(case: Case, count: int) -> list[Any]:
    """Draw values, including nulls. Hypothesis cannot draw the values of all cases at once."""
    values = []

    @settings(max_examples=count, database=None, phases=[Phase.generate], deadline=None)
    @given(st.none() | case.values)
    def draw(value: Any) -> None:
        values.append(value)

    draw()
    return [*values, *[None] * count][:count]


class Wide:
    """A table with a column for each of some cases, and rows of drawn values."""

    def __init__(self, node: Node, keyspace: str, cases: list[Case], count: int) -> None:
        columns = ", ".join(f"c{i} {case.cql}" for i, case in enumerate(cases))
        self.table = NodeTable(node, keyspace, f"id int PRIMARY KEY, {columns}")
        self._cases, self._values = cases, [drawn(case, count) for case in cases]
        arrays = zip(cases, self._values, strict=True)
        columns_of = {f"c{i}": case.array(values) for i, (case, values) in enumerate(arrays)}
        self.batch = pa.record_batch({"id": ints(*range(count)), **columns_of})

    def check(self) -> None:
        """Compare the rows of the table with the values that were drawn."""
        rows = {row.id: row for row in self.table.select()}
        for i, (case, values) in enumerate(zip(self._cases, self._values, strict=True)):
            back = [getattr(rows[number], f"c{i}") for number in range(len(values))]
            result = [None if item is None else plain(item) for item in back]
            assert result == [expected(case, value) for value in values], case.cql


def is_unfrozen_list(case: Case) -> bool:
    """Return True for a list that is not frozen."""
    return case.cql.startswith("list<")


ALL = [shape for case in SCALARS for shape in shapes(case)]


def test_values_of_every_type_are_read_back(cassandra: Node, types: str) -> None:
    """The values are written once without and once with TTLs. Then a part of the rows expires."""
    wide = Wide(cassandra, types, [case for case in ALL if not is_unfrozen_list(case)], 12)
    slices = [wide.batch.slice(begin, 4) for begin in (0, 4, 8)]
    for us, options in ((US, {}), (now_us() - 90 * S_US, {"cassandra.ttl": "100000"})):
        wide.table.write(*((us, item) for item in slices), **options)
        wide.check()
    wide.table.write((now_us() - 50 * S_US, slices[0]), **{"cassandra.ttl": "1"})
    remaining = {*range(4, 12)}
    until(lambda: {row.id for row in wide.table.select("id")} == remaining, seconds=20)


def collections(*rows: tuple[int, Any, Any, Any]) -> pa.RecordBatch:
    """Return rows of partition 1: n, a set, a map and a pair."""
    n, sets, maps, pairs = zip(*rows, strict=True)
    columns = {"k": ints(*(1 for _ in n)), "n": ints(*n), "s": pa.array(sets, INTS)}
    columns["m"] = pa.array(maps, pa.map_(pa.int32(), pa.int32()))
    return pa.record_batch({**columns, "u": pa.array(pairs, PAIR)})


@pytest.mark.parametrize("alone", [True, False])
def test_newest_write_of_a_collection_wins(cassandra: Node, types: str, alone: bool) -> None:
    """The collection stays whole when it is written again, and when an older write arrives late."""
    columns = "k int, n int, s set<int>, m map<int, int>, u pair, PRIMARY KEY (k, n)"
    table = NodeTable(cassandra, types, columns)
    old = collections((1, [1, 2], [(1, 1), (2, 2)], {"x": 1, "y": 1}))
    new = collections((1, [2, 3], [(2, 9)], {"x": 2, "y": None}))
    rows: dict[int, Any] = {1: ([2, 3], {2: 9}, (2, None))}
    if not alone:
        other = collections((2, [7], [(7, 7)], {"x": 7, "y": 7}))
        old, new = (pa.concat_batches([item, other]) for item in (old, new))
        rows[2] = ([7], {7: 7}, (7, 7))
    for windows in ([(10, new)] * 3 + [(0, old), (10, new)], [(0, old)] * 2):
        table.write(*((US + us, batch) for us, batch in windows))
        result = {row.n: (list(row.s), dict(row.m), tuple(row.u)) for row in table.select()}
        assert result == rows


def test_unfrozen_lists_sent_twice_have_each_element_once(cassandra: Node, types: str) -> None:
    """The second sending has later timestamps; a late write of the first changes nothing."""
    wide = Wide(cassandra, types, [case for case in ALL if is_unfrozen_list(case)], 6)
    plan = wide.table.write((US, wide.batch), (US + 6, wide.batch), (US, wide.batch))
    assert plan.sent_once
    wide.check()


def test_newest_write_of_an_unfrozen_list_wins(cassandra: Node, shared: str) -> None:
    table = NodeTable(cassandra, shared, "k int PRIMARY KEY, l list<int>, v int")

    def rows_of(*lists: list[int] | None) -> pa.RecordBatch:
        keys, numbers = ints(*[1] * len(lists)), ints(*range(len(lists)))
        return pa.record_batch({"k": keys, "l": pa.array(lists, INTS), "v": numbers})

    def stored() -> list[tuple[Any, int]]:
        return [(row.l, row.v) for row in table.select()]

    table.write((US, rows_of([1, 2])), (US, rows_of([1, 2])))
    assert stored() == [([1, 2, 1, 2], 0)], "the same timestamp doubles the elements"
    two = rows_of([3, 4], [5])
    table.write((US + 2, two), (US, rows_of([1, 2])), (US + 1, rows_of([9])))
    assert stored() == [([5], 1)], "two rows of the key in one request, and late rows"
    table.write((US + 4, rows_of([6], None)))
    assert stored() == [([6], 1)], "a null leaves the list"
    table.write((US + 6, rows_of([6], [])))
    assert stored() == [(None, 1)], "an empty list clears it"
    clears = {"cassandra.nulls": "write", "cassandra.writeMode": "update"}
    table.write((US + 8, rows_of([7, 7])), **clears)
    table.write((US + 9, rows_of([8], None)), **clears)
    assert stored() == [(None, 1)]
    with pytest.raises(SchemaMismatch, match=r"have a TTL in seconds \(cassandra.ttl\)"):
        table.target(**{"cassandra.ttl": "60"}).plan(two.schema, "key")


def test_nested_types_in_the_key_are_compared_by_value(cassandra: Node, types: str) -> None:
    columns = (
        "s frozen<set<int>>, t frozen<tuple<int, text>>, u frozen<pair>, m frozen<map<int, int>>,"
        " l frozen<list<int>>, n int, PRIMARY KEY ((s, u, m), t, l)"
    )
    table = NodeTable(cassandra, types, columns)
    maps = [[(2, 2), (1, 1)], [(1, 1), (2, 2)], []]
    tuples = pa.struct([("a", pa.int8()), ("b", pa.string())])
    batch = pa.record_batch(
        {
            "s": pa.array([[2, 1, 1], [1, 2], []], INTS),
            "t": pa.array([{"a": None, "b": "x"}] * 3, tuples),
            "u": pa.array([{"y": 1}, {"y": 1}, {"y": None}], pa.struct([("y", pa.int32())])),
            "m": pa.array(maps, pa.map_(pa.int32(), pa.int32())),
            "l": pa.array([[2, 1], [2, 1], []], INTS),
            "n": ints(1, 2, 3),
        }
    )
    table.write((US, batch), (US, batch))
    rows = {row.n: row for row in table.select()}
    assert set(rows) == {2, 3}
    assert (list(rows[2].s), tuple(rows[2].t), tuple(rows[2].u)) == ([1, 2], (None, "x"), (None, 1))
    assert (dict(rows[2].m), rows[2].l) == ({1: 1, 2: 2}, [2, 1])


def test_user_type_with_new_field_keeps_older_plan_valid(cassandra: Node, shared: str) -> None:
    """The new field is null. If a field is renamed, the flush stops."""
    cassandra.execute(f"CREATE TYPE {shared}.widened (x int)")
    columns = "id int PRIMARY KEY, u frozen<widened>, l frozen<list<frozen<widened>>>"
    table = NodeTable(cassandra, shared, columns)
    value = pa.struct([("x", pa.int32())])
    lists = pa.array([[{"x": 2}]], pa.list_(value))
    batch = pa.record_batch({"id": ints(1), "u": pa.array([{"x": 1}], value), "l": lists})
    plan = table.write((US, batch))
    cassandra.execute(f"ALTER TYPE {shared}.widened ADD y int")
    target = table.target()
    checked = RowSlice(0, target.check(batch, plan), US + 1)
    with target.connect("q") as session:
        session.write(plan, checked)
    rows = [(tuple(row.u), tuple(row.l[0])) for row in table.select()]
    assert rows == [((1, None), (2, None))]
    cassandra.execute(f"ALTER TYPE {shared}.widened RENAME x TO z")
    words = r'type widened was \("x" int\), is \("z" int, "y" int\)'
    with target.connect("q") as session, pytest.raises(SchemaMismatch, match=words):
        session.write(plan, checked)


def test_statement_of_an_error_creates_the_table(cassandra: Node, shared: str) -> None:
    """Structs become tuples. `createTable` runs the same statement."""
    inner = pa.struct([("Zip code", pa.int16()), ("m", pa.map_(pa.string(), pa.list_(pa.int8())))])
    schema = pa.schema(
        [
            ("id", pa.int64()),
            ("a b", pa.struct([("order", pa.list_(inner)), ("t", pa.time64("ns"))])),
            ("maps", pa.list_(pa.map_(pa.string(), inner))),
            ("scores", pa.map_(pa.string(), pa.map_(pa.int32(), pa.float32()))),
        ]
    )
    target = NodeTable(cassandra, shared, table="new").target()
    with pytest.raises(SchemaMismatch) as refused:
        target.plan(schema, "k")
    text = str(refused.value)
    cassandra.execute(text[text.index("CREATE TABLE") :].rstrip().removesuffix(";"))
    values = "frozen<tuple<smallint, frozen<map<text, frozen<list<tinyint>>>>>>"
    assert [column.type for column in target.plan(schema, "k").columns][1:] == [
        f"frozen<tuple<frozen<list<{values}>>, time>>",
        f"frozen<list<frozen<map<text, {values}>>>>",
        "map<text, frozen<map<int, float>>>",
    ]
