"""A streaming application to be killed: `python -m tests.spark.app CONFIG.json`.

Each of its queries streams Parquet files into a table, one file a micro-batch. `wal_sink.demo.pauses` pauses
the queries at the points that the test has chosen.
"""

from __future__ import annotations

import contextlib
import json
import sys
import uuid
from pathlib import Path
from typing import Any

from cassandra.cluster import Cluster
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from tests.spark.gate import Gate
from tests.support.waiting import until
from wal_sink.demo.local_spark import local_session
from wal_sink.demo.pauses import PausingBatchWriter, PausingDataSource, pause_at
from wal_sink.options import as_texts

SCHEMA = "id bigint, text string"


def main(config: dict[str, Any]) -> None:
    """Run the queries to their end, or to the points where they are killed."""
    spark = local_session(**config["settings"])
    with wal_sink.register(spark, drain_timeout=120):
        spark.dataSource.register(PausingDataSource)
        for query in [start(spark, query) for query in config["queries"]]:
            query.awaitTermination()
        if gated := config.get("stop_while_gated"):
            gate = Gate(gated)
            until(lambda: len(gate.writers()) > 1)
            spark.stop()
            gate.open()


def start(spark: SparkSession, config: dict[str, Any]) -> StreamingQuery:
    """Start a query, with Spark's settings of its own; Spark reads them as it starts the query."""
    settings = config.get("own_settings", {})
    for name, value in settings.items():
        spark.conf.set(name, value)
    writers = {"wal_sink": writer, "batch_writer": by_batch_writer, "foreachBatch": control}
    options = {"target": "wal_sink.demo.cassandra:PausingCassandra", **config.get("options", {})}
    query = writers[config["sink"]](spark, config, **options).trigger(availableNow=True).start()
    for name in settings:
        spark.conf.unset(name)
    return query


def writer(spark: SparkSession, config: dict[str, Any], **options: Any) -> DataStreamWriter:
    """Return the writer of a query that writes by the format."""
    stream = rows(spark, config).writeStream.format("wal_sink")
    return stream.options(**options_of(config), **options)


def by_batch_writer(
    spark: SparkSession, config: dict[str, Any], **options: Any
) -> DataStreamWriter:
    """Return the writer of a query that calls a `batch_writer` beside another action."""
    write = PausingBatchWriter(spark, as_texts({**options_of(config), **options}))

    def count_and_write(batch: DataFrame, epoch: int) -> None:
        batch.count()
        write(batch, epoch)

    stream = rows(spark, config).writeStream.outputMode("update").foreachBatch(count_and_write)
    return stream.option("checkpointLocation", config["checkpoint"])


def options_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the options that each query has."""
    return {
        "checkpointLocation": config["checkpoint"],
        "cassandra.contactPoints": "127.0.0.1",
        "cassandra.port": config["port"],
        "keyspace": config["keyspace"],
        "table": config["table"],
    }


def rows(spark: SparkSession, config: dict[str, Any]) -> DataFrame:
    """Stream the source; each computation of a row has another key."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    computed = source.parquet(config["source"]).selectExpr("uuid() AS key", "id", "text")
    return computed.where(config.get("where", "true"))


def control(spark: SparkSession, config: dict[str, Any], **_options: Any) -> DataStreamWriter:
    """Return the writer of a query without the sink, which writes in its batch function."""

    def write(batch: DataFrame, epoch: int) -> None:
        cluster = Cluster(["127.0.0.1"], port=config["port"])
        cassandra = cluster.connect(config["keyspace"])
        insert = cassandra.prepare(
            f"INSERT INTO {config['table']} (key, id, text) VALUES (?, ?, ?)"
        )
        for row in batch.collect():
            cassandra.execute(insert, (uuid.UUID(row.key), row.id, row.text))
        cluster.shutdown()
        pause_at("commit returned", config["table"], epoch)

    stream = rows(spark, config).writeStream.foreachBatch(write)
    return stream.option("checkpointLocation", config["checkpoint"])


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(json.loads(Path(sys.argv[1]).read_text()))
