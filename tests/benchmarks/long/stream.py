"""The stream of the long run: epochs of one size, one after the other, and what a table holds after them."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from tests.benchmarks.rows import Totals
from tests.benchmarks.sizes import PARTITIONS

KEYS = 1_000_000
"""Rows of the table. Once all are there, each row replaces an older one: the server stays as it is, and what
grows is the number of rows and epochs that went through the sink."""

_SELECT = (
    f"concat('device-', value % {KEYS} div {KEYS // PARTITIONS}) AS device",
    f"value % {KEYS} AS id",
    "timestamp AS at",
    "value * 7 AS amount",
    "repeat('x', 100) AS note",
)


def rows(spark: SparkSession, per_epoch: int) -> DataFrame:
    """Return the stream: `per_epoch` rows in each micro-batch, numbered from 0 over all of them."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", per_epoch)
    return source.option("numPartitions", 2).load().selectExpr(*_SELECT)


def totals(streamed: int) -> Totals:
    """Return what the table holds after that number of rows: of each key the newest."""
    kept = min(streamed, KEYS)
    first = streamed - kept
    values = (first + streamed - 1) * kept // 2
    return Totals(kept, kept * (kept - 1) // 2, 7 * values)
