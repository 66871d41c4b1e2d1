"""What a user gets wrong is said with the option or column and the remedy, before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

import wal_sink
from tests.spark.conftest import write_source
from tests.spark.late_poison import LATE_POISON_TARGET
from tests.spark.tables import Table, start, stream
from wal_sink.testing.cassandra.node import Node
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> Iterator[None]:
    """One handle for all of these: no query gets as far as the flush."""
    with wal_sink.register(spark):
        yield


@pytest.fixture
def table(cassandra: Node, keyspace: str) -> Table:
    return Table(cassandra, keyspace)


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return stream(spark, write_source(tmp_path / "source", 1, rows=10))


def refused(rows: DataFrame, table: Table, checkpoint: str, /, **options: object) -> str:
    """Start, see that it fails and that nothing has happened; return the message."""
    with pytest.raises(StreamingQueryException) as caught:
        start(rows, table, checkpoint, **options).awaitTermination()
    assert table.ids() == []
    assert locate(checkpoint).open_checkpoint().last_commit() == -1
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cassandra.contactPoint": "x"}, ["cassandra.contactPoint", "cassandra.contactPoints"]),
        ({"cassandra.port": "ninety"}, ["cassandra.port", "int"]),
        ({"wal.compression": "gzip"}, ["wal.compression", "lz4", "zstd", "none"]),
        ({"wal.location": "gs://bucket/log"}, ["wal.location", "gs"]),
        ({"wal.location": "memory://log"}, ["wal.location", "one process"]),
        ({"cassandra.consistencyLevel": "ANY"}, ["cassandra.consistencyLevel", "ANY"]),
        ({"cassandra.nulls": "drop"}, ["cassandra.nulls", "unset", "write"]),
        ({"target": "oracle"}, ["target", "oracle", "cassandra"]),
        ({"cassandra.ttl": "60"}, ["cassandra.ttl"]),
        ({"epochColumn": "text"}, ["epochColumn", "text"]),
    ],
)
def test_options(
    rows: DataFrame, table: Table, checkpoint: str, options: dict[str, str], words: list[str]
) -> None:
    """An option that is unknown, or has a value that does not fit."""
    message = refused(rows, table, checkpoint, **options)
    assert "OptionError" in message
    for word in [*words, "What to do"]:
        assert word in message


def test_a_missing_option(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Named, with what it means."""
    query = (
        rows.writeStream.format("wal_sink")
        .option("checkpointLocation", checkpoint)
        .option("keyspace", "k")
        .option("table", "t")
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match=r"cassandra\.contactPoints is missing"):
        query.awaitTermination()


def test_a_checkpoint_by_configuration_only(
    spark: SparkSession, rows: DataFrame, table: Table, checkpoint: str
) -> None:
    """The sink cannot see it in the tasks: it has to be an option."""
    spark.conf.set("spark.sql.streaming.checkpointLocation", checkpoint)
    try:
        query = (
            rows.writeStream.format("wal_sink")
            .queryName("by_configuration")
            .option("cassandra.contactPoints", "127.0.0.1")
            .option("keyspace", table.keyspace)
            .option("table", table.name)
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(StreamingQueryException, match="checkpointLocation is missing"):
            query.awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_a_missing_table(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """The error prints the statement that would make it."""
    table.cassandra.execute(f"CREATE TABLE {table.keyspace}.wrong (id int PRIMARY KEY)")
    message = refused(rows, table, checkpoint, table="nothere")
    for word in ("SchemaMismatch", "CREATE TABLE", "nothere", '"id" bigint', "PRIMARY KEY"):
        assert word in message


def test_columns_that_do_not_fit(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """All of them in one message: a type, an unknown column, a missing key."""
    table.cassandra.execute(
        f"CREATE TABLE {table.keyspace}.narrow (name text PRIMARY KEY, id int, text text)"
    )
    message = refused(rows, table, checkpoint, table="narrow")
    for word in ("SchemaMismatch", "name", "id", "int64", "int", "key"):
        assert word in message


def test_a_counter_table(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """It cannot be written twice with the same effect."""
    table.cassandra.execute(
        f"CREATE TABLE {table.keyspace}.counts (key uuid PRIMARY KEY, id counter)"
    )
    assert "counter" in refused(rows.drop("text"), table, checkpoint, table="counts")


def test_an_unreachable_cluster_at_the_first_start(
    rows: DataFrame, table: Table, checkpoint: str
) -> None:
    """The schema cannot be compared, so the query fails; nothing is lost."""
    message = refused(rows, table, checkpoint, **{"cassandra.port": "1"})
    for word in ("TargetUnavailable", "127.0.0.1"):
        assert word in message


def test_a_null_key(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Found in the task, before anything is published."""
    bad = rows.withColumn("key", expr("IF(id = 3, NULL, key)"))
    message = refused(bad, table, checkpoint)
    for word in ("InvalidRow", "key", "What to do"):
        assert word in message


def test_a_poison_row_and_restarts_do_not_fill_the_log(
    rows: DataFrame, table: Table, checkpoint: str
) -> None:
    """What the other task of the batch has written goes when Spark aborts it."""
    for _ in range(3):
        assert "id 3 is poison" in refused(
            rows.repartition(2), table, checkpoint, target=LATE_POISON_TARGET
        )
        location = locate(checkpoint)
        log = location.open_log(location.open_checkpoint().query_id())
        assert log.segments() == []


def test_a_string_that_is_no_uuid(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Shown with its column."""
    message = refused(rows.withColumn("key", expr("'not-a-uuid'")), table, checkpoint)
    for word in ("InvalidRow", "key", "not-a-uuid"):
        assert word in message


def test_a_text_that_is_no_utf8(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Spark's cast of bytes, a Kafka value's say, does not look; the server would, when it is too late."""
    bytes_ = rows.selectExpr("key", "id", "CAST(X'FFFE' AS STRING) AS text")
    message = refused(bytes_, table, checkpoint)
    for word in ("InvalidRow", "text", "is not UTF-8", "make_valid_utf8"):
        assert word in message


def test_a_key_that_overflows(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Cassandra keeps keys of at most 65,535 bytes."""
    table.cassandra.execute(
        f"CREATE TABLE {table.keyspace}.long (text text PRIMARY KEY, id bigint)"
    )
    long = rows.select("id", expr("repeat('x', 70000) AS text"))
    message = refused(long, table, checkpoint, table="long")
    for word in ("InvalidRow", "text", "65,535"):
        assert word in message


def test_complete_mode(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Results that change cannot be appended."""
    query = (
        rows.groupBy("text")
        .count()
        .writeStream.format("wal_sink")
        .outputMode("complete")
        .option("checkpointLocation", checkpoint)
        .option("cassandra.contactPoints", "127.0.0.1")
        .option("keyspace", table.keyspace)
        .option("table", table.name)
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(StreamingQueryException, match="append"):
        query.awaitTermination()


def test_a_batch_write(spark: SparkSession, table: Table, checkpoint: str) -> None:
    """Only streams have a checkpoint."""
    with pytest.raises(PySparkException, match="writeStream"):
        (
            spark.range(1)
            .write.format("wal_sink")
            .mode("append")
            .option("checkpointLocation", checkpoint)
            .option("cassandra.contactPoints", "127.0.0.1")
            .option("keyspace", table.keyspace)
            .option("table", table.name)
            .save()
        )
