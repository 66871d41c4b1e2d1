"""Asks a task for whom it works, and Spark for the Arrow schema in which tasks get rows."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark import __version__ as spark_version
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from wal_sink.errors import UnsupportedSpark
from wal_sink.model.task import Task
from wal_sink.spark.internals import names


def current_task() -> Task:
    """Return the query, run, epoch and partition that the current task works for, as Spark tells it."""
    context = TaskContext.get()
    assert context is not None
    query_id = context.getLocalProperty("sql.streaming.queryId")
    run_id = context.getLocalProperty("spark.jobGroup.id")
    epoch = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or run_id is None or epoch is None:
        raise UnsupportedSpark(
            f"Spark {spark_version} does not tell a task its query id, run id and batch id",
            f"Use a tested version of pyspark: {', '.join(names.TESTED)}.",
        )
    return Task(
        query_id=query_id,
        run_id=run_id,
        epoch=int(epoch),
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which tasks get rows of `schema`, timestamps in UTC."""
    known = signature(to_arrow_schema).parameters
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {"timestamp_utc": True}
    return to_arrow_schema(schema, **in_utc)  # the second form is pyspark 4.1's
