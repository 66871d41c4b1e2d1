"""A streaming application to be killed, from files to Kafka: `python -m tests.spark.kafka_app CONFIG.json`.

Each of its queries reads two files in each epoch, with a task for each file. One query writes by Spark's own
Kafka sink.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from tests.spark.kafka_jars import kafka_jars
from wal_sink.demo.local_spark import local_session
from wal_sink.demo.pauses import PausingDataSource, pause_at
from wal_sink.spark.internals import python_worker

ISOLATION = ("read_committed", "read_uncommitted")
READ = "read.json"
"""File in the folder, written at the end: the keys of each topic, at each level of isolation."""


def main(config: dict[str, Any]) -> None:
    """Run the queries to their end, or to the points where they are killed."""
    jars = ",".join(map(str, kafka_jars()))
    spark = local_session(**{"spark.master": "local[4]", "spark.jars": jars})

    def writer(topic: str, sink: str) -> DataStreamWriter:
        source = spark.readStream.schema("key string, value string")
        rows = source.option("maxFilesPerTrigger", 2).parquet(config["source"])
        rows = rows.mapInArrow(partial(second_file_waits, topic=topic), "key string, value string")
        if sink == "kafka":
            return rows.writeStream.format("kafka")
        return rows.writeStream.format("wal_sink").option(
            "target", "wal_sink.demo.kafka:PausingKafka"
        )

    with wal_sink.register(spark, drain_timeout=120):
        spark.dataSource.register(PausingDataSource)
        queries = [
            writer(topic, sink)
            .option("kafka.bootstrap.servers", config["servers"])
            .option("topic", topic)
            .option("checkpointLocation", f"{config['folder']}/{topic}")
            .trigger(availableNow=True)
            .start()
            for topic, sink in config["topics"].items()
        ]
        for query in queries:
            query.awaitTermination()
    read = {
        topic: [keys_in(spark, config["servers"], topic, level) for level in ISOLATION]
        for topic in config["topics"]
    }
    Path(config["folder"], READ).write_text(json.dumps(read))


def keys_in(spark: SparkSession, servers: str, topic: str, isolation: str) -> list[str]:
    """Read the keys of a topic by Spark's own source, which uses Java's consumer."""
    source = spark.read.format("kafka").option("kafka.isolation.level", isolation)
    source = source.option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return [row.key for row in source.load().selectExpr("CAST(key AS string) AS key").collect()]


def second_file_waits(batches: Iterator[pa.RecordBatch], *, topic: str) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a task; the task of an epoch's second file pauses first, to be killed."""
    for batch in batches:
        if batch["key"][0].as_py().startswith("second"):
            pause_at("write", f"source of {topic}", python_worker.current_task().execution.epoch)
        yield batch


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
