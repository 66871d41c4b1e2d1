"""A notebook's second cell starts the query again without `register`. Spark still has the format."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import wal_sink

pytestmark = pytest.mark.spark


def test_query_started_after_the_block_logs_one_warning(
    spark: SparkSession, tmp_path: Path, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest handle warns. The next block flushes the rows."""
    source, table = str(tmp_path / "source"), str(tmp_path / "table")
    options = {"target": "delta", "delta.path": table, "createTable": "true"}

    def run() -> None:
        spark.range(3).write.mode("append").parquet(source)
        stream = spark.readStream.schema("id long").parquet(source)
        writer = stream.writeStream.format("wal_sink").trigger(availableNow=True)
        writer.options(checkpointLocation=checkpoint, **options).start().awaitTermination()

    for rows in (3, 9):
        with wal_sink.register(spark):
            run()
        assert "has started after the end of its block" not in caplog.text
        run()
        assert caplog.text.count("has started after the end of its block") == 1
        assert DeltaTable(table).count() == rows
        caplog.clear()
