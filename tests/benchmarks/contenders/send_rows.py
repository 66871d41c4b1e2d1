"""The function of `foreachPartition` that most people write; it imports the driver only in the worker."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any


def send_rows(host: str, port: int, insert: str, rows: Iterable[Any]) -> None:
    """Send rows by the driver's concurrent requests; each worker caches session and statement."""
    from cassandra.concurrent import execute_concurrent_with_args  # noqa: PLC0415 - in a worker

    session = _session(host, port)
    prepared = _prepared(session, insert)
    answers = execute_concurrent_with_args(
        session, prepared, rows, concurrency=100, results_generator=True
    )
    for _ in answers:  # the iteration raises the error of a failed request
        pass


@cache
def _session(host: str, port: int) -> Any:
    from cassandra.cluster import Cluster  # noqa: PLC0415 - in a worker

    return Cluster([host], port).connect()


@cache
def _prepared(session: Any, insert: str) -> Any:
    return session.prepare(insert)
