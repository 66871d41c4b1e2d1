"""Named sources, for which Spark writes another version of `offsets/`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, Shop, write_source

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]

SETTINGS = {
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}


@pytest.fixture
def named(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session with the settings that named sources need."""
    for name, value in SETTINGS.items():
        spark.conf.set(name, value)
    yield spark
    for name in SETTINGS:
        spark.conf.unset(name)


def source(spark: SparkSession, name: str, folder: str) -> DataFrame:
    """Stream Parquet files by a named source, one file a micro-batch."""
    reader = spark.readStream.name(name).schema("id bigint, text string")
    return reader.option("maxFilesPerTrigger", 1).parquet(folder)


def run(shop: Shop, rows: DataFrame) -> None:
    """Run a query to its end; each computation of a row has another key."""
    with wal_sink.register(shop.spark):
        shop.run(rows.selectExpr("uuid() AS key", "id", "text"))


def test_rows_of_named_sources_arrive_once(named: SparkSession, shop: Shop) -> None:
    """One source joins later. Spark computes an epoch again after it was flushed."""
    orders = source(named, "orders", write_source(shop.folder / "orders", 2))
    run(shop, orders)
    more = source(named, "more", write_source(shop.folder / "more", 2))
    run(shop, orders.union(more))
    for name in ("3", ".3.crc"):
        (Path(shop.checkpoint) / "commits" / name).unlink()
    run(shop, more.union(orders))
    assert (Path(shop.checkpoint) / "offsets" / "3").read_text().startswith("v2\n")
    assert shop.table.ids() == sorted(2 * list(range(2 * ROWS_PER_FILE)))
    assert wal_sink.status(shop.checkpoint).flushed == 3
