"""`wal-sink check` and `wal_sink.check`: the errors and settings of a start, without a start."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from pyspark.sql.types import (
    ArrayType,
    DataType,
    LongType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

import wal_sink
from tests.cli.shell import run
from wal_sink import errors
from wal_sink.spark.internals.python_worker import arrow_schema

SQLITE = "sqlite_target:SqliteTarget"


def test_check_command_needs_no_server_for_options(tmp_path: Path) -> None:
    options = {"cassandra.contactPoints": "127.0.0.1", "keyspace": "shop", "table": "orders"}
    pairs = [part for name, value in options.items() for part in ("--option", f"{name}={value}")]
    fits = run(tmp_path, "check", "checkpoint", *pairs)
    assert (fits.code, fits.err) == (0, "")
    assert "shop.orders" in fits.out
    document = run(tmp_path, "check", "checkpoint", *pairs, "--json").document
    assert document["in_force"]["checkpoint"].endswith("/checkpoint")
    wrong = run(tmp_path, "check", "checkpoint", *pairs, "--option", "tabel=orders")
    assert (wrong.code, "Did you mean table?" in wrong.err) == (2, True)
    assert not (tmp_path / "checkpoint").exists()


def shop(folder: Path) -> dict[str, object]:
    """Make a table; return the options of a query into it."""
    path = folder / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, name TEXT)")
    return {
        "target": SQLITE,
        "checkpointLocation": str(folder / "checkpoint"),
        "sqlite.path": str(path),
        "table": "orders",
    }


def test_check_function_returns_columns_and_settings(tmp_path: Path) -> None:
    """The check needs no Spark session, is quick, and makes no ledger table."""
    options = shop(tmp_path)
    schema = StructType([StructField("id", LongType()), StructField("name", StringType())])
    started = time.thread_time()
    check = wal_sink.check(schema, **options, **{"wal.maxBytes": 1_000})
    assert time.thread_time() - started < 5, "of CPU time: the machine may be busy"
    assert [(column.name, column.source) for column in check.columns] == [
        ("id", "int64"),
        ("name", "string"),
    ]
    assert check.in_force["checkpoint"].endswith("/checkpoint")
    assert "1,000 bytes" in check.in_force["budget"]
    assert "id          bigint to INTEGER" in repr(check)
    with sqlite3.connect(str(options["sqlite.path"])) as connection:
        tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert tables == [("orders",)]
    assert not (tmp_path / "checkpoint").exists()


def test_check_function_refuses_unfit_options_and_schema(tmp_path: Path) -> None:
    options = shop(tmp_path)
    schema = StructType([StructField("id", StringType())])
    with pytest.raises(errors.OptionError, match="ttl"):
        wal_sink.check(schema, **options, ttl=3)
    with pytest.raises(errors.SchemaMismatch, match="id"):
        wal_sink.check(schema, **options)
    with pytest.raises(errors.OptionError, match="epochColumn"):
        wal_sink.check(schema, **options, epochColumn="id")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("cassandra.contactPoint", "x", "Did you mean cassandra.contactPoints?"),
        ("wal.location", "memory://log", "one process"),
        ("target", "oracle", "Option target is oracle"),
    ],
)
def test_check_function_refuses_wrong_options_before_it_connects(
    tmp_path: Path, name: str, value: str, words: str
) -> None:
    options = {
        "checkpointLocation": str(tmp_path),
        "cassandra.contactPoints": "127.0.0.1",
        "keyspace": "shop",
        "table": "orders",
    }
    with pytest.raises(errors.OptionError) as caught:
        wal_sink.check(StructType([StructField("id", LongType())]), **options | {name: value})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "spark_type",
    [VariantType(), ArrayType(VariantType()), YearMonthIntervalType()],
    ids=DataType.simpleString,
)
def test_check_refuses_a_type_that_python_reads_differently(spark_type: DataType) -> None:
    """Python reads a variant as a struct of bytes, and the interval as a number."""
    with pytest.raises(errors.SchemaMismatch, match=f"v is .*{spark_type.simpleString()}"):
        arrow_schema(StructType([StructField("k", LongType()), StructField("v", spark_type)]))
