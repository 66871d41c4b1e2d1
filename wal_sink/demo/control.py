"""Writes the control: the same query with `foreachBatch`, as people write it today."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial

from cassandra.cluster import Cluster
from cassandra.concurrent import execute_concurrent_with_args
from pyspark.sql import DataFrame, Row

from wal_sink.demo.queries import KEYSPACE
from wal_sink.testing.crash.pausing import pause_at

_IN_FLIGHT = 100


def write_batch(batch: DataFrame, epoch: int, *, table: str, port: int) -> None:
    """Send a micro-batch when it is computed; Spark writes `commits/<epoch>` after that."""
    batch.foreachPartition(partial(_write_rows, epoch=epoch, table=table, port=port))
    pause_at("commit returned", table, epoch)


def _write_rows(partition: Iterator[Row], *, epoch: int, table: str, port: int) -> None:
    rows = [(uuid.UUID(key), *others) for key, *others in partition]
    cluster = Cluster(["127.0.0.1"], port)
    try:
        session = cluster.connect(KEYSPACE)
        insert = session.prepare(
            f"INSERT INTO {table} (key, origin, day, scheduled, carrier, flight)"  # noqa: S608
            " VALUES (?, ?, ?, ?, ?, ?)"
        )
        half = len(rows) // 2
        execute_concurrent_with_args(session, insert, rows[:half], _IN_FLIGHT)
        if rows:
            pause_at("write", table, epoch)
        execute_concurrent_with_args(session, insert, rows[half:], _IN_FLIGHT)
    finally:
        cluster.shutdown()
