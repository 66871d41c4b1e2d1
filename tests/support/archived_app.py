"""A Spark application for `class_archive`: it loads the classes that the tests' applications load."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from wal_sink.demo.local_spark import local_session


class Nothing(DataSource):
    """A sink that discards rows."""

    @classmethod
    def name(cls) -> str:
        return "nothing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        return Forgetting()


class Forgetting(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


def main() -> None:
    """Run three queries; end the JVM normally, since it writes the archive when it ends."""
    spark = local_session()
    spark.dataSource.register(Nothing)
    with tempfile.TemporaryDirectory() as folder:
        run(spark, folder)
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc
    spark.stop()
    jvm.stdin.close()
    jvm.wait()


def run(spark: SparkSession, folder: str) -> None:
    """Stream a file into a Python sink, through a stateful aggregation, and into a batch function."""
    rows = spark.range(10).selectExpr("id", "string(id) AS text", "now() AS at")
    rows.coalesce(1).write.parquet(f"{folder}/source")
    reader = spark.readStream.schema("id bigint, text string, at timestamp")
    source = reader.option("maxFilesPerTrigger", 1).parquet(f"{folder}/source")
    keyed = source.selectExpr("uuid() AS key", "id", "text")
    minutes = functions.window("at", "1 minute")
    counted = source.withWatermark("at", "30 seconds").groupBy(minutes, "id").count()
    for number, sunk in enumerate(
        (
            keyed.writeStream.format("nothing"),
            counted.writeStream.format("nothing"),
            keyed.writeStream.foreachBatch(collect),
        )
    ):
        writer = sunk.option("checkpointLocation", f"{folder}/checkpoint-{number}")
        writer.trigger(availableNow=True).start().awaitTermination()


def collect(batch: DataFrame, epoch: int) -> None:
    """Collect a batch, as the function of `foreachBatch`."""
    batch.collect()


if __name__ == "__main__":
    main()
