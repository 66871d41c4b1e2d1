"""Readers find the rows: by partitions, in order, and by filters that use the bounds of files."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, IsNaN
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import IntegerType, ListType, MapType, NestedField, StringType, StructType

from tests.iceberg.conftest import catalog_options, load, make_table, query, read
from wal_sink.errors import InvalidRow
from wal_sink.options import parse
from wal_sink.targets.iceberg.catalog import catalog_of
from wal_sink.targets.iceberg.options import IcebergOptions

UTC = datetime.UTC
D = decimal.Decimal
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "text": (
        pa.string(),
        ["", " ", "a/b=c%é", "x" * 40 + "1", "x" * 40 + "2", "\U0010ffff" * 10, "\ue000"],
    ),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date.max]),
    "at": (
        pa.timestamp("us", "UTC"),
        [
            datetime.datetime(1, 1, 1, tzinfo=UTC),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
            datetime.datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        ],
    ),
    "price": (pa.decimal128(38, 9), [D("-12345678901234567890.123456789"), D("0E-9")]),
    "blob": (pa.binary(), [b"", b"\xff" * 40, b"\x00"]),
    "small": (pa.int16(), [-32_768, 32_767]),
    "large": (pa.int64(), [-(2**63), 2**53 + 1, 2**63 - 1]),
    "real": (pa.float64(), [-math.inf, -0.0, 5e-324, math.inf, math.nan]),
}


LONGEST = max(len(values) for _, values in VALUES.values())
SCHEMA = pa.schema([(name, type_) for name, (type_, _) in VALUES.items()])
ROWS = [
    {name: values[i] if i < len(values) else None for name, (_, values) in VALUES.items()}
    for i in range(LONGEST)
]


def test_filter_finds_each_value(tmp_path: Path) -> None:
    """Each value is in a file of its own and in a file with all. Wrong bounds would hide it."""
    options = catalog_options(tmp_path)
    make_table(options, SCHEMA)
    with query(options, SCHEMA) as running:
        for row in ROWS:
            running.add([row])
        running.add(ROWS)
    table = load(options)
    for name, (_, values) in VALUES.items():
        for value in values:
            nan = isinstance(value, float) and math.isnan(value)
            by = IsNaN(name) if nan else EqualTo(name, value)
            assert len(table.scan(row_filter=by).to_arrow()) == 2, (name, value)


def test_text_without_bounds_hides_no_row(tmp_path: Path) -> None:
    """Arrow writes no bounds for a row group with a text above 4 kB."""
    schema = pa.schema([("text", pa.string())])
    options = catalog_options(tmp_path)
    table = make_table(options, schema)
    with table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": "2"})
    texts = ["z" * 5000, "a", "b", "c"]
    with query(options, schema) as running:
        running.add([{"text": text} for text in texts])
    table = load(options)
    for text in texts:
        assert len(table.scan(row_filter=EqualTo("text", text)).to_arrow()) == 1, text[:20]


def test_null_in_a_required_nested_field_is_refused(tmp_path: Path) -> None:
    """A null struct is accepted, since it has no such part."""
    number = NestedField(2, "n", IntegerType(), required=True)
    points = ListType(
        4, StructType(number.model_copy(update={"field_id": 5})), element_required=True
    )
    columns = [
        NestedField(1, "s", StructType(number)),
        NestedField(3, "l", points),
        NestedField(6, "m", MapType(7, StringType(), 8, IntegerType(), value_required=True)),
    ]
    options = parse(catalog_options(tmp_path), IcebergOptions)
    catalog = catalog_of(options)
    catalog.create_namespace("shop")
    catalog.create_table("shop.orders", Schema(*columns))
    point = pa.struct([("n", pa.int32())])
    frame = {"s": point, "l": pa.list_(point), "m": pa.map_(pa.string(), pa.int32())}
    good: dict[str, Any] = {"s": {"n": 1}, "l": [{"n": 2}], "m": [("a", 3)]}
    empty: dict[str, Any] = {"s": None, "l": [], "m": None}
    with query(catalog_options(tmp_path), pa.schema([*frame.items()])) as running:
        running.add([good, empty])
        for bad in ({"s": {"n": None}}, {"l": [None]}, {"l": [{"n": None}]}, {"m": [("a", None)]}):
            with pytest.raises(InvalidRow, match="has a null inside of"):
                running.write([good | bad])
    assert read(catalog_options(tmp_path)) == [good, empty]


PARTITIONS: list[tuple[str, Any]] = [
    *((name, IdentityTransform()) for name in VALUES if name != "real"),
    ("at", DayTransform()),
    ("text", BucketTransform(3)),
]


@pytest.mark.parametrize(("name", "by"), PARTITIONS, ids=str)
def test_partition_holds_the_rows_of_its_value(tmp_path: Path, name: str, by: Any) -> None:
    """Nulls have a partition of their own."""
    type_, values = VALUES[name]
    schema = pa.schema([(name, type_), ("other", pa.int64())])
    options = catalog_options(tmp_path)
    make_table(options, schema, [(name, by)])
    rows = [{name: value, "other": i} for i, value in enumerate([*values, None])]
    with query(options, schema) as running:
        running.add(rows)
    assert sorted(read(options), key=lambda row: row["other"]) == rows
    partitions = {str(file["partition"]) for file in load(options).inspect.files().to_pylist()}
    assert len(partitions) == (4 if isinstance(by, BucketTransform) else len(rows))


def test_files_have_the_sort_order_of_the_table(tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64())])
    options = catalog_options(tmp_path)
    table = make_table(options, schema)
    with table.update_sort_order() as order:
        order.desc("k", IdentityTransform(), NullOrder.NULLS_LAST)
        order.asc("v", BucketTransform(1000), NullOrder.NULLS_FIRST)
    assert load(options).sort_order().fields[0].direction is SortDirection.DESC
    rows: list[dict[str, Any]] = [
        {"k": k, "v": v} for v in (3, None, 1, 2) for k in ("a", None, "b")
    ]
    with query(options, schema) as running:
        running.add(rows)
    stored = read(options)
    assert [row["k"] for row in stored] == ["b"] * 4 + ["a"] * 4 + [None] * 4
    assert [row["v"] for row in stored][::4] == [None] * 3
    buckets = [
        BucketTransform(1000).transform(table.schema().find_type("v"))(r["v"]) for r in stored
    ]
    assert buckets[1:4] == sorted(buckets[1:4])


def test_nested_values_arrive(tmp_path: Path) -> None:
    """The test reads the file by Parquet, since pyiceberg reads a null list of structs as empty."""
    part = pa.struct([("x.y", pa.int32())])  # a name that is escaped in files
    schema = pa.schema(
        [
            ("tags", pa.list_(pa.string())),
            ("point", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.float64()))])),
            ("map", pa.map_(pa.string(), pa.int64())),
            ("parts", pa.list_(part)),
            ("by", pa.map_(pa.string(), part)),
        ]
    )
    options = catalog_options(tmp_path)
    make_table(options, schema)
    whole: dict[str, Any] = {
        "tags": ["a", None],
        "point": {"x": 1, "y": [0.1]},
        "map": [("k", None)],
    }
    whole |= {"parts": [None, {"x.y": None}], "by": [("a", None), ("b", {"x.y": 1})]}
    empty: dict[str, Any] = {"tags": [], "point": None, "map": [], "parts": [], "by": []}
    rows = [whole, empty, dict.fromkeys(schema.names)]
    with query(options, schema) as running:
        running.add(rows)
    (file,) = tmp_path.rglob("*.parquet")
    assert str(pq.read_table(file).to_pylist()).replace("_x2E", ".") == str(rows)
    assert read(options)[:2] == [whole, empty]
