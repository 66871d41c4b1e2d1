"""Values of each type of Spark arrive in a Delta table unchanged, or are refused."""

from __future__ import annotations

import contextlib
import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema

from tests.delta.conftest import Query, table_of
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.publish.append import split_invalid
from wal_sink.targets.arrow_columns import new_columns
from wal_sink.targets.delta.columns import DECLARED

MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999, datetime.UTC)
INT, BIGINT, TEXT = pa.int32(), pa.int64(), pa.string()
INSTANT = pa.timestamp("us", "UTC")

COLUMNS: dict[str, tuple[pa.DataType, Any, Any]] = {
    "i2": (pa.int16(), 32_767, -32_768),
    "i4": (INT, 2**31 - 1, -(2**31)),
    "a": (pa.list_(INT), [1, None, 3], []),
    "aa": (pa.list_(pa.list_(TEXT)), [["x", None], None, []], []),
    "m": (pa.map_(TEXT, BIGINT), [("k", 1), ("l", None)], []),
    "mm": (pa.map_(INT, pa.list_(pa.date32())), [(1, [datetime.date(2024, 1, 1), None])], []),
    "st": (
        pa.struct([("x", INT), ("y", pa.struct([("z", pa.decimal128(10, 2)), ("t", INSTANT)]))]),
        {"x": 1, "y": {"z": Decimal("1.25"), "t": MOMENT}},
        {"x": None, "y": None},
    ),
    "ast": (
        pa.list_(pa.struct([("k", TEXT), ("v", pa.float64())])),
        [{"k": "a", "v": 1.0}, None],
        [],
    ),
}
"""The type of each column, and two values. `test_readers.py` has the other types without parts."""


def one(type_: pa.DataType, name: str = "c") -> pa.Schema:
    return pa.schema([(name, type_)])


def created(path: Path, schema: pa.Schema, partition_by: list[str] | None = None) -> Query:
    """Create the table that the error for a missing table proposes."""
    columns = new_columns(schema, (), Schema.from_arrow, "Delta")
    DeltaTable.create(str(path / "t"), columns, partition_by=partition_by)
    return Query(path / "t")


def test_nested_values_arrive(tmp_path: Path) -> None:
    schema = pa.schema([(name, type_) for name, (type_, *_) in COLUMNS.items()])
    query = created(tmp_path, schema)
    rows = [{name: values[i] for name, (_, *values) in COLUMNS.items()} for i in range(2)]
    rows.append(dict.fromkeys(COLUMNS))
    query.add(pa.RecordBatch.from_pylist(rows, schema))
    assert table_of(query.path) == rows


@pytest.mark.parametrize(
    ("type_", "source", "good", "bad"),
    [
        (INT, BIGINT, 2**31 - 1, 2**31),
        (pa.decimal128(4, 2), pa.decimal128(10, 4), Decimal("12.3400"), Decimal("12.3456")),
        (pa.float64(), BIGINT, 2**53, 2**53 + 1),
        (pa.decimal128(4, 0), BIGINT, 9_999, 10_000),
        (BIGINT, pa.decimal128(20, 0), 2**63 - 1, Decimal(2**63)),
        (pa.list_(INT), pa.list_(BIGINT), [1, None], [2**31]),
        (pa.struct([("x", INT)]), pa.struct([("x", BIGINT)]), {"x": 1}, {"x": 2**31}),
        (
            pa.struct([("x", pa.decimal128(4, 0))]),
            pa.struct([("x", BIGINT)]),
            {"x": 1},
            {"x": 10_000},
        ),
        (pa.float64(), pa.float32(), 1.5, None),
    ],
    ids=str,
)
def test_value_arrives_unchanged_or_is_refused(
    tmp_path: Path, type_: pa.DataType, source: pa.DataType, good: Any, bad: Any
) -> None:
    query = created(tmp_path, one(type_))
    query.add(pa.RecordBatch.from_pylist([{"c": good}], one(source)))
    assert table_of(query.path) == [{"c": good}]
    if bad is not None:
        with pytest.raises(InvalidRow, match="Column c"):
            query.check([{"c": bad}], one(source))


def test_misfit_element_refuses_only_its_own_row(tmp_path: Path) -> None:
    """Arrow also casts the elements that are outside of a slice."""

    def schema(type_: pa.DataType) -> pa.Schema:
        return pa.schema([("c", pa.list_(type_)), ("s", pa.struct([("x", pa.list_(type_))]))])

    query = created(tmp_path, schema(INT))
    plan = query.plan(schema(BIGINT))
    large = 2**31
    wrong = [{"c": [large], "s": {"x": [1]}}, {"c": [1], "s": {"x": [large]}}]
    good = [{"c": [i], "s": {"x": [i]}} for i in range(3)]
    rows = [good[0], wrong[0], good[1], wrong[1], good[2]]
    batch = pa.RecordBatch.from_pylist(rows, schema(BIGINT))
    split = split_invalid(batch, lambda rows: query.target.check(rows, plan))
    assert [row for part in split.taken for row in part.to_pylist()] == good
    assert [row for item in split.refused for row in item.rows.to_pylist()] == wrong
    with pytest.raises(InvalidRow, match=r"Column c of .* \(\[2147483648\]\) does not fit"):
        query.target.check(batch, plan)


@pytest.mark.parametrize(
    ("type_", "source", "cast"),
    [
        (pa.float32(), pa.float64(), "float"),
        (INT, TEXT, "int"),
        (BIGINT, pa.duration("us"), "bigint"),
        (INSTANT, pa.timestamp("us"), "timestamp"),
        (pa.struct([("x", INT)]), pa.struct([("y", INT)]), "struct<x:int>"),
        (pa.map_(TEXT, INT), pa.map_(TEXT, BIGINT), "map<string,int>"),
    ],
    ids=str,
)
def test_type_that_could_change_values_is_refused(
    tmp_path: Path, type_: pa.DataType, source: pa.DataType, cast: str
) -> None:
    """The remedy is a cast, in Spark's own words for the type."""
    query = created(tmp_path, one(type_))
    with pytest.raises(SchemaMismatch) as caught:
        query.plan(one(source))
    assert caught.value.what.partition('.cast("')[2].partition('")')[0] == cast


def test_null_inside_a_required_field_is_refused(tmp_path: Path) -> None:
    lists = pa.list_(pa.field("element", INT, nullable=False))
    required = pa.map_(TEXT, pa.field("value", lists, nullable=False))
    table = pa.schema([pa.field("i", INT, nullable=False), ("c", required)])
    DeltaTable.create(str(tmp_path / "t"), table)
    query = Query(tmp_path / "t")
    schema = pa.schema([("i", INT), ("c", pa.map_(TEXT, pa.list_(INT)))])
    good = [{"i": 1, "c": [("a", [1])]}, {"i": 2, "c": None}]
    query.add(pa.RecordBatch.from_pylist(good, schema))
    assert table_of(query.path) == good
    wrong: list[dict[str, Any]] = [
        {"i": None, "c": []},
        {"i": 1, "c": [("a", None)]},
        {"i": 1, "c": [("a", [None])]},
    ]
    for bad in wrong:
        with pytest.raises(InvalidRow, match="takes no null"):
            query.check([bad], schema)


def declare(query: Query, **types: str) -> None:
    """Give text columns a type with a length, as Spark does."""
    for name, type_ in types.items():
        DeltaTable(query.path).alter.set_column_metadata(name, {DECLARED.decode(): type_})


def test_text_of_a_wrong_length_is_refused(tmp_path: Path) -> None:
    """A char has exactly its length in characters: readers rely on the blanks at its end."""
    schema = pa.schema([("c", TEXT), ("v", TEXT)])
    query = created(tmp_path, schema, ["c"])
    declare(query, c="char(3)", v="varchar(3)")
    good = [{"c": "äö🎈", "v": "äö🎈"}, {"c": "x  ", "v": ""}, {"c": None, "v": None}]
    query.add(pa.RecordBatch.from_pylist(good, schema))
    assert sorted(map(str, table_of(query.path))) == sorted(map(str, good))
    for bad in ({"c": "xx", "v": ""}, {"c": "xxxx", "v": ""}, {"c": None, "v": "xxxx"}):
        with pytest.raises(InvalidRow, match=r"another length than (var)?char\(3\)"):
            query.check([bad], schema)


@pytest.mark.parametrize(
    ("earlier", "now", "fits"),
    [
        ("varchar(3)", "varchar(5)", True),
        ("varchar(3)", "string", True),
        ("char(3)", "varchar(3)", True),
        ("varchar(3)", "varchar(2)", False),
        ("varchar(3)", "char(3)", False),
        ("string", "varchar(3)", False),
    ],
)
def test_text_column_may_be_lengthened_not_shortened(
    tmp_path: Path, earlier: str, now: str, *, fits: bool
) -> None:
    """Pending rows fit a longer text, and Spark cannot shorten the column again."""
    query = created(tmp_path, one(TEXT))
    declare(query, c=earlier)
    plan = query.plan(one(TEXT))
    query.session.compare(plan)
    declare(query, c=now)
    expected = (
        contextlib.nullcontext() if fits else pytest.raises(SchemaMismatch, match="column c was")
    )
    with expected:
        query.session.compare(plan)


@pytest.mark.parametrize(("type_", "bad"), [(pa.date32(), 2_932_897), (INSTANT, 2**62)], ids=str)
def test_partition_beyond_the_year_9999_is_refused(
    tmp_path: Path, type_: pa.DataType, bad: int
) -> None:
    """Another column keeps such a value."""
    schema = pa.schema([("p", type_), ("v", type_)])
    query = created(tmp_path, schema, ["p"])
    arrays = [pa.array(values, type_) for values in ([0, bad, None], [bad, 0, bad])]
    batch = pa.record_batch(arrays, schema=schema)
    with pytest.raises(InvalidRow, match=r"Column p .*years 1 to 9999") as caught:
        query.target.check(batch, query.plan(schema))
    assert caught.value.rows.to_pylist() == [False, True, False]
    query.add(batch.filter(pa.array([True, False, True])))


def test_filter_finds_rows_in_table_with_several_partition_columns(tmp_path: Path) -> None:
    schema = pa.schema([("d", pa.date32()), ("region", TEXT), ("v", BIGINT)])
    query = created(tmp_path, schema, ["d", "region"])
    keys = [(datetime.date(2024, 1, n), region) for n in (1, 2) for region in ("eu", "a b") * 3]
    rows = [{"d": day, "region": region, "v": v} for v, (day, region) in enumerate(keys)]
    query.add(pa.RecordBatch.from_pylist(rows, schema))
    assert len(DeltaTable(query.path).file_uris()) == 4
    wanted = (pa.compute.field("region") == "a b") & (pa.compute.field("v") > 5)
    read = DeltaTable(query.path).to_pyarrow_dataset().to_table(filter=wanted).to_pylist()
    assert sorted(row["v"] for row in read) == [7, 9, 11]


def test_value_that_cannot_name_a_partition_is_refused(tmp_path: Path) -> None:
    """A double has no single text, Delta stores the empty text as a null, and a folder's name has a limit."""
    schema = pa.schema([("p", pa.float64()), ("v", BIGINT)])
    with pytest.raises(SchemaMismatch, match="p: the table is partitioned by it"):
        created(tmp_path, schema, ["p"]).plan(schema)
    schema = pa.schema([("p", TEXT), ("v", BIGINT)])
    DeltaTable.create(str(tmp_path / "u"), schema, partition_by=["p"])
    query = Query(tmp_path / "u")
    long = "too long for the name of a partition's folder"
    for bad, reason in (("", "empty text"), ("a " * 85, long), ("é" * 43, long)):
        with pytest.raises(InvalidRow, match=reason):
            query.check([{"p": bad, "v": 1}], schema)
    with pytest.raises(SchemaMismatch, match="only partition columns"):
        query.plan(one(TEXT, "p"))
