"""A sink that only counts rows: the minimum that any Python sink costs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from tests.benchmarks.contenders.contender import Contender

FORMAT = "wal_sink_bench_counting"


@dataclass
class Counted(WriterCommitMessage):
    """The number of rows of a task."""

    rows: int


class CountingWriter(DataSourceStreamArrowWriter):
    """Counts the rows of Arrow batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Counted:
        return Counted(sum(batch.num_rows for batch in iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        assert all(isinstance(message, Counted) for message in messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        pass


class CountingSource(DataSource):
    """The format."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: StructType, overwrite: bool) -> CountingWriter:  # noqa: N802
        return CountingWriter()


def writer(rows: DataFrame, _table: object = None) -> DataStreamWriter:
    """Return a writer that counts."""
    rows.sparkSession.dataSource.register(CountingSource)
    return rows.writeStream.format(FORMAT)


COUNTING = Contender("counts only", writer, writes=False)
