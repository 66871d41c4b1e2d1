"""The job of a contender on Spark, and its times, which are those of files in the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.rows import Source, files_per_trigger
from tests.benchmarks.run import Taken
from tests.benchmarks.table import Table


@dataclass(frozen=True)
class Stream:
    """A source that is streamed in several epochs."""

    spark: SparkSession
    source: Source
    epochs: int
    checkpoint: Path

    def rows(self) -> DataFrame:
        """Return the stream."""
        stream = self.spark.readStream.schema(self.source.schema)
        files = stream.option("maxFilesPerTrigger", files_per_trigger())
        return files.parquet(str(self.source.files(self.epochs)))

    def run(self, writer: DataStreamWriter) -> None:
        """Run a query to the end of the source."""
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()

    def began_s(self) -> float:
        """Return the time at which the first micro-batch was planned, in seconds since 1970."""
        return (self.checkpoint / "offsets" / "0").stat().st_mtime

    def committed_s(self) -> float:
        """Return the time at which the last micro-batch was completed, in seconds since 1970."""
        commits = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        if len(commits) != self.epochs:
            raise RuntimeError(f"{len(commits)} micro-batches instead of {self.epochs}")
        return max(path.stat().st_mtime for path in commits)


@dataclass(frozen=True)
class Job(Stream):
    """A source that is streamed into a table."""

    table: Table


class Contender(Protocol):
    """A way to stream rows into Cassandra."""

    name: str

    def prepare(self, job: Job) -> None:
        """Prepare the job; this is not measured."""
        ...

    def run(self, job: Job) -> Taken:
        """Run the job; return when all rows are written."""
        ...
