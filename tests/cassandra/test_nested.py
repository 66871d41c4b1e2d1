"""Nested values in the tasks: each that is refused with its path, and what the rest becomes."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from tests.support.cql_driver import plan_of
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Role
from wal_sink.targets.cassandra.check import MAX_ROW_BYTES, check
from wal_sink.targets.cassandra.compare import match_columns, refuse_changed, used_types
from wal_sink.targets.cassandra.row_plan import CassandraPlan, TableName
from wal_sink.targets.cassandra.table import ColumnMetadata, TableMetadata

V1 = "123e4567-e89b-12d3-a456-426614174000"
V4 = "123e4567-e89b-42d3-a456-426614174000"
TYPES = {"place": (("street", "text"), ("zip", "int"), ("seen", "frozen<list<timestamp>>"))}
INTS = pa.list_(pa.int32())
INSTANTS = pa.list_(pa.timestamp("us", "UTC"))


def plan(arrow: pa.DataType, cql: str, role: Role = "regular") -> CassandraPlan:
    """Plan a table of id and c."""
    key = ("id", "partition", "int", pa.int32())
    return plan_of(key, ("c", role, cql, arrow), types=TYPES)  # type: ignore[arg-type]


def one(cql: str, values: pa.Array, role: Role = "regular") -> pa.Array:
    """Check one column beside a key."""
    ids = pa.array(range(len(values)), pa.int32())
    return check(pa.record_batch({"id": ids, "c": values}), plan(values.type, cql, role))["c"]


def place(street: str | None = None, **more: Any) -> dict[str, Any]:
    return {"street": street, **more}


SEEN = pa.struct([("street", pa.string()), ("seen", INSTANTS)])


@pytest.mark.parametrize(
    ("cql", "values", "says"),
    [
        (
            "ascii",
            pa.array(["a", "é"]),
            "Column c of t ('é') has characters that ascii cannot hold",
        ),
        ("timeuuid", pa.array([V1, V4]), f"Column c of t ('{V4}') is not a uuid of version 1"),
        (
            "inet",
            pa.array(["::1", "1.2.3"]),
            "Column c of t ('1.2.3') is not an IPv4 or IPv6 address",
        ),
        (
            "time",
            pa.array(["23:59:59", "24:00:00"]),
            "Column c of t ('24:00:00') is not a time of day",
        ),
        (
            "time",
            pa.array([0, 86_400 * 10**9], pa.int64()).cast(pa.time64("ns")),
            "Column c of t (00:00:00) is not a time of day",
        ),
        (
            "duration",
            pa.array([0, 2**63 // 1000 + 1], pa.int64()).cast(pa.duration("us")),
            "is more than the 2^63 nanoseconds, 292 years,",
        ),
        (
            "frozen<list<int>>",
            pa.array([[], [1, None]], INTS),
            "Column c.element of t (None) is null, which a collection cannot hold",
        ),
        ("set<int>", pa.array([None, [None]], INTS), "Column c.element of t (None) is null"),
        (
            "map<text, int>",
            pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int32())),
            "Column c.value of t (None) is null",
        ),
        (
            "map<ascii, int>",
            pa.array([[("a", 1)], [("é", 1)]], pa.map_(pa.string(), pa.int32())),
            "Column c.key of t ('é') has characters",
        ),
        (
            "frozen<list<frozen<list<uuid>>>>",
            pa.array([[[V1], []], [[], [V1, "x"]]]),
            "Column c.element.element of t ('x') is not a uuid",
        ),
        (
            "frozen<tuple<int, inet>>",
            pa.array([{"a": 1, "b": None}, {"a": None, "b": "::1%eth0"}]),
            "Column c.b of t ('::1%eth0') is not an IPv4",
        ),
        (
            "place",
            pa.array([None, place("x", seen=[1, None])], SEEN),
            "Column c.seen.element of t (None) is null",
        ),
        (
            "vector<float, 2>",
            pa.array([[1.0, 2.0], [1.0]], pa.list_(pa.float32())),
            "Column c of t ([1.0]) has 1 elements, and the table's vector takes exactly 2",
        ),
        (
            "vector<float, 1>",
            pa.array([None, [None]], pa.list_(pa.float32())),
            "c.element of t (None) is",
        ),
    ],
)
def test_nested_value_is_refused_with_its_path(cql: str, values: pa.Array, says: str) -> None:
    """Each with the path, the value, the row and a remedy."""
    with pytest.raises(InvalidRow) as refused:
        one(cql, values)
    changed = str(refused.value).replace('"ks"."t"', "t")
    assert says in changed
    assert "in the row with id=1." in changed
    assert refused.value.remedy


@pytest.mark.parametrize(
    "text", ["", "1", "01.2.3.4", "256.1.1.1", "::1 ", "1.2.3.4:80", ":::", "a\0b"]
)
def test_wrong_address_is_refused(text: str) -> None:
    """Only what the server would read the same way passes."""
    with pytest.raises(InvalidRow, match="is not an IPv4 or IPv6 address"):
        one("inet", pa.array([text]))


@pytest.mark.parametrize(
    "text", ["", "1:00:00", "12:60:00", "12:00", "12:00:00.", "12:00:00.0123456789"]
)
def test_wrong_time_is_refused(text: str) -> None:
    """Two digits each, at most nine of a second."""
    with pytest.raises(InvalidRow, match="is not a time of day"):
        one("time", pa.array([text]))


def test_digits_below_the_millisecond_deep_in_a_key() -> None:
    """Two keys could become one; elsewhere they are floored."""
    values = pa.array([[0], [1_001]], INSTANTS)
    with pytest.raises(InvalidRow, match=r"Column c\.element .*two could become one"):
        one("frozen<list<timestamp>>", values, "clustering")
    assert one("frozen<list<timestamp>>", values).to_pylist() == [[0], [1]]


def test_nulls_in_structs_pass() -> None:
    """Fields in the type's order; what the struct lacks is null."""
    got = one("frozen<place>", pa.array([None, place(), place("a", seen=[0])], SEEN))
    assert got.to_pylist() == [
        None,
        {"street": None, "zip": None, "seen": None},
        {"street": "a", "zip": None, "seen": [0]},
    ]


def test_bytes_under_a_null_are_neither_refused_nor_stored() -> None:
    """Arrow may keep anything there: neither refused nor stored."""
    hidden = pa.array(["x", V1], pa.string())
    nulls = pa.array([True, False])
    struct = pa.StructArray.from_arrays([hidden, hidden], names=["a", "b"], mask=nulls)
    assert one("tuple<uuid, uuid>", struct)[0].as_py() is None
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, mask=nulls)
    assert one("set<uuid>", lists).to_pylist()[0] is None
    maps = pa.MapArray.from_arrays(pa.array([0, 1, 2], pa.int32()), hidden, hidden, mask=nulls)
    assert one("map<uuid, uuid>", maps).to_pylist()[0] is None


def test_huge_row_of_small_elements() -> None:
    """The sum counts."""
    many = pa.array([[b"x" * 1020] * (MAX_ROW_BYTES // 1024 + 1)], pa.list_(pa.binary()))
    with pytest.raises(InvalidRow, match="a row of more than 8,388,608 bytes"):
        one("frozen<list<blob>>", many)


# --- types that change -----------------------------------------------------------------------


def live(**types: tuple[tuple[str, str], ...]) -> TableMetadata:
    """A table of id and c, a place."""
    return TableMetadata(
        name=TableName("ks", "t"),
        keyspaces=("ks",),
        durable=True,
        tables=("t",),
        views=(),
        columns=(
            ColumnMetadata("id", "int", "partition"),
            ColumnMetadata("c", "map<int, frozen<place>>", "regular"),
        ),
        default_ttl=0,
        types=types,
    )


PLACE = (("street", "text"), ("Zip", "frozen<code>"))
CODE = (("n", "int"),)


def test_plan_remembers_the_types_it_is_made_of() -> None:
    """Also those inside of others; new fields are no change, anything else is."""
    earlier = live(place=PLACE, code=CODE, other=CODE)
    code = pa.struct([("n", pa.int32())])
    value = pa.struct([("Zip", code)])
    schema = pa.schema([("id", pa.int32()), ("c", pa.map_(pa.int32(), value))])
    columns = match_columns(schema, earlier)
    types = used_types(columns, earlier)
    assert set(types) == {"place", "code"}
    made = msgspec.structs.replace(plan_of(types=types), columns=columns)
    assert made.plain.details["types"]["code"] == [["n", "int"]]
    refuse_changed(made, earlier)
    refuse_changed(made, live(place=(*PLACE, ("more", "int")), code=CODE))
    with pytest.raises(SchemaMismatch, match=r'type code was \("n" int\), is \("m" int\)'):
        refuse_changed(made, live(place=PLACE, code=(("m", "int"),)))
    with pytest.raises(SchemaMismatch, match=r'type code was \("n" int\), is \(\)'):
        refuse_changed(made, live(place=PLACE))
