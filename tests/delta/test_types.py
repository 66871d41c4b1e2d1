"""What arrives in a Delta table is what the DataFrame had: every type of Spark that Delta has."""

from __future__ import annotations

import contextlib
import datetime
import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Schema
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from tests.delta.conftest import Query, table_of
from wal_sink.errors import InvalidRow, SchemaMismatch
from wal_sink.publish.append import split_invalid
from wal_sink.targets.arrow_tables import new_columns
from wal_sink.targets.delta.columns import DECLARED

MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999, datetime.UTC)
OLD = datetime.datetime(1, 1, 1, tzinfo=datetime.UTC)

DDL = (
    "s string, b boolean, i1 tinyint, i2 smallint, i4 int, i8 bigint, f float,"
    " d double, dec decimal(38,18), dt date, ts timestamp, ntz timestamp_ntz, bin binary, a array<int>,"
    " aa array<array<string>>, m map<string,bigint>, mm map<int,array<date>>,"
    " st struct<x:int,y:struct<z:decimal(10,2),t:timestamp>>, ast array<struct<k:string,v:double>>"
)
VALUES: dict[str, tuple[Any, Any]] = {
    "s": ("ä€🎈" * 40, ""),
    "b": (True, False),
    "i1": (127, -128),
    "i2": (32_767, -32_768),
    "i4": (2**31 - 1, -(2**31)),
    "i8": (2**63 - 1, -(2**63)),
    "f": (1.5, -math.inf),
    "d": (1e300, -0.0),
    "dec": (Decimal("99999999999999999999.999999999999999999"), Decimal("-1E-18")),
    "dt": (datetime.date(9999, 12, 31), datetime.date(1, 1, 1)),
    "ts": (MOMENT, OLD),
    "ntz": (MOMENT.replace(tzinfo=None), OLD.replace(tzinfo=None)),
    "bin": (b"\x00\xff", b""),
    "a": ([1, None, 3], []),
    "aa": ([["x", None], None, []], []),
    "m": ([("k", 1), ("l", None)], []),
    "mm": ([(1, [datetime.date(2024, 1, 1), None])], []),
    "st": ({"x": 1, "y": {"z": Decimal("1.25"), "t": MOMENT}}, {"x": None, "y": None}),
    "ast": ([{"k": "a", "v": 1.0}, None], []),
}


PLAIN: dict[str, spark.DataType] = {
    "string": spark.StringType(),
    "boolean": spark.BooleanType(),
    "tinyint": spark.ByteType(),
    "smallint": spark.ShortType(),
    "int": spark.IntegerType(),
    "bigint": spark.LongType(),
    "float": spark.FloatType(),
    "double": spark.DoubleType(),
    "date": spark.DateType(),
    "timestamp": spark.TimestampType(),
    "timestamp_ntz": spark.TimestampNTZType(),
    "binary": spark.BinaryType(),
    "interval": spark.DayTimeIntervalType(),
}


def split(text: str) -> list[str]:
    """Split at the commas that are in no brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def spark_type(text: str) -> spark.DataType:
    """Parse a type, which Spark itself does in the JVM only."""
    word, _, rest = text.partition("<" if text.endswith(">") else "(")
    inner = split(rest[:-1])
    match word:
        case "decimal":
            return spark.DecimalType(int(inner[0]), int(inner[1]))
        case "array":
            return spark.ArrayType(spark_type(inner[0]))
        case "map":
            return spark.MapType(spark_type(inner[0]), spark_type(inner[1]))
        case "struct":
            pairs = (part.partition(":") for part in inner)
            return spark.StructType([spark.StructField(n, spark_type(t)) for n, _, t in pairs])
    return PLAIN[word]


def spark_schema(columns: str) -> pa.Schema:
    """Return what Spark hands to the sink for a DataFrame."""
    pairs = (part.partition(" ") for part in split(columns))
    fields = [spark.StructField(name, spark_type(type_)) for name, _, type_ in pairs]
    schema: pa.Schema = to_arrow_schema(spark.StructType(fields), timezone="UTC")
    return schema


def created(path: Path, schema: pa.Schema, partition_by: list[str] | None = None) -> Query:
    """Create the table that the error for a missing one proposes."""
    columns = new_columns(schema, (), Schema.from_arrow, "Delta")
    DeltaTable.create(str(path / "t"), columns, partition_by=partition_by)
    return Query(str(path / "t"))


def test_extreme_values_of_every_type_arrive(tmp_path: Path) -> None:
    """Extremes, nulls in values and inside of them; nothing is rounded."""
    schema = spark_schema(DDL)
    assert set(schema.names) == VALUES.keys()
    query = created(tmp_path, schema)
    rows = [{name: values[i] for name, values in VALUES.items()} for i in range(2)]
    rows.append(dict.fromkeys(VALUES))
    query.add(pa.RecordBatch.from_pylist(rows, schema))
    assert table_of(query.path) == rows


def test_type_that_delta_lacks_is_refused(tmp_path: Path) -> None:
    """Intervals: the error for the missing table names them."""
    query = created(tmp_path, spark_schema("s string"))
    schema = spark_schema("s string, d interval")
    with pytest.raises(
        SchemaMismatch, match=r"d: the table has no such column\. Rename or drop it\.\n"
    ):
        query.plan(schema)
    DeltaTable.create(str(tmp_path / "u"), pa.schema([("d", pa.int64())]))
    with pytest.raises(SchemaMismatch, match="Cast it"):
        Query(str(tmp_path / "u")).plan(schema.remove(0))


@pytest.mark.parametrize(
    ("ddl", "source", "good", "bad"),
    [
        ("int", "bigint", 2**31 - 1, 2**31),
        ("decimal(4,2)", "decimal(10,4)", Decimal("12.3400"), Decimal("12.3456")),
        ("double", "bigint", 2**53, 2**53 + 1),
        ("decimal(4,0)", "bigint", 9_999, 10_000),
        ("bigint", "decimal(20,0)", 2**63 - 1, Decimal(2**63)),
        ("array<int>", "array<bigint>", [1, None], [2**31]),
        ("struct<x:int>", "struct<x:bigint>", {"x": 1}, {"x": 2**31}),
        ("struct<x:decimal(4,0)>", "struct<x:bigint>", {"x": 1}, {"x": 10_000}),
        ("double", "float", 1.5, None),
    ],
)
def test_value_fits_or_is_refused(
    tmp_path: Path, ddl: str, source: str, good: Any, bad: Any
) -> None:
    """In the task, before anything is published."""
    query = created(tmp_path, spark_schema(f"c {ddl}"))
    schema = spark_schema(f"c {source}")
    query.add(pa.RecordBatch.from_pylist([{"c": good}], schema))
    assert table_of(query.path) == [{"c": good}]
    if bad is not None:
        with pytest.raises(InvalidRow, match="Column c"):
            query.target.check(pa.RecordBatch.from_pylist([{"c": bad}], schema), query.plan(schema))


def test_misfit_element_refuses_its_own_row_alone(tmp_path: Path) -> None:
    """Arrow casts the elements of a slice's neighbours, too."""
    query = created(tmp_path, spark_schema("c array<int>, s struct<x:array<int>>"))
    schema = spark_schema("c array<bigint>, s struct<x:array<bigint>>")
    plan = query.plan(schema)
    large = 2**31
    wrong = [{"c": [large], "s": {"x": [1]}}, {"c": [1], "s": {"x": [large]}}]
    good = [{"c": [i], "s": {"x": [i]}} for i in range(3)]
    batch = pa.RecordBatch.from_pylist([good[0], wrong[0], good[1], wrong[1], good[2]], schema)
    split = split_invalid(batch, lambda rows: query.target.check(rows, plan))
    assert [row for part in split.taken for row in part.to_pylist()] == good
    assert [row for item in split.refused for row in item.rows.to_pylist()] == wrong
    with pytest.raises(InvalidRow, match=r"Column c of .* \(\[2147483648\]\) does not fit"):
        query.target.check(batch, plan)


@pytest.mark.parametrize(
    ("ddl", "source"),
    [
        ("float", "double"),
        ("int", "string"),
        ("timestamp", "timestamp_ntz"),
        ("struct<x:int>", "struct<y:int>"),
        ("map<string,int>", "map<string,bigint>"),
    ],
)
def test_type_that_could_change_values_is_refused(tmp_path: Path, ddl: str, source: str) -> None:
    """The remedy is a cast, in Spark's own words for the type."""
    query = created(tmp_path, spark_schema(f"c {ddl}"))
    with pytest.raises(SchemaMismatch) as caught:
        query.plan(spark_schema(f"c {source}"))
    cast = caught.value.what.partition('.cast("')[2].partition('")')[0]
    assert cast == ddl


def test_null_inside_a_required_field_is_refused(tmp_path: Path) -> None:
    """Readers rely on what the table says."""
    inner = {"type": "array", "elementType": "integer", "containsNull": False}
    fields = [
        {"name": "i", "type": "integer", "nullable": False, "metadata": {}},
        {
            "name": "c",
            "type": {
                "type": "map",
                "keyType": "string",
                "valueType": inner,
                "valueContainsNull": False,
            },
            "nullable": True,
            "metadata": {},
        },
    ]
    delta = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    DeltaTable.create(str(tmp_path / "t"), delta)
    query = Query(str(tmp_path / "t"))
    schema = spark_schema("i int, c map<string,array<int>>")
    good = [{"i": 1, "c": [("a", [1])]}, {"i": 2, "c": None}]
    query.add(pa.RecordBatch.from_pylist(good, schema))
    assert table_of(query.path) == good
    wrong: list[dict[str, Any]] = [
        {"i": None, "c": []},
        {"i": 1, "c": [("a", None)]},
        {"i": 1, "c": [("a", [None])]},
    ]
    for bad in wrong:
        with pytest.raises(InvalidRow, match=r"takes no(ne| null)"):
            query.target.check(pa.RecordBatch.from_pylist([bad], schema), query.plan(schema))


def test_texts_with_a_length(tmp_path: Path) -> None:
    """As Spark has them in the log. It counts characters; readers rely on the blanks at the end of a char."""
    fields = [
        {
            "name": name,
            "type": "string",
            "nullable": True,
            "metadata": {"__CHAR_VARCHAR_TYPE_STRING": type_},
        }
        for name, type_ in (("c", "char(3)"), ("v", "varchar(3)"))
    ]
    delta = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    DeltaTable.create(str(tmp_path / "t"), delta, partition_by=["c"])
    query = Query(str(tmp_path / "t"))
    schema = spark_schema("c string, v string")
    good = [{"c": "äö🎈", "v": "äö🎈"}, {"c": "x  ", "v": ""}, {"c": None, "v": None}]
    query.add(pa.RecordBatch.from_pylist(good, schema))
    assert sorted(map(str, table_of(query.path))) == sorted(map(str, good))
    for bad in ({"c": "xx", "v": ""}, {"c": "xxxx", "v": ""}, {"c": None, "v": "xxxx"}):
        rows = pa.RecordBatch.from_pylist([bad], schema)
        with pytest.raises(InvalidRow, match=r"another length than (var)?char\(3\)"):
            query.target.check(rows, query.plan(schema))


def test_varchar_that_grows_shorter_stops_the_flush(tmp_path: Path) -> None:
    """Rows that were checked for the former length wait in the log."""
    query = created(tmp_path, spark_schema("s string"))
    plan = query.plan(spark_schema("s string"))
    table = DeltaTable(query.path)
    table.alter.set_column_metadata("s", {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"})
    with pytest.raises(SchemaMismatch, match=r"column s was string, and is varchar\(3\)"):
        query.session.compare(plan)


@pytest.mark.parametrize(
    ("earlier", "now", "fits"),
    [
        ("varchar(3)", "varchar(5)", True),
        ("varchar(3)", "string", True),
        ("char(3)", "varchar(3)", True),
        ("varchar(3)", "varchar(2)", False),
        ("varchar(3)", "char(3)", False),
    ],
)
def test_text_column_may_be_lengthened_not_shortened(
    tmp_path: Path, earlier: str, now: str, *, fits: bool
) -> None:
    """Spark makes none shorter again: what waits in the log would be stuck."""
    schema = spark_schema("s string")
    query = created(tmp_path, schema)

    def alter(type_: str) -> None:
        DeltaTable(query.path).alter.set_column_metadata("s", {DECLARED.decode(): type_})

    alter(earlier)
    plan = query.plan(schema)
    query.session.compare(plan)
    alter(now)
    expected = (
        contextlib.nullcontext() if fits else pytest.raises(SchemaMismatch, match="column s was")
    )
    with expected:
        query.session.compare(plan)


PARTITIONED: dict[str, list[Any]] = {
    "string": ["a", "ä/=% b", None],
    "int": [1, -1, None],
    "bigint": [2**63 - 1, 0, None],
    "boolean": [True, False, None],
    "date": [datetime.date(2024, 2, 29), datetime.date(1, 1, 1), None],
    "decimal(10,2)": [Decimal("1.25"), Decimal("0.10"), None],
    "timestamp": [MOMENT, MOMENT.replace(microsecond=0), None],
    "timestamp_ntz": [MOMENT.replace(tzinfo=None), None],
}


@pytest.mark.parametrize("ddl", PARTITIONED)
def test_partition_values_have_files_of_their_own(tmp_path: Path, ddl: str) -> None:
    """Each value has files of its own, and comes back as it was."""
    schema = spark_schema(f"p {ddl}, v bigint")
    query = created(tmp_path, schema, ["p"])
    values = PARTITIONED[ddl]
    rows = [{"p": value, "v": n} for n, value in enumerate(values * 2)]
    query.add(pa.RecordBatch.from_pylist(rows, schema))
    result = sorted(table_of(query.path), key=lambda row: row["v"])
    assert result == rows
    actions = pa.table(DeltaTable(query.path).get_add_actions(flatten=True)).to_pylist()
    assert sorted(map(str, (action["partition.p"] for action in actions))) == sorted(
        map(str, values)
    )


@pytest.mark.parametrize(("ddl", "bad"), [("date", 2_932_897), ("timestamp", 2**62)])
def test_partition_beyond_the_year_9999_is_refused(tmp_path: Path, ddl: str, bad: int) -> None:
    """In the task; as a value of another column it is kept."""
    schema = spark_schema(f"p {ddl}, v {ddl}")
    query = created(tmp_path, schema, ["p"])
    arrays = [pa.array(item, schema.field(0).type) for item in ([0, bad, None], [bad, 0, bad])]
    batch = pa.record_batch(arrays, schema=schema)
    with pytest.raises(InvalidRow, match=r"Column p .*years 1 to 9999") as caught:
        query.target.check(batch, query.plan(schema))
    assert caught.value.rows.to_pylist() == [False, True, False]
    query.add(batch.filter(pa.array([True, False, True])))


def test_several_partition_columns_and_filters(tmp_path: Path) -> None:
    """A reader that filters by a partition, or by a column, finds its rows."""
    schema = spark_schema("d date, region string, v bigint, ts timestamp")
    query = created(tmp_path, schema, ["d", "region"])
    days = [datetime.date(2024, 1, n) for n in (1, 2)]
    rows: list[dict[str, Any]] = [
        {"d": d, "region": r, "v": n, "ts": MOMENT + datetime.timedelta(microseconds=n)}
        for n, (d, r) in enumerate((d, r) for d in days for r in ("eu", "us", "a b") * 3)
    ]
    query.add(pa.RecordBatch.from_pylist(rows, schema))
    dataset = DeltaTable(query.path).to_pyarrow_dataset()
    wanted = (pa.compute.field("region") == "a b") & (pa.compute.field("v") > 5)
    to_pylist = dataset.to_table(filter=wanted).to_pylist()
    expected = [row for row in rows if row["region"] == "a b" and row["v"] > 5]
    assert sorted(row["v"] for row in to_pylist) == [row["v"] for row in expected]
    for row in rows:
        late = dataset.to_table(filter=pa.compute.field("ts") >= row["ts"])
        assert late.num_rows == sum(other["ts"] >= row["ts"] for other in rows)


def test_type_that_cannot_be_a_partition_is_refused(tmp_path: Path) -> None:
    """Types without one text, the empty one, which Delta keeps as a null, and one that no folder has."""
    schema = spark_schema("p double, v bigint")
    query = created(tmp_path, schema, ["p"])
    with pytest.raises(SchemaMismatch, match="p: the table is partitioned by it"):
        query.plan(schema)
    schema = spark_schema("p string, v bigint")
    DeltaTable.create(str(tmp_path / "u"), schema, partition_by=["p"])
    query = Query(str(tmp_path / "u"))
    for bad, reason in (("", "empty text"), ("a " * 85, "too long for the name of a partition")):
        with pytest.raises(InvalidRow, match=reason):
            query.target.check(
                pa.RecordBatch.from_pylist([{"p": bad, "v": 1}], schema), query.plan(schema)
            )
    with pytest.raises(SchemaMismatch, match="only partition columns"):
        query.plan(spark_schema("p string"))
