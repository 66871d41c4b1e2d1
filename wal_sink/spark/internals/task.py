"""Asks a task, or a thread of the driver, which micro-batch it works for."""

from __future__ import annotations

from collections.abc import Callable

from pyspark import TaskContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from wal_sink.errors import UnsupportedSpark
from wal_sink.model.task import Execution, Task
from wal_sink.spark.internals import names

_QUERY, _RUN, _EPOCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""Local properties of the thread that runs a query, and of its tasks."""


def current_task() -> Task:
    """Return the query, run, epoch and partition that the current task works for, as Spark tells it."""
    context = TaskContext.get()
    assert context is not None
    execution = _execution(context.getLocalProperty)
    if execution is None:
        raise UnsupportedSpark(
            f"Spark {spark_version} does not tell a task its query id, run id and batch id",
            f"Use a tested version of pyspark: {', '.join(names.TESTED)}.",
        )
    return Task(
        query_id=execution.query_id,
        run_id=execution.run_id,
        epoch=execution.epoch,
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
    )


def current_execution(spark: SparkSession) -> Execution | None:
    """Return the micro-batch that runs in this thread of the driver; None outside of `foreachBatch`."""
    return _execution(spark.sparkContext.getLocalProperty)


def _execution(local_property: Callable[[str], str | None]) -> Execution | None:
    query_id, run_id, epoch = map(local_property, (_QUERY, _RUN, _EPOCH))
    if query_id is None or run_id is None or epoch is None:
        return None
    return Execution(query_id, run_id, int(epoch))
