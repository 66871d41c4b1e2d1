"""What most people write: `foreachBatch`, `foreachPartition` and the driver's concurrent helper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from pyspark.sql import DataFrame, Row

from tests.benchmarks.contenders.job import Job
from tests.benchmarks.contenders.send_rows import send_rows
from tests.benchmarks.run import Taken


class Concurrent:
    """`execute_concurrent_with_args` with a session and a prepared statement cached in each worker."""

    name = "execute_concurrent"

    def prepare(self, job: Job) -> None:
        """Nothing to do."""

    def run(self, job: Job) -> Taken:
        """Do the job."""
        server = job.table.server
        send = partial(send_rows, server.host, server.port, job.table.insert)
        job.run(job.rows().writeStream.foreachBatch(_in_partitions(send)))
        return Taken(job.committed_s() - job.began_s())


def _in_partitions(send: Callable[[Iterable[Row]], None]) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, _epoch: int) -> None:
        batch.foreachPartition(send)

    return write
