"""wal_sink, by its public interface."""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from tests.benchmarks.contenders.job import Job, Stream
from tests.benchmarks.run import Taken
from tests.benchmarks.table import KEYSPACE, Table

DRAIN_S = 3_600


class Ours:
    """The contender, from the first offsets file to the mark of the last epoch."""

    name = "wal_sink"

    def prepare(self, job: Job) -> None:
        """Do nothing."""

    def run(self, job: Job) -> Taken:
        """Run the job."""
        return to_the_last_flush(job, writer(job.rows(), job.table))


def to_the_last_flush(job: Stream, writer: DataStreamWriter) -> Taken:
    """Run a query of the sink until all epochs are flushed."""
    with wal_sink.register(job.spark, drain_timeout=DRAIN_S):
        job.run(writer)
    flushed = wal_sink.status(str(job.checkpoint)).flushed_as_of
    assert flushed is not None, "left the block: everything is flushed"
    return Taken(datetime.fromisoformat(flushed).timestamp() - job.began_s())


def writer(rows: DataFrame, table: Table) -> DataStreamWriter:
    """Return a writer to the table, without checkpoint and trigger."""
    return rows.writeStream.format("wal_sink").options(**options(table))


def options(table: Table) -> dict[str, str]:
    """Return the options of the sink."""
    return {
        "cassandra.contactPoints": table.server.host,
        "cassandra.port": str(table.server.port),
        "keyspace": KEYSPACE,
        "table": table.name,
    }
