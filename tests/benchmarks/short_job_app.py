"""A Spark application with one short job: `python -m tests.benchmarks.short_job_app CONFIG` prints its cost.

The imports of a sink count as a part of the job. Spark sends the counting sink by value, so that its workers
import nothing of this repository.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from functools import partial

import msgspec
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks import cpu
from tests.benchmarks.contenders import counting as counting_sink
from tests.benchmarks.contenders.send_rows import send_rows
from wal_sink.demo.local_spark import local_session


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A job."""

    api: str
    """A name in `APIS`."""
    files: str
    """A folder of Parquet files, two for each micro-batch."""
    schema: str
    """The columns, as a schema of Spark."""
    checkpoint: str
    options: dict[str, str]
    """The options of wal_sink, with the table."""
    insert: str
    """The statement of `foreachBatch`."""


class Taken(msgspec.Struct, frozen=True):
    """The cost of a job, without the start of the session."""

    seconds: float
    driver_s: float
    """The CPU time of this process."""
    jvm_s: float
    workers_s: float
    """The CPU time of all Python workers and their daemons."""

    @property
    def cpu_s(self) -> float:
        """The CPU time of all processes."""
        return self.driver_s + self.jvm_s + self.workers_s

    def __str__(self) -> str:
        return (
            f"{self.cpu_s:.1f} s: driver {self.driver_s:.1f}, JVM {self.jvm_s:.1f}, workers"
            f" {self.workers_s:.1f}"
        )


def counting(spark: SparkSession, writer: DataStreamWriter, _config: Config) -> None:
    """Run the job with a sink that only counts, which is the minimum of a Python sink."""
    cloudpickle.register_pickle_by_value(counting_sink)  # type: ignore[no-untyped-call]
    spark.dataSource.register(counting_sink.CountingSource)
    _to_the_end(writer.format(counting_sink.FORMAT).start())


def for_each_batch(_spark: SparkSession, writer: DataStreamWriter, config: Config) -> None:
    """Run the job with `foreachBatch`, `foreachPartition` and the driver's concurrent requests."""
    host, port = config.options["cassandra.contactPoints"], config.options["cassandra.port"]
    send = partial(send_rows, host, int(port), config.insert)

    def write(batch: DataFrame, _epoch: int) -> None:
        batch.foreachPartition(send)

    _to_the_end(writer.foreachBatch(write).start())


def ours(spark: SparkSession, writer: DataStreamWriter, config: Config) -> None:
    """Run the job with `format("wal_sink")`, until all rows are in the table."""
    import wal_sink  # noqa: PLC0415 -- counts

    with wal_sink.register(spark):
        _to_the_end(writer.format("wal_sink").options(**config.options).start())


def our_batch_writer(spark: SparkSession, writer: DataStreamWriter, config: Config) -> None:
    """Run the job with `wal_sink.batch_writer`, until all rows are in the table."""
    import wal_sink  # noqa: PLC0415 -- counts

    with wal_sink.register(spark, with_format=False):
        write = wal_sink.batch_writer(spark, checkpointLocation=config.checkpoint, **config.options)
        _to_the_end(writer.foreachBatch(write).start())


APIS: dict[str, Callable[[SparkSession, DataStreamWriter, Config], None]] = {
    "foreachBatch": for_each_batch,
    "counts only": counting,
    "wal_sink": ours,
    "wal_sink, batch_writer": our_batch_writer,
}


def main(config: Config) -> Taken:
    """Run the job in a new session."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = local_session()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc.pid
    began, previous = time.monotonic(), _used(jvm)
    rows = spark.readStream.schema(config.schema).option("maxFilesPerTrigger", 2)
    writer = rows.parquet(config.files).writeStream.trigger(availableNow=True)
    APIS[config.api](spark, writer.option("checkpointLocation", config.checkpoint), config)
    seconds, used = time.monotonic() - began, _used(jvm)
    spark.stop()
    return Taken(seconds, *(after - earlier for after, earlier in zip(used, previous, strict=True)))


def _used(jvm: int) -> tuple[float, float, float]:
    """Return the CPU seconds so far of this process, of the JVM, and of the workers."""
    own = cpu.of(jvm)
    return cpu.of(os.getpid()), own, cpu.of_tree(jvm) - own


def _to_the_end(query: StreamingQuery) -> None:
    query.awaitTermination()


if __name__ == "__main__":
    sys.stdout.write(
        msgspec.json.encode(main(msgspec.json.decode(sys.argv[1], type=Config))).decode()
    )
