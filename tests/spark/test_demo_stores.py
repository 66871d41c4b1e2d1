"""The stores of `wal-sink demo`: the sink writes each row once, and the control doubles rows.

All stores have one log, and nothing is killed. tests/cli/test_demo.py has the kills.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import wal_sink
from wal_sink.demo import queries
from wal_sink.demo.app import start
from wal_sink.demo.cassandra import Cassandra, Node
from wal_sink.demo.kafka import Broker, Kafka
from wal_sink.demo.outcome import compare_rows
from wal_sink.demo.queries import CONTROL, FLIGHTS, TENTH, source_rows, table_rows, write_sources
from wal_sink.demo.stores import ALONE, STORES, Stores, store_type

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 240


@pytest.fixture(autouse=True)
def in_two_epochs(monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    """Stream the flights in two micro-batches, with the time zone of the demo's application."""
    monkeypatch.setattr(queries, "_FEW_EPOCHS", 2)
    monkeypatch.setenv("TZ", "UTC")
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def fill_and_compare(spark: SparkSession, stores: Stores, folder: Path) -> None:
    """Stream flights into all stores, and compare. Then the control writes a batch twice, as after a kill."""
    sources = write_sources(folder, ROWS)
    in_application = Stores.at(stores.addresses)  # Spark sends these to the tasks
    with wal_sink.register(spark, drain_timeout=120):
        for query in (FLIGHTS, TENTH):
            start(spark, query, folder, in_application).awaitTermination()
    tenth = spark.read.parquet(str(folder / TENTH.source))
    for store, written in zip(stores.all, in_application.all, strict=True):
        for query in (FLIGHTS, TENTH):
            wanted, actual = (
                source_rows(sources[query.source], query),
                table_rows(store.rows(query)),
            )
            assert compare_rows(wanted, actual).exact, (store.target, query.name)
            assert store.count(query.table) == sources[query.source].num_rows
        for _ in range(2):
            batch = tenth.selectExpr(*CONTROL.select)  # made again, so that uuid() has other values
            written.write(written.converted(batch), CONTROL.table)
        assert store.count(CONTROL.table) == 2 * ROWS // 10, store.target


@pytest.mark.cassandra
@pytest.mark.postgresql
def test_demo_stores_get_each_row_once_from_one_log(
    spark: SparkSession, cassandra: Node, tmp_path: Path
) -> None:
    """These are all stores of the demo that have columns."""
    with ExitStack() as stack:
        stores = Stores(
            [
                Cassandra(str(cassandra.port), cassandra)
                if name == "cassandra"
                else stack.enter_context(store_type(name).start(tmp_path, lambda _: None))
                for name in STORES
                if name not in ALONE
            ]
        )
        for store in stores.all:
            store.create()
        fill_and_compare(spark, stores, tmp_path)


def test_demo_kafka_gets_each_record_once(
    spark: SparkSession, kafka: Broker, tmp_path: Path
) -> None:
    """Kafka is alone, since it has each row as one value."""
    stores = Stores([Kafka(kafka.address, kafka)])
    stores.first.create()
    fill_and_compare(spark, stores, tmp_path)
