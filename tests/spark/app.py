"""A streaming application to be killed: `python -m tests.spark.app CONFIG.json`.

It streams Parquet files, one a micro-batch, into a table, and can stop at a named point of a named epoch: it
then writes the marker file and waits to be killed. The points are reached by subclassing, from outside, what
Spark and the flusher call; the product has no such hooks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
from cassandra.cluster import Cluster
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

import wal_sink
from wal_sink import spark_internals
from wal_sink.spark import Message, WalSinkDataSource, WalSinkStreamWriter
from wal_sink.targets.base import Owner, Plan, Session, Slice
from wal_sink.targets.cassandra import CassandraTarget
from wal_sink.testing.faults import Faults, FaultySession

SCHEMA = "id bigint, text string"


def main(config: dict[str, Any]) -> None:
    """Run the query to its end, or to the point where it waits to be killed."""
    spark = session()
    if config["sink"] == "foreachBatch":
        control(spark, config)
        return
    with contextlib.ExitStack() as stack:
        sink = wal_sink.register(spark, drain_timeout=120)
        if not config.get("leave"):
            stack.enter_context(sink)
        if config.get("pause") in {"write", "commit called", "commit returned"}:
            spark.dataSource.register(PausingDataSource)
        writer = (
            rows(spark, config)
            .writeStream.format("wal_sink")
            .option("checkpointLocation", config["checkpoint"])
            .option("cassandra.contactPoints", "127.0.0.1")
            .option("cassandra.port", config["port"])
            .option("keyspace", config["keyspace"])
            .option("table", config["table"])
        )
        if config.get("epoch_column"):
            writer = writer.option("epochColumn", config["epoch_column"])
        if config.get("pause") in {"committed", "flushing"}:
            writer = writer.option("target", "tests.spark.app:PausingTarget")
        writer.trigger(availableNow=True).start().awaitTermination()


def session(**settings: object) -> SparkSession:
    """Make a small local session."""
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows(spark: SparkSession, config: dict[str, Any]) -> DataFrame:
    """Stream the source; each row gets a new key whenever it is computed."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    computed = source.parquet(config["source"]).selectExpr("uuid() AS key", "id", "text")
    return computed.where(config.get("where", "true"))


def control(spark: SparkSession, config: dict[str, Any]) -> None:
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
        pause_at(config, "commit returned", epoch)

    query = (
        rows(spark, config)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", config["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def pause_at(config: dict[str, Any], point: str, epoch: int) -> None:
    """At the configured point: say so, and wait to be killed."""
    if config.get("pause") == point and config["epoch"] == epoch:
        wait_for_death(config)


def wait_for_death(config: dict[str, Any]) -> NoReturn:
    """Write the marker; never come back."""
    Path(config["marker"]).write_text("here")
    time.sleep(600)
    raise AssertionError("nobody came to kill this process")


def own_config() -> dict[str, Any]:
    """Read the configuration in whatever process this is."""
    return dict(json.loads(Path(os.environ["WAL_SINK_TEST_CONFIG"]).read_text()))


class PausingDataSource(WalSinkDataSource):
    """The sink, stopping at a point of Spark's side."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return PausingWriter.of(super().streamWriter(schema, overwrite))


class PausingWriter(WalSinkStreamWriter):
    """See `PausingDataSource`."""

    @classmethod
    def of(cls, writer: DataSourceStreamArrowWriter) -> PausingWriter:
        assert isinstance(writer, WalSinkStreamWriter)
        return cls(writer._configuration, writer._plan)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Message:
        def slowly() -> Iterator[pa.RecordBatch]:
            for batch in iterator:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                pause_at(own_config(), "write", spark_internals.current_task().epoch)
                yield batch.slice(half)

        return super().write(slowly())

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pause_at(own_config(), "commit called", batchId)
        super().commit(messages, batchId)
        pause_at(own_config(), "commit returned", batchId)


class PausingTarget(CassandraTarget):
    """The target, stopping before or in the middle of an epoch's flush."""

    def connect(self, owner: Owner) -> Session:
        return PausingSession(super().connect(owner), Faults())


class PausingSession(FaultySession):
    """See `PausingTarget`."""

    def begin(self, window: Any) -> Any:
        pause_at(own_config(), "committed", window.first)
        return super().begin(window)

    def write(self, plan: Plan, rows: Slice) -> None:
        half = rows.batch.num_rows // 2
        first = Slice(rows.epoch, rows.batch.slice(0, half), rows.first_us)
        self.inner.write(plan, first)
        pause_at(own_config(), "flushing", rows.epoch)
        self.inner.write(plan, rows)


if __name__ == "__main__":
    os.environ["WAL_SINK_TEST_CONFIG"] = sys.argv[1]
    with contextlib.suppress(KeyboardInterrupt):
        main(own_config())
