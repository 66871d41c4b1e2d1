"""The check of the tasks: casts of values, and rows that are refused before the epoch is published."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cql_driver import Field, plan_of
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Role
from wal_sink.model.spark_types import canonical
from wal_sink.targets.cassandra.check import MAX_ROW_BYTES
from wal_sink.targets.cassandra.rows import check

V1 = "123e4567-e89b-12d3-a456-426614174000"
V4 = "123e4567-e89b-42d3-a456-426614174000"
INSTANT = pa.timestamp("us", "UTC")
INTS = pa.list_(pa.int32())
INSTANTS = pa.list_(INSTANT)
AT_KEYS = pa.map_(INSTANT, pa.int32())
FLOATS = pa.list_(pa.float32())
PLACE = pa.struct([("street", pa.string()), ("seen", INSTANTS)])
TYPES = {"place": (("street", "text"), ("zip", "int"), ("seen", "frozen<list<timestamp>>"))}
ID: Field = ("id", "partition", "int", pa.int32())


def checked(cql: str, values: pa.Array, role: Role = "regular") -> pa.Array:
    """Check a column c of a CQL type, beside a key unless c is the partition key."""
    column: Field = ("c", role, cql, values.type)
    if role == "partition":
        return check(pa.record_batch({"c": values}), plan_of(column))["c"]
    ids = pa.array(range(len(values)), pa.int32())
    return check(pa.record_batch({"id": ids, "c": values}), plan_of(ID, column, types=TYPES))["c"]


@pytest.mark.parametrize(
    ("micros", "millis"),
    [
        (0, 0),
        (999, 0),
        (1_000, 1),
        (-1, -1),
        (-1_000, -1),
        (-1_001, -2),
        (2**63 - 1, (2**63 - 1) // 1000),
        (-(2**63) + 1, -(2**63) // 1000),
        (-(2**63), -(2**63) // 1000),
        (-62_135_596_800_000_000, -62_135_596_800_000),  # year 1
    ],
)
def test_instants_are_floored_to_milliseconds(micros: int, millis: int) -> None:
    values = pa.array([micros, None], pa.int64()).cast(pa.timestamp("us", "Asia/Tokyo"))
    assert checked("timestamp", values).to_pylist() == [millis, None]


@pytest.mark.parametrize(
    ("cql", "array"),
    [
        ("text", pa.array(["x", "a", None, "bb", "a"], pa.large_string())),
        ("uuid", pa.array([V1.replace("0", "9"), V1, None, V1, V1.upper()])),
        ("blob", pa.array([b"x", b"a", None, b"bb"], pa.large_binary())),
        ("boolean", pa.array([True, False, None, True, False])),
    ],
)
def test_slices_and_large_types_change_no_value(cql: str, array: pa.Array) -> None:
    """Spark sends large types if `useLargeVarTypes` is set."""
    plain = pa.array(array[1:].to_pylist(), canonical(array.type))
    assert checked(cql, array[1:]) == checked(cql, plain)


def test_batch_with_other_columns_than_the_plan_is_refused() -> None:
    for column in ({"c": pa.array([1], pa.int32())}, {"id": pa.array([1], pa.int64())}):
        with pytest.raises(SchemaMismatch, match="int32"):
            check(pa.record_batch(column), plan_of(ID))


@pytest.mark.parametrize("role", ["partition", "clustering"])
def test_null_in_the_key_is_refused(role: Role) -> None:
    with pytest.raises(InvalidRow, match=r"Column c .*primary key.* null, .*c=NULL") as refused:
        checked("text", pa.array(["a", None]), role)
    assert '.na.drop(subset=["c"])' in refused.value.remedy


@pytest.mark.parametrize(
    ("cql", "good", "bad", "words"),
    [
        *[
            ("uuid", V1, bad, "is not a uuid")
            for bad in ("", "x", V1 + "\n", " " + V1, V1[:-1] + "g", V1 * 2)
        ],
        *[
            ("timeuuid", uuid.UUID(V1).bytes, bad, "is not a uuid of version 1")
            for bad in (b"", bytes(15), bytes(17), uuid.UUID(int=5, version=4).bytes)
        ],
        *[
            ("varint", "12", bad, "is not a whole number")
            for bad in ("", "1.0", "1e3", "1_000", " 1", "1\n", "\uff11", "9" * 4_001)
        ],
        *[
            ("decimal", "12", bad, "is not a decimal number")
            for bad in ("", ".", "NaN", "1e", "1e12345", "0x1", "-", "Infinity")
        ],
        *[
            ("inet", "::1", bad, "is not an IPv4 or IPv6 address")
            for bad in ("", "1", "01.2.3.4", "256.1.1.1", "::1 ", "1.2.3.4:80", ":::", "a\0b")
        ],
        *[
            ("time", "23:59:59", bad, "is not a time of day")
            for bad in ("", "1:00:00", "12:60:00", "12:00", "12:00:00.", "12:00:00.0123456789")
        ],
    ],
)
def test_invalid_text_or_bytes_are_refused(cql: str, good: Any, bad: Any, words: str) -> None:
    with pytest.raises(InvalidRow, match=rf"Column c .*{words}, in the row with id=2"):
        checked(cql, pa.array([good, None, bad]))


@pytest.mark.parametrize(
    ("cql", "role", "arrow", "nested", "remedy"),
    [
        ("timestamp", "clustering", INSTANT, lambda at: at, 'F.date_trunc("MILLISECOND"'),
        ("map<timestamp, int>", "regular", AT_KEYS, lambda at: [(at, 1)], "transform_keys"),
        ("frozen<set<timestamp>>", "regular", INSTANTS, lambda at: [at], "transform"),
        ("frozen<list<timestamp>>", "clustering", INSTANTS, lambda at: [at], "transform"),
    ],
)
def test_microseconds_are_refused_in_keys_and_sets(
    cql: str, role: Role, arrow: pa.DataType, nested: Callable[[int], Any], remedy: str
) -> None:
    """A cast to milliseconds could make two keys equal."""
    with pytest.raises(InvalidRow, match="two could become one") as refused:
        checked(cql, pa.array([nested(1_001)], arrow), role)
    assert remedy in refused.value.remedy
    assert checked(cql, pa.array([nested(1_000)], arrow), role).null_count == 0


@pytest.mark.parametrize(
    ("cql", "values", "floored"),
    [
        ("timestamp", pa.array([1_001], INSTANT), 1),
        ("map<int, timestamp>", pa.array([[(1, 1_001)]], pa.map_(pa.int32(), INSTANT)), [(1, 1)]),
        ("frozen<list<timestamp>>", pa.array([[1_001]], INSTANTS), [1]),
    ],
)
def test_microseconds_are_floored_outside_of_keys(cql: str, values: pa.Array, floored: Any) -> None:
    assert checked(cql, values).to_pylist() == [floored]


@pytest.mark.parametrize(
    ("cql", "values", "words"),
    [
        ("ascii", pa.array(["a", "é"]), "c of t ('é') has characters that ascii cannot hold"),
        ("timeuuid", pa.array([V1, V4]), f"c of t ('{V4}') is not a uuid of version 1"),
        (
            "time",
            pa.array([0, 86_400 * 10**9], pa.int64()).cast(pa.time64("ns")),
            "c of t (00:00:00) is not a time of day",
        ),
        (
            "duration",
            pa.array([0, 2**63 // 1000 + 1], pa.int64()).cast(pa.duration("us")),
            "is more than the 2^63 nanoseconds, 292 years,",
        ),
        (
            "frozen<list<int>>",
            pa.array([[], [1, None]], INTS),
            "c.element of t (NULL) is null, which a collection cannot hold",
        ),
        ("set<int>", pa.array([None, [None]], INTS), "c.element of t (NULL) is null"),
        (
            "map<text, int>",
            pa.array([[("a", 1)], [("b", None)]], pa.map_(pa.string(), pa.int32())),
            "c.value of t (NULL) is null",
        ),
        (
            "map<ascii, int>",
            pa.array([[("a", 1)], [("é", 1)]], pa.map_(pa.string(), pa.int32())),
            "c.key of t ('é') has characters",
        ),
        (
            "frozen<list<frozen<list<uuid>>>>",
            pa.array([[[V1], []], [[], [V1, "x"]]]),
            "c.element.element of t ('x') is not a uuid",
        ),
        (
            "frozen<tuple<int, inet>>",
            pa.array([{"a": 1, "b": None}, {"a": None, "b": "::1%eth0"}]),
            "c.b of t ('::1%eth0') is not an IPv4",
        ),
        (
            "place",
            pa.array([None, {"street": "x", "seen": [1, None]}], PLACE),
            "c.seen.element of t (NULL) is null",
        ),
        (
            "vector<float, 2>",
            pa.array([[1.0, 2.0], [1.0]], FLOATS),
            "c of t ([1.0]) has 1 elements, and the table's vector takes exactly 2",
        ),
        ("vector<float, 1>", pa.array([None, [None]], FLOATS), "c.element of t (NULL) is"),
    ],
)
def test_nested_value_is_refused_with_its_path(cql: str, values: pa.Array, words: str) -> None:
    with pytest.raises(InvalidRow) as refused:
        checked(cql, values)
    text = str(refused.value).replace('"ks"."t"', "t")
    assert words in text
    assert "in the row with id=1." in text
    assert refused.value.remedy


def test_fields_that_a_struct_lacks_become_null() -> None:
    values = pa.array([None, {"street": None}, {"street": "a", "seen": [0]}], PLACE)
    assert checked("frozen<place>", values).to_pylist() == [
        None,
        {"street": None, "zip": None, "seen": None},
        {"street": "a", "zip": None, "seen": [0]},
    ]


def test_bytes_under_nulls_are_neither_refused_nor_stored() -> None:
    """Arrow may keep any bytes under a null."""
    hidden, nulls = pa.array(["x", V1]), pa.array([True, False])
    offsets = pa.array([0, 1, 2], pa.int32())
    struct = pa.StructArray.from_arrays([hidden, hidden], names=["a", "b"], mask=nulls)
    lists = pa.ListArray.from_arrays(offsets, hidden, mask=nulls)
    maps = pa.MapArray.from_arrays(offsets, hidden, hidden, mask=nulls)
    for cql, column in {
        "tuple<uuid, uuid>": struct,
        "set<uuid>": lists,
        "map<uuid, uuid>": maps,
    }.items():
        assert checked(cql, column).to_pylist()[0] is None


@pytest.mark.parametrize(
    ("cql", "fits", "huge"),
    [
        (
            "blob",
            pa.array([b"x" * (MAX_ROW_BYTES - 4)]),
            pa.array([b"", b"x" * (MAX_ROW_BYTES - 3)]),
        ),
        (
            "frozen<list<blob>>",
            pa.array([[b"x" * 1020] * 9]),
            pa.array([[], [b"x" * 1020] * (MAX_ROW_BYTES // 1024 + 1)]),
        ),
    ],
    ids=["value", "elements"],
)
def test_error_of_a_huge_row_names_its_largest_column(
    cql: str, fits: pa.Array, huge: pa.Array
) -> None:
    assert checked(cql, fits) == fits
    with pytest.raises(
        InvalidRow, match=r"Column c .*a row of more than 8,388,608 bytes"
    ) as refused:
        checked(cql, huge)
    assert len(str(refused.value)) < 1_000
