"""A query that goes on until it is stopped, over a node of its own: what operators' commands act on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.tables import Table, writer

ROWS_PER_SECOND = 40


@contextmanager
def live_query(spark: SparkSession, table: Table, checkpoint: str) -> Iterator[StreamingQuery]:
    """Start a query of numbered rows under a handle that exists, a micro-batch a second; stop it at the end.

    Ids count from 0 without a gap, and keys differ whenever they are computed: a row that is lost, or
    comes from two attempts, shows.
    """
    numbers = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    rows = numbers.selectExpr("uuid() AS key", "value AS id", "concat('row ', value) AS text")
    job = writer(rows.coalesce(1), table, checkpoint, **{"cassandra.requestTimeout": 2})
    query = job.trigger(processingTime="1 second").start()
    try:
        yield query
    finally:
        query.stop()
