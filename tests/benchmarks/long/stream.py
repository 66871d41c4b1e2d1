"""The stream of the long run, and the totals of its table."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tests.benchmarks.rows import Totals
from tests.benchmarks.sizes import PARTITIONS

KEYS = 1_000_000
"""The rows of the table. When all keys exist, each row replaces an older row, so the table does not grow."""

_SELECT = (
    f"concat('device-', value % {KEYS} div {KEYS // PARTITIONS}) AS device",
    f"value % {KEYS} AS id",
    "timestamp AS at",
    "value * 7 AS amount",
    "repeat('x', 100) AS note",
)


def rows(spark: SparkSession, per_epoch: int) -> DataFrame:
    """Return a stream with `per_epoch` rows in each micro-batch, numbered from 0."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", per_epoch)
    return source.option("numPartitions", 2).load().selectExpr(*_SELECT)


def totals(streamed: int) -> Totals:
    """Return the totals of the table after that number of rows: it has the newest row of each key."""
    kept = min(streamed, KEYS)
    first = streamed - kept
    sum_of_values = (first + streamed - 1) * kept // 2
    return Totals(kept, kept * (kept - 1) // 2, 7 * sum_of_values)
