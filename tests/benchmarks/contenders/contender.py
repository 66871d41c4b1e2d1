"""A contender of the benchmark, the store that it writes to, and the stream that it writes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.rows import FILES_PER_EPOCH, Source
from wal_sink.demo.server import Child


class Contender(NamedTuple):
    """A way to stream rows into a new table or topic."""

    name: str
    writer: Callable[[DataFrame, Any], DataStreamWriter]
    """Returns a writer of a stream to the table or topic that `Store.make` returned."""
    flushes: bool = False
    """True for wal_sink: a run ends with its last flush, and otherwise with Spark's last commit."""
    writes: bool = True
    """False for a sink that writes no rows, whose table is not checked."""


class Store(NamedTuple):
    """A database in which each run gets a new table or topic."""

    title: str
    make: Callable[[], Any]
    """Makes a table or topic."""
    check: Callable[[Any, Source], None]
    """Compares a table or topic with its source; raises `RowsWrong` if they differ."""
    drop: Callable[[Any], object] = lambda _table: None
    server: Child | None = None


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
        files = stream.option("maxFilesPerTrigger", FILES_PER_EPOCH)
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
