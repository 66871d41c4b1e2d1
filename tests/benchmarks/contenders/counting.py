"""A sink that only counts rows: the minimum that any Python sink costs."""

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
    """The number of rows of a task."""

    rows: int


class CountingWriter(DataSourceStreamArrowWriter):
    """Counts the rows of Arrow batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        """Count the rows of a partition."""
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Check that every task has counted."""
        assert all(isinstance(message, Counted) for message in messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Do nothing."""


class CountingSource(DataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> CountingWriter:  # noqa: N802
        return CountingWriter()


class Counting:
    """The contender; its table is not checked, since it writes no rows."""

    name = "counts only"

    def prepare(self, job: Job) -> None:
        """Register the format."""
        job.spark.dataSource.register(CountingSource)

    def run(self, job: Job) -> Taken:
        """Run the job."""
        job.run(job.rows().writeStream.format(FORMAT))
        return Taken(job.committed_s() - job.began_s())
