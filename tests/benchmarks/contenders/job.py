"""What a contender on Spark is given, and how its time is read from the checkpoint."""

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
    """A source, and in how many epochs it is streamed."""

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
        """Run a query over all there is."""
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True)
        query.start().awaitTermination()

    def began_s(self) -> float:
        """When the first micro-batch was planned; seconds since 1970."""
        return (self.checkpoint / "offsets" / "0").stat().st_mtime

    def committed_s(self) -> float:
        """When the last micro-batch was checkpointed; seconds since 1970."""
        commits = [path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()]
        if len(commits) != self.epochs:
            raise RuntimeError(f"{len(commits)} micro-batches instead of {self.epochs}")
        return max(path.stat().st_mtime for path in commits)


@dataclass(frozen=True)
class Job(Stream):
    """Stream a source into a table."""

    table: Table


class Contender(Protocol):
    """A way to bring a stream into Cassandra."""

    name: str

    def prepare(self, job: Job) -> None:
        """Prepare what is not measured."""
        ...

    def run(self, job: Job) -> Taken:
        """Do the job; return when all is written."""
        ...
