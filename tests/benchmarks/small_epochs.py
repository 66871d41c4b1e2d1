"""A stream of small epochs, one every half second, for figures of epochs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.rows import Totals
from tests.benchmarks.sizes import SMALL

DEVICES = 10
"""The partitions of an epoch; no two epochs share a partition."""

_SELECT = (
    f"concat(value div {SMALL}, '-', value % {DEVICES}) AS device",
    "value AS id",
    "timestamp AS at",
    "value * 7 AS amount",
    "repeat('x', 100) AS note",
)
_PATIENCE_S = 600
_LOOK_EVERY_S = 0.25
"""The time between two polls: each poll takes the interpreter's lock, for which the flusher waits."""


class MicroBatch(NamedTuple):
    """The progress that Spark reports of a micro-batch."""

    epoch: int
    began_s: float
    """The start, in seconds since 1970."""
    ms: float


def devices(epoch: int) -> list[str]:
    """Return the partitions of an epoch."""
    return [f"{epoch}-{number}" for number in range(DEVICES)]


def totals(epochs: int) -> Totals:
    """Return the totals of a table after that number of epochs."""
    rows = epochs * SMALL
    ids = rows * (rows - 1) // 2
    return Totals(rows, ids, ids * 7)


def rows(spark: SparkSession) -> DataFrame:
    """Return the stream."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", SMALL)
    return source.option("numPartitions", 2).load().selectExpr(*_SELECT)


@contextmanager
def running(writer: DataStreamWriter, checkpoint: Path, every_ms: int) -> Iterator[StreamingQuery]:
    """Run a query in the block; stop it between two micro-batches."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    query = writer.trigger(processingTime=f"{every_ms} milliseconds").start()
    try:
        yield query
        _wait(query, lambda: not query.status["isTriggerActive"], "come to a pause")
    finally:
        query.stop()


def await_epoch(query: StreamingQuery, epoch: int) -> None:
    """Wait until Spark reports that an epoch is completed."""

    def reached() -> bool:
        last = query.lastProgress
        return last is not None and last.batchId >= epoch

    _wait(query, reached, f"come to {epoch}")


def seen(query: StreamingQuery) -> list[MicroBatch]:
    """Return the micro-batches so far, without the first one, which warms up."""
    return [
        MicroBatch(
            progress.batchId,
            datetime.fromisoformat(progress.timestamp).timestamp(),
            progress.durationMs["triggerExecution"],
        )
        for progress in query.recentProgress
        if progress.numInputRows and progress.batchId > 0
    ]


def _wait(query: StreamingQuery, until: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not until():
        if (error := query.exception()) is not None:
            raise error
        if time.monotonic() > deadline:
            raise RuntimeError(f"the query did not {what} within {_PATIENCE_S} s")
        time.sleep(_LOOK_EVERY_S)
