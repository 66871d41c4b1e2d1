"""wal_sink, through its public interface."""

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
    """The whole way: from the first offsets file to the record that the last epoch is flushed."""

    name = "wal_sink"

    def prepare(self, job: Job) -> None:
        """Nothing to do."""

    def run(self, job: Job) -> Taken:
        """Do the job."""
        return to_the_last_flush(job, writer(job.rows(), job.table))


def to_the_last_flush(job: Stream, writer: DataStreamWriter) -> Taken:
    """Run a query of the sink until everything is flushed."""
    with wal_sink.register(job.spark, drain_timeout=DRAIN_S):
        job.run(writer)
    flushed = wal_sink.status(str(job.checkpoint)).flushed_as_of
    assert flushed is not None, "left the block: everything is flushed"
    return Taken(datetime.fromisoformat(flushed).timestamp() - job.began_s())


def writer(rows: DataFrame, table: Table) -> DataStreamWriter:
    """Return a writer into the table, without checkpoint and trigger."""
    return rows.writeStream.format("wal_sink").options(**options(table))


def options(table: Table) -> dict[str, str]:
    """Return the sink's options."""
    return {
        "cassandra.contactPoints": table.server.host,
        "cassandra.port": str(table.server.port),
        "keyspace": KEYSPACE,
        "table": table.name,
    }
