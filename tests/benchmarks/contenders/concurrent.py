"""What most people write: `foreachBatch`, `foreachPartition` and the driver's concurrent helper."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

from pyspark.sql import DataFrame, Row

from tests.benchmarks.contenders.job import Job
from tests.benchmarks.run import Taken


class Concurrent:
    """`execute_concurrent_with_args` with a session and a prepared statement cached in each worker."""

    name = "execute_concurrent"

    def prepare(self, job: Job) -> None:
        """Nothing to do."""

    def run(self, job: Job) -> Taken:
        """Do the job."""
        server = job.table.server
        send = partial(_send, server.host, server.port, job.table.insert)
        job.run(job.rows().writeStream.foreachBatch(_in_partitions(send)))
        return Taken(job.committed_s() - job.began_s())


def _in_partitions(send: Callable[[Iterable[Row]], None]) -> Callable[[DataFrame, int], None]:
    def write(batch: DataFrame, _epoch: int) -> None:
        batch.foreachPartition(send)

    return write


def _send(host: str, port: int, insert: str, rows: Iterable[Row]) -> None:
    from cassandra.concurrent import execute_concurrent_with_args  # noqa: PLC0415 - in a worker

    session = _session(host, port)
    prepared = _prepared(session, insert)
    answers = execute_concurrent_with_args(
        session, prepared, rows, concurrency=100, results_generator=True
    )
    for _ in answers:  # raises what failed
        pass


@cache
def _session(host: str, port: int) -> Any:
    from cassandra.cluster import Cluster  # noqa: PLC0415 - in a worker

    return Cluster([host], port).connect()


@cache
def _prepared(session: Any, insert: str) -> Any:
    return session.prepare(insert)
