"""Wrong input that only a run of Spark shows: nothing is written.

`test_mistakes.py` has what the user sees of an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import wal_sink
from tests.spark.conftest import write_source
from tests.spark.late_poison import LATE_POISON_TARGET
from tests.spark.tables import Table, start, stream
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> Iterator[None]:
    """Register the session once: no query gets as far as the flush."""
    with wal_sink.register(spark, flush=False):
        yield


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    return stream(spark, write_source(tmp_path / "source", 1, rows=10))


def refused(rows: DataFrame, table: Table, checkpoint: str, /, **options: object) -> str:
    """Run a query that fails, and check that it has written nothing; return the message."""
    with pytest.raises(StreamingQueryException) as caught:
        start(rows, table, checkpoint, **options).awaitTermination()
    assert table.ids() == []
    assert locate(checkpoint).open_checkpoint().last_commit() == -1
    return str(caught.value)


def test_checkpoint_only_in_the_session_settings_is_refused(
    spark: SparkSession, rows: DataFrame, table: Table, checkpoint: str
) -> None:
    """Spark does not pass the setting to the sink, so the checkpoint must be an option."""
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


def test_aborted_batch_leaves_no_segment(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """The segments of the task that succeeded are deleted, too (rule `segments`)."""
    halves = rows.repartition(2)
    assert "id 3 is poison" in refused(halves, table, checkpoint, target=LATE_POISON_TARGET)
    location = locate(checkpoint)
    store = location.open_log(location.open_checkpoint().query_id())
    assert store.list("segments/") == []


def test_text_that_is_not_utf8_is_refused(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Spark casts any bytes to a text, such as those of a Kafka value."""
    bytes_ = rows.selectExpr("key", "id", "CAST(X'FFFE' AS STRING) AS text")
    message = refused(bytes_, table, checkpoint)
    for word in ("InvalidRow", "text", "is not UTF-8", "make_valid_utf8"):
        assert word in message


def test_batch_write_is_refused(spark: SparkSession, table: Table, checkpoint: str) -> None:
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


def test_reading_the_format_is_refused(spark: SparkSession) -> None:
    """The error is not about missing options."""
    for read in (spark.read.format("wal_sink"), spark.readStream.format("wal_sink")):
        for of_schema in (read, read.schema("id int")):
            with pytest.raises(PySparkException, match="only writes") as caught:
                run_read(of_schema.load())
            assert "by the format of its own database" in str(caught.value)


def run_read(rows: DataFrame) -> None:
    """Read to the end."""
    if not rows.isStreaming:
        rows.collect()
        return
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    writer.start().awaitTermination()
