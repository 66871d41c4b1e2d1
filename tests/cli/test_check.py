"""`wal-sink check` and `wal_sink.check`: what a first micro-batch would say; nothing is created."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)

import wal_sink
from tests.cli.shell import Done, run
from tests.support.cassandra import raw_options
from wal_sink import errors
from wal_sink.admin.spark_schema import json_schema, parquet_schema
from wal_sink.spark.internals.dataframe import arrow_schema
from wal_sink.testing.servers.cassandra import Node

SQLITE = "sqlite_target:SqliteTarget"
TYPES: list[DataType] = [
    BooleanType(),
    ByteType(),
    ShortType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(12, 2),
    StringType(),
    BinaryType(),
    DateType(),
    TimestampType(),
    TimestampNTZType(),
    DayTimeIntervalType(),
    ArrayType(ArrayType(IntegerType(), containsNull=False)),
    MapType(StringType(), ArrayType(DateType()), valueContainsNull=False),
    StructType([StructField("x", IntegerType(), nullable=False), StructField("y z", StringType())]),
]


def spark_json(**columns: DataType) -> str:
    """Return what `df.schema.json()` gives of a DataFrame with these columns."""
    return StructType([StructField(name, each) for name, each in columns.items()]).json()


def command(folder: Path, node: Node, keyspace: str, *arguments: str) -> Done:
    """Run `check` for a table `orders`."""
    options = raw_options(node, keyspace, "orders").items()
    pairs = [part for name, value in options for part in ("--option", f"{name}={value}")]
    return run(folder, "check", "checkpoint", *pairs, *arguments)


@pytest.mark.cassandra
def test_the_command_says_what_a_start_would_say(
    cassandra: Node, keyspace: str, tmp_path: Path
) -> None:
    """A missing table with its DDL, every misfit at once, what is in force; no ledger is made, no folder."""
    columns = ("--schema", spark_json(id=LongType(), at=TimestampType(), price=StringType()))
    missing = command(tmp_path, cassandra, keyspace, *columns)
    assert missing.code == 3
    assert "CREATE TABLE" in missing.err
    session = cassandra.session()
    session.execute(
        f"CREATE TABLE {keyspace}.orders (id bigint PRIMARY KEY, at timestamp, price decimal)"
    )
    (tmp_path / "schema.json").write_text(spark_json(id=LongType(), at=TimestampType()))
    fits = command(tmp_path, cassandra, keyspace, "--schema", "schema.json")
    assert (fits.code, fits.err) == (0, "")
    assert "id" in fits.out
    assert "the query can start" in fits.out
    pq.write_table(
        pa.table({"id": pa.array([1]), "price": [True], "no": [1.5]}), tmp_path / "a.parquet"
    )
    wrong = command(tmp_path, cassandra, keyspace, "--parquet", "a.parquet", "--json")
    assert wrong.code == 3
    for name in ("no", "price"):
        assert name in wrong.out
    tables = session.execute(
        f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'"
    )
    assert [row.table_name for row in tables] == ["orders"]
    assert not (tmp_path / "checkpoint").exists()


def shop(folder: Path) -> dict[str, object]:
    """Make a table; return the options of a query that writes to it."""
    path = folder / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, name TEXT)")
    return {
        "target": SQLITE,
        "checkpointLocation": str(folder / "checkpoint"),
        "sqlite.path": str(path),
        "table": "orders",
    }


def test_the_function_returns_what_is_in_force(tmp_path: Path) -> None:
    """It needs no running Spark, and is quick; the ledger's table is not made."""
    options = shop(tmp_path)
    schema = StructType([StructField("id", LongType()), StructField("name", StringType())])
    started = time.thread_time()
    found = wal_sink.check(schema, **options, **{"wal.maxBytes": 1_000})
    assert time.thread_time() - started < 5, "of CPU time: the machine may be busy"
    assert [(each.name, each.source) for each in found.columns] == [
        ("id", "int64"),
        ("name", "string"),
    ]
    assert found.in_force["checkpoint"].endswith("/checkpoint")
    assert "1,000 bytes" in found.in_force["budget"]
    assert "id          bigint to INTEGER" in repr(found)
    with sqlite3.connect(str(options["sqlite.path"])) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("orders",)]
    assert not (tmp_path / "checkpoint").exists()


def test_the_function_raises_what_a_start_would_raise(tmp_path: Path) -> None:
    """An unknown option, a schema that does not fit, an epoch column that is there twice."""
    options = shop(tmp_path)
    schema = StructType([StructField("id", StringType())])
    with pytest.raises(errors.OptionError, match="ttl"):
        wal_sink.check(schema, **options, ttl=3)
    with pytest.raises(errors.SchemaMismatch, match="id"):
        wal_sink.check(schema, **options)
    with pytest.raises(errors.OptionError, match="epochColumn"):
        wal_sink.check(schema, **options, epochColumn="id")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cassandra.contactPoint": "x"}, ["cassandra.contactPoint", "cassandra.contactPoints"]),
        ({"cassandra.port": "ninety"}, ["cassandra.port", "'ninety'", "a whole number"]),
        ({"wal.compression": "gzip"}, ["wal.compression", "lz4", "zstd", "none"]),
        ({"wal.location": "hdfs://host/log"}, ["wal.location", "hdfs"]),
        ({"wal.location": "memory://log"}, ["wal.location", "one process"]),
        ({"cassandra.consistencyLevel": "ANY"}, ["cassandra.consistencyLevel", "ANY"]),
        ({"cassandra.nulls": "drop"}, ["cassandra.nulls", "unset", "write"]),
        ({"target": "oracle"}, ["target", "oracle", "cassandra"]),
        ({"table": None}, ["table is missing"]),
        ({"checkpointLocation": None}, ["checkpointLocation is missing"]),
        ({"cassandra.contactPoints": None}, ["cassandra.contactPoints is missing"]),
    ],
)
def test_an_option_that_does_not_fit(
    tmp_path: Path, options: dict[str, str | None], words: list[str]
) -> None:
    """Unknown, missing, or of a value that is none: said before a server is asked."""
    given = {
        "checkpointLocation": str(tmp_path),
        "cassandra.contactPoints": "127.0.0.1",
        "keyspace": "shop",
        "table": "orders",
    } | options
    schema = StructType([StructField("id", LongType())])
    with pytest.raises(errors.OptionError) as caught:
        wal_sink.check(schema, **{k: v for k, v in given.items() if v is not None})
    for word in [*words, "What to do"]:
        assert word in str(caught.value)


@pytest.mark.parametrize("spark_type", TYPES, ids=DataType.simpleString)
def test_json_gives_the_types_that_tasks_get(spark_type: DataType) -> None:
    """As Spark hands them over, with their nullability."""
    fields = [StructField("a b", spark_type), StructField("c", spark_type, nullable=False)]
    schema = StructType(fields)
    assert json_schema(schema.json()).equals(arrow_schema(schema))


@pytest.mark.parametrize(
    "spark_type",
    [VariantType(), ArrayType(VariantType()), YearMonthIntervalType()],
    ids=DataType.simpleString,
)
def test_a_type_that_python_does_not_get_as_it_is(spark_type: DataType) -> None:
    """A variant would be written as a struct of its bytes, or as JSON of them."""
    with pytest.raises(errors.SchemaMismatch, match=f"v is .*{spark_type.simpleString()}"):
        arrow_schema(StructType([StructField("k", LongType()), StructField("v", spark_type)]))


@pytest.mark.parametrize(
    "text",
    ["", "id BIGINT", "{", "{}", '{"type": "struct"}', spark_json(a=VariantType()), '"long"'],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    """With the way to give one."""
    with pytest.raises(errors.OptionError, match="schema"):
        json_schema(text)


def test_parquet_gives_the_types_that_spark_reads(tmp_path: Path) -> None:
    """Types that Spark has not are read as wider ones."""
    path = tmp_path / "a.parquet"
    written = pa.schema(
        [
            ("at", pa.timestamp("ns", "Europe/Berlin")),
            ("local", pa.timestamp("ms")),
            ("n", pa.uint32()),
            ("word", pa.dictionary(pa.int32(), pa.string())),
            ("list", pa.large_list(pa.large_string())),
            ("place", pa.struct([("x", pa.uint8())])),
            ("map", pa.map_(pa.string(), pa.timestamp("s", "UTC"))),
        ]
    )
    pq.write_table(written.empty_table(), path)
    assert parquet_schema(str(path)) == pa.schema(
        [
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("n", pa.int64()),
            ("word", pa.string()),
            ("list", pa.list_(pa.field("element", pa.string()))),
            ("place", pa.struct([("x", pa.int16())])),
            ("map", pa.map_(pa.string(), pa.timestamp("us", "UTC"))),
        ]
    )
    with pytest.raises(errors.OptionError, match=r"(?s)none\.parquet.*Name a Parquet file"):
        parquet_schema(str(tmp_path / "none.parquet"))
