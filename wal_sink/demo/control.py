"""Writes the control: the same query with `foreachBatch`, as people write it today."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from pyspark.sql import DataFrame, Row

from wal_sink.demo.database import Client
from wal_sink.testing.crash import pause_at


def write_batch(batch: DataFrame, epoch: int, *, table: str, client: Client) -> None:
    """Send a micro-batch when it is computed; Spark writes `commits/<epoch>` after that."""
    batch.foreachPartition(partial(_write_rows, epoch=epoch, table=table, client=client))
    pause_at("commit returned", table, epoch)


def _write_rows(partition: Iterator[Row], *, epoch: int, table: str, client: Client) -> None:
    if rows := list(partition):
        client.insert(table, rows, partial(pause_at, "write", table, epoch))
