"""A sink that only counts: what Spark needs to hand Arrow batches to Python, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from tests.benchmarks.contenders.job import Job
from tests.benchmarks.run import Taken

FORMAT = "wal_sink_bench_counting"


@dataclass
class Counted(WriterCommitMessage):
    """How many rows a task saw."""

    rows: int


class CountingWriter(DataSourceStreamArrowWriter):
    """Counts the rows of Arrow batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count a partition."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """See that every task has counted."""
        assert all(isinstance(message, Counted) for message in messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing is kept."""


class CountingSource(DataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> CountingWriter:  # noqa: N802
        """Return a writer."""
        return CountingWriter()


class Counting:
    """The floor of any Python sink; it writes nothing, so its table is not checked."""

    name = "counts only"

    def prepare(self, job: Job) -> None:
        """Give the session the format."""
        job.spark.dataSource.register(CountingSource)

    def run(self, job: Job) -> Taken:
        """Do the job."""
        job.run(job.rows().writeStream.format(FORMAT))
        return Taken(job.committed_s() - job.began_s())
