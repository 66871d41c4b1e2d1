"""Finds undocumented classes of Spark, some of which moved between minor versions."""

from __future__ import annotations

import contextlib
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

TESTED = ("4.1.4", "4.3.0")

STREAM_EXECUTION = (  # moved between minor versions
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution",
    "org.apache.spark.sql.execution.streaming.StreamExecution",
)
STREAM_EXECUTION_METHODS = {
    *("resolvedCheckpointRoot", "sink", "logicalPlan", "sources", "state", "trigger"),
    *("lastProgress", "queryExecutionThread", "outputMode"),
}
MICRO_BATCH_EXECUTION, INITIALIZING, TERMINATED = (
    tuple(name.replace("StreamExecution", beside) for name in STREAM_EXECUTION)
    for beside in ("MicroBatchExecution", "INITIALIZING$", "TERMINATED$")
)
LISTENER_WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"
DATASET = ("org.apache.spark.sql.classic.Dataset",)
PYTHON_TABLE = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
FOREACH_BATCH_SINK = "org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink"


def find_class(jvm: Any, names: tuple[str, ...]) -> Any:
    """Return the first class that this version has; None when it has none of them."""
    for name in names:
        with contextlib.suppress(Py4JError):
            return jvm.java.lang.Class.forName(name)
    return None


def java(spark: SparkSession) -> Any:
    """Return the entrance to the JVM's classes."""
    return spark.sparkContext._jvm
