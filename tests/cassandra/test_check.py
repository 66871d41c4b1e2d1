"""What tasks do to a batch: casts, and the rows that are refused before anything is published."""

from __future__ import annotations

import datetime as dt
import decimal
import uuid
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cql_driver import plan_of
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.model.plan import Role, canonical
from wal_sink.targets.cassandra.check import MAX_ROW_BYTES, check
from wal_sink.targets.cassandra.row_plan import CassandraPlan

UUID = "123e4567-e89b-12d3-a456-426614174000"
INSTANT = pa.timestamp("us", "UTC")


def plan(**columns: tuple[pa.DataType, str, Role]) -> CassandraPlan:
    """Make a plan of name=(Arrow type, CQL type, role)."""
    return plan_of(*((name, role, cql, arrow) for name, (arrow, cql, role) in columns.items()))


def one(cql: str, values: pa.Array, role: Role = "regular") -> pa.Array:
    """Check one column beside a key."""
    keys = pa.array(range(len(values)), pa.int32())
    if role == "partition":
        batch = pa.record_batch({"c": values})
        return check(batch, plan(c=(values.type, cql, role)))["c"]
    batch = pa.record_batch({"id": keys, "c": values})
    return check(batch, plan(id=(pa.int32(), "int", "partition"), c=(values.type, cql, role)))["c"]


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
    """Before 1970 too, and beyond what Python's datetime holds."""
    values = pa.array([micros, None], pa.int64()).cast(pa.timestamp("us", "Asia/Tokyo"))
    assert one("timestamp", values).to_pylist() == [millis, None]


LAYOUTS = [
    lambda array: array,
    lambda array: pa.concat_arrays([array[:1], array]).slice(1),
    lambda array: array.dictionary_encode(),
    lambda array: array.dictionary_encode().slice(0),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("cql", "array"),
    [
        ("text", pa.array(["x", "a", None, "bb", "a"])),
        ("text", pa.array(["x", "a", None, "bb", "a"], pa.large_string())),
        ("uuid", pa.array([UUID.replace("0", "9"), UUID, None, UUID, UUID.upper()])),
        ("blob", pa.array([b"x", b"a", None, b"bb"], pa.large_binary())),
        ("int", pa.array([9, 1, None, 2], pa.int16())),
        ("boolean", pa.array([True, False, None, True, False])),
        ("timestamp", pa.array([9_999, -1, None, 2_000], INSTANT)),
        ("date", pa.array([dt.date(2020, 1, 1), None, dt.date(1, 1, 1)])),
        ("decimal", pa.array([decimal.Decimal("1.5"), None, decimal.Decimal("-2.5")])),
    ],
)
def test_layout_does_not_matter(cql: str, array: pa.Array, layout: Any) -> None:
    """Slices with an offset, dictionaries and large types give what a plain array gives."""
    plain = array[1:].cast(canonical(array.type)).to_pylist()
    expected = one(cql, pa.array(plain, canonical(array.type))).to_pylist()
    laid_out = layout(array)[1:]
    got = one(cql, laid_out)
    assert got.to_pylist() == expected
    assert pa.types.is_dictionary(got.type) is False


def test_result_has_the_plans_columns() -> None:
    """Names and order are those of the DataFrame."""
    batch = pa.record_batch({"v": pa.array(["a"]), "id": pa.array([1], pa.int8())})
    got = check(batch, plan(v=(pa.string(), "text", "regular"), id=(pa.int8(), "int", "partition")))
    assert got.schema == pa.schema([("v", pa.string()), ("id", pa.int32())])


# --- refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["partition", "clustering"])
def test_null_in_the_key(role: Role) -> None:
    """Names the column and the row."""
    with pytest.raises(InvalidRow, match=r"Column c .*primary key.* null, .*c=None") as refused:
        one("text", pa.array(["a", None]), role)
    assert '.na.drop(subset=["c"])' in refused.value.remedy


@pytest.mark.parametrize("bad", ["", "x", UUID + "\n", " " + UUID, UUID[:-1] + "g", UUID * 2])
def test_wrong_uuid_is_refused(bad: str) -> None:
    """Names the value, shortened, and the key of the row."""
    with pytest.raises(InvalidRow, match=r"Column c .*is not a uuid, in the row with id=2"):
        one("uuid", pa.array([UUID, None, bad]))


@pytest.mark.parametrize("bad", [b"", bytes(15), bytes(17), uuid.UUID(int=5, version=4).bytes])
def test_bytes_that_are_no_timeuuid(bad: bytes) -> None:
    """They are 16, and have the version in the seventh."""
    good = uuid.uuid1().bytes
    with pytest.raises(
        InvalidRow, match=r"Column c .*is not a uuid of version 1, in the row with id=2"
    ):
        one("timeuuid", pa.array([good, None, bad]))


@pytest.mark.parametrize(
    ("cql", "bad"),
    [
        *[
            ("varint", text)
            for text in ("", "1.0", "1e3", "1_000", " 1", "1\n", "\uff11", "9" * 4_001)
        ],
        *[("decimal", text) for text in ("", ".", "NaN", "1e", "1e12345", "0x1", "-", "Infinity")],
    ],
)
def test_texts_that_are_no_number(cql: str, bad: str) -> None:
    """What Python or Java would take in one of its moods, too."""
    with pytest.raises(InvalidRow, match=r"is not a (whole|decimal) number, in the row with id=1"):
        one(cql, pa.array(["12", bad]))


@pytest.mark.parametrize(
    ("cql", "text", "other"),
    [
        ("varint", "7", "007"),
        ("varint", "0", "-0"),
        ("decimal", "1.5", "1.50"),
        ("decimal", "10", "1e1"),
    ],
)
def test_number_in_a_key_has_one_text(cql: str, text: str, other: str) -> None:
    """Else two rows could become one; elsewhere it is written in any."""
    with pytest.raises(InvalidRow, match="two texts of a number would be one"):
        one(cql, pa.array([text, other]), "clustering")
    one(cql, pa.array([text, other]))


def test_digits_below_the_millisecond_in_a_key() -> None:
    """Two rows could become one; in a regular column they are floored."""
    values = pa.array([1_000, 1_001], INSTANT)
    with pytest.raises(InvalidRow, match="two could become one") as refused:
        one("timestamp", values, "clustering")
    assert 'F.date_trunc("MILLISECOND", …)' in refused.value.remedy
    assert "(1970-01-01T00:00:00.001001+00:00)" in str(refused.value)
    assert one("timestamp", values).to_pylist() == [1, 1]
    assert one("timestamp", values[:1], "clustering").to_pylist() == [1]


@pytest.mark.parametrize(
    ("cql", "source"),
    [
        ("map<timestamp, int>", lambda at: pa.array([[(at, 1)]], pa.map_(INSTANT, pa.int32()))),
        ("frozen<set<timestamp>>", lambda at: pa.array([[at]], pa.list_(INSTANT))),
    ],
)
def test_digits_below_the_millisecond_where_two_could_become_one(cql: str, source: Any) -> None:
    """A map's keys and a set's elements are keys, too; a map's values and a list's elements are not."""
    with pytest.raises(InvalidRow, match="two could become one") as refused:
        one(cql, source(1_001))
    assert "transform" in refused.value.remedy
    assert one(cql, source(1_000)).null_count == 0
    values = pa.array([[(1, 1_001)]], pa.map_(pa.int32(), INSTANT))
    assert one("map<int, timestamp>", values).to_pylist() == [[(1, 1)]]
    listed = pa.array([[1_001]], pa.list_(INSTANT))
    assert one("frozen<list<timestamp>>", listed).to_pylist() == [[1]]


def test_huge_row_names_its_largest_column() -> None:
    """The largest column is named."""
    blob = b"x" * (MAX_ROW_BYTES - 4)
    assert one("blob", pa.array([blob])).to_pylist() == [blob]
    with pytest.raises(
        InvalidRow, match=r"Column c .*a row of more than 8,388,608 bytes"
    ) as refused:
        one("blob", pa.array([b"", blob + b"x"]))
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize(
    "batch",
    [
        pa.record_batch({"c": pa.array([1], pa.int32())}),
        pa.record_batch({"id": pa.array([1], pa.int64())}),
        pa.record_batch({"id": pa.array([1], pa.int32()), "more": pa.array(["a"])}),
    ],
)
def test_other_columns_than_planned(batch: pa.RecordBatch) -> None:
    """Another name, another type, one more."""
    with pytest.raises(SchemaMismatch, match="int32"):
        check(batch, plan(id=(pa.int32(), "int", "partition")))
