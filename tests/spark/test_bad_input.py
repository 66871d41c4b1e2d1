"""What a user gets wrong, where it takes Spark to notice it: nothing is written.

Options are checked without Spark in
`tests/cli/test_check.py`, tables in `tests/cassandra/test_target_plan.py`,
and values in `tests/cassandra/test_check.py`. What Spark makes of an error is in `test_mistakes.py`.
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
from wal_sink.demo.servers.cassandra import Node
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> Iterator[None]:
    """One handle for all of these: no query gets as far as the flush, so nothing waits for one either."""
    with wal_sink.register(spark, flush=False):
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


def test_checkpoint_by_configuration_only(
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


def test_poison_row_does_not_fill_the_log(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """What the other task of the batch has written goes when Spark aborts it (rule `segments`)."""
    halves = rows.repartition(2)
    assert "id 3 is poison" in refused(halves, table, checkpoint, target=LATE_POISON_TARGET)
    location = locate(checkpoint)
    store = location.open_log(location.open_checkpoint().query_id())
    assert store.list("segments/") == []


def test_text_that_is_no_utf8(rows: DataFrame, table: Table, checkpoint: str) -> None:
    """Spark's cast of bytes, a Kafka value's say, does not look; the server would, when it is too late."""
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
    """Spark asks the format for a schema; not the options are at fault, as there are none for it."""
    for read in (spark.read.format("wal_sink"), spark.readStream.format("wal_sink")):
        for of_schema in (read, read.schema("id int")):
            with pytest.raises(PySparkException, match="only writes") as caught:
                run_read(of_schema.load())
            assert "by the format of its own database" in str(caught.value)


def run_read(rows: DataFrame) -> None:
    """Read to the end; a stream to nowhere."""
    if not rows.isStreaming:
        rows.collect()
        return
    writer = rows.writeStream.format("noop").trigger(availableNow=True)
    writer.start().awaitTermination()
