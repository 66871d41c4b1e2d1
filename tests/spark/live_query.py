"""A query that runs until it is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.tables import Table, writer

ROWS_PER_SECOND = 40


@contextmanager
def live_query(spark: SparkSession, table: Table, checkpoint: str) -> Iterator[StreamingQuery]:
    """Start a query of numbered rows, with a micro-batch each second; stop it after the block.

    Ids count from 0 without a gap, and each computation of a row has another key. So a lost row, and a row of
    two attempts, can be seen in the table.
    """
    numbers = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    rows = numbers.selectExpr("uuid() AS key", "value AS id", "concat('row ', value) AS text")
    job = writer(rows.coalesce(1), table, checkpoint, **{"cassandra.requestTimeout": 2})
    query = job.trigger(processingTime="1 second").start()
    try:
        yield query
    finally:
        query.stop()
