"""Undocumented names of Spark's Python workers: types of rows, the current task, and the end of the work."""

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

    :raises SchemaMismatch: Spark cannot pass values of a type to Python, or only Spark can read their bytes.
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
        if field is None or _only_spark_reads(field):
            raise SchemaMismatch(
                f"Column {column.name} is {column.dataType.simpleString()}, which Spark does not pass"
                " to Python unchanged.",
                "Convert it to a string in the query: a variant by F.to_json, other types by .cast. Or leave"
                " it out.",
            )
        fields.append(field)
    return pa.schema(fields)


_SPARKS_OWN = {b"variant", b"geometry", b"geography"}
"""Metadata keys. pyspark sends values of these types as structs, and marks the structs' fields by the key."""


def _only_spark_reads(field: pa.Field) -> bool:
    """Return True if a column, or a field in it, has bytes that only Spark can read."""
    parts = (field.type.field(i) for i in range(field.type.num_fields))
    marked = (field.metadata or {}).keys() & _SPARKS_OWN
    return bool(marked) or any(map(_only_spark_reads, parts))


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Return `rows.mapInArrow(function, schema)`, also without pandas on the driver.

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
        raise untested("gives tasks no query id, run id and batch id")
    return Task(execution, context.partitionId(), context.attemptNumber())


def finish_work() -> None:
    """Prepare a data source's worker for its end, which is then fast and sends no empty accumulators."""
    freeze_objects()
    drop_empty_accumulators()


@functools.cache
def freeze_objects() -> None:
    """Let later garbage collections skip all present objects; only the first call has an effect.

    pyspark's daemon calls `gc.collect()` after each piece of work. With the loaded modules of pyspark,
    pyarrow and this package, a collection takes 30 ms of CPU. A frozen object is freed when its last
    reference goes, but a frozen cycle of references stays until the worker ends.
    """
    gc.collect()
    gc.freeze()


def drop_empty_accumulators() -> None:
    """Drop the empty accumulators, so that the worker does not send them.

    Each worker has two accumulators for a profiler, and the server sends them to a Connect client. The client
    of a pipeline cannot read them, so `spark-pipelines run` ends with an error after a completed run (4.3.0).
    A worker that is profiled keeps its accumulators.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return
    registry = accumulators._accumulatorRegistry
    for key in [key for key, acc in registry.items() if key < 0 and not acc._value]:
        del registry[key]
