"""A streaming application to be killed: `python -m tests.spark.app CONFIG.json`.

Each of its queries streams Parquet files, one a micro-batch, into a table; where they pause is the
business of `wal_sink.demo.crash`.
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
from wal_sink.demo.crash import PAUSING_TARGET, PausingBatchWriter, PausingDataSource
from wal_sink.demo.local_spark import local_session
from wal_sink.demo.pauses import pause_at
from wal_sink.options import as_texts

SCHEMA = "id bigint, text string"


def main(config: dict[str, Any]) -> None:
    """Run the queries to their end, or to the points where they wait to be killed."""
    spark = local_session(**config.get("settings", {}))
    with contextlib.ExitStack() as stack:
        sink = wal_sink.register(spark, drain_timeout=120)
        if not config.get("leave"):
            stack.enter_context(sink)
        spark.dataSource.register(PausingDataSource)
        for query in [started(spark, query) for query in config.get("queries", [config])]:
            query.awaitTermination()
        if config.get("stop_in_job"):
            gate = Gate(config["keyspace"])
            until(lambda: len(gate.writers()) > 1)
            spark.stop()
            gate.open()


def started(spark: SparkSession, config: dict[str, Any]) -> StreamingQuery:
    """Start one query of several, with settings of its own; Spark reads them as it starts."""
    own = config.get("own_settings", {})
    for name, value in own.items():
        spark.conf.set(name, value)
    query = start(spark, config)
    for name in own:
        spark.conf.unset(name)
    return query


def start(spark: SparkSession, config: dict[str, Any]) -> StreamingQuery:
    """Start one query."""
    if config["sink"] == "foreachBatch":
        return control(spark, config)
    settings = {"target": PAUSING_TARGET, **config.get("options", {})}
    if config["sink"] == "batch_writer":
        return by_batch_writer(spark, config, settings).trigger(availableNow=True).start()
    return writer(spark, config, **settings).trigger(availableNow=True).start()


def writer(spark: SparkSession, config: dict[str, Any], **options: Any) -> DataStreamWriter:
    """Let the rows go to the sink."""
    return (
        rows(spark, config).writeStream.format("wal_sink").options(**options_of(config), **options)
    )


def by_batch_writer(
    spark: SparkSession, config: dict[str, Any], options: dict[str, Any]
) -> DataStreamWriter:
    """Let the rows go to the sink in `foreachBatch`, beside another action of the application."""
    texts = as_texts({**options_of(config), **options})
    write = PausingBatchWriter(spark, texts)

    def count_and_write(batch: DataFrame, epoch: int) -> None:
        batch.count()
        write(batch, epoch)

    return (
        rows(spark, config)
        .writeStream.outputMode("update")
        .foreachBatch(count_and_write)
        .option("checkpointLocation", config["checkpoint"])
    )


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
    """Stream the source; each row gets a new key whenever it is computed."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    computed = source.parquet(config["source"]).selectExpr("uuid() AS key", "id", "text")
    return computed.where(config.get("where", "true"))


def control(spark: SparkSession, config: dict[str, Any]) -> StreamingQuery:
    """Do the same as people do it today: write in the batch function."""

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

    return (
        rows(spark, config)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", config["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(json.loads(Path(sys.argv[1]).read_text()))
