"""Wrong input that only a run of Spark shows: nothing is written.

`test_mistakes.py` has what the user sees of an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import wal_sink
from tests.spark.conftest import Shop
from tests.spark.tables import last_commit, options
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


@pytest.fixture(scope="module", autouse=True)
def registered(spark: SparkSession) -> Iterator[None]:
    """Register the session once, since no query gets as far as the flush."""
    with wal_sink.register(spark, flush=False):
        yield


def refused(shop: Shop, rows: DataFrame, /, **options: object) -> str:
    """Run a query that fails, and check that it has written nothing; return the message."""
    with pytest.raises(StreamingQueryException) as caught:
        shop.run(rows, **options)
    assert shop.table.ids() == []
    assert last_commit(shop.checkpoint) == -1
    return str(caught.value)


def test_checkpoint_only_in_the_session_settings_is_refused(shop: Shop) -> None:
    """Spark does not pass the setting to the sink, so the checkpoint must be an option."""
    setting = "spark.sql.streaming.checkpointLocation"
    shop.add_files()
    shop.spark.conf.set(setting, shop.checkpoint)
    job = shop.rows.writeStream.format("wal_sink").options(**options(shop.table))
    try:
        query = job.queryName("by_setting").trigger(availableNow=True).start()
        with pytest.raises(StreamingQueryException, match="checkpointLocation is missing"):
            query.awaitTermination()
    finally:
        shop.spark.conf.unset(setting)


def test_aborted_batch_leaves_no_segment(shop: Shop) -> None:
    """The segments of the task that succeeded are deleted, too (rule `segments`)."""

    def late_null(key: str, row_id: int) -> str | None:
        if row_id != 3:
            return key
        time.sleep(4)  # the other task has ended by then
        return None

    shop.add_files(rows=10)
    key = udf(late_null, "string", useArrow=False)("key", "id")
    message = refused(shop, shop.rows.repartition(2).withColumn("key", key))
    assert "Column key" in message
    location = locate(shop.checkpoint)
    store = location.open_log(location.open_checkpoint().query_id())
    assert store.list("segments/") == []


def test_batch_write_is_refused(shop: Shop) -> None:
    """Only streams have a checkpoint."""
    writer = shop.spark.range(1).write.format("wal_sink").mode("append")
    writer = writer.options(checkpointLocation=shop.checkpoint, **options(shop.table))
    with pytest.raises(PySparkException, match="writeStream"):
        writer.save()
