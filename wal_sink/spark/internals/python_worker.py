"""Undocumented ways of Spark's Python workers: the rows, the task, and the end of the work."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import TaskContext, accumulators
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from wal_sink.errors import SchemaMismatch
from wal_sink.model.manifest import Task
from wal_sink.spark.internals.spark_session import untested
from wal_sink.spark.internals.streaming_query import execution_of


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the rows that tasks get, with timestamps in UTC.

    :raises SchemaMismatch: tasks do not get values of a type, or get them as bytes that only Spark reads.
    """
    parameters = signature(to_arrow_schema).parameters
    in_utc: dict[str, Any] = (
        {"timezone": "UTC"} if "timezone" in parameters else {"timestamp_utc": True}  # pyspark 4.1
    )
    fields = []
    for column in schema:
        try:
            (field,) = to_arrow_schema(StructType([column]), **in_utc)
        except PySparkTypeError:
            field = None
        if field is None or _of_spark_alone(field):
            raise SchemaMismatch(
                f"Column {column.name} is {column.dataType.simpleString()}, which Spark does not pass"
                " to Python unchanged.",
                "Convert it to a string in the query: a variant by F.to_json, others by .cast. Or leave it"
                " out.",
            )
        fields.append(field)
    return pa.schema(fields)


_SPARKS_OWN = {b"variant", b"geometry", b"geography"}
"""Metadata keys. pyspark sends a value of these types as a struct, and marks its fields with the key."""


def _of_spark_alone(field: pa.Field) -> bool:
    """Return True if a column has values, or parts of values, in a format that only Spark reads."""
    parts = (field.type.field(i) for i in range(field.type.num_fields))
    marked = (field.metadata or {}).keys() & _SPARKS_OWN
    return bool(marked) or any(map(_of_spark_alone, parts))


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Do what `rows.mapInArrow(function, schema)` does, without pandas on the driver.

    pyspark's own method raises an error if pandas is not installed, although it does not use pandas (4.3.0).
    """
    udf = UserDefinedFunction(
        function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    quoted = [name.replace("`", "``") for name in rows.columns]
    column: Any = udf(*(rows[f"`{name}`"] for name in quoted))
    mapped = rows._jdf.mapInArrow(column._jc, False, None)
    return DataFrame(mapped, rows.sparkSession)


def current_task() -> Task:
    """Return the query, run, epoch and partition of the current task."""
    context = TaskContext.get()
    assert context is not None
    execution = execution_of(context.getLocalProperty)
    if execution is None:
        raise untested("does not tell a task its query id, run id and batch id")
    return Task(execution, context.partitionId(), context.attemptNumber())


def finish_work() -> None:
    """Do what a worker of a data source has to do at the end of its work."""
    freeze_objects()
    drop_empty_accumulators()


@functools.cache
def freeze_objects() -> None:
    """Take every live object out of all later collections (`gc.freeze`); only the first call has an effect.

    A worker calls it at the end of its first work, when everything is imported. A frozen object is freed when
    its last reference goes. A frozen cycle stays forever: at most what was alive at that moment.
    """
    gc.collect()
    gc.freeze()


def drop_empty_accumulators() -> None:
    """Drop the accumulators that are empty, so that the worker does not send them.

    Each worker sends two for a profiler, and the server passes them on to a Connect client. The client of a
    pipeline does not know such an answer: `spark-pipelines run` ends with an error after a run that completed
    (4.3.0). A worker that is profiled keeps them.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return
    registry = accumulators._accumulatorRegistry
    for key in [key for key, acc in registry.items() if key < 0 and not acc._value]:
        del registry[key]
