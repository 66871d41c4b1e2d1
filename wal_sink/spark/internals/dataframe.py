"""Undocumented names of DataFrame: its rows as Arrow batches, in tasks, and how many bytes Spark expects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from inspect import signature
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD
from pyspark.errors import PySparkTypeError
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from wal_sink.errors import SchemaMismatch
from wal_sink.spark.internals.spark_session import OwnSession

Answer = Callable[[Iterator[pa.RecordBatch]], bytes]
"""Makes one answer of the batches of a partition."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which tasks get rows of `schema`, timestamps in UTC.

    :raises SchemaMismatch: Spark hands a type to no task, or as bytes that only Spark reads.
    """
    known = signature(to_arrow_schema).parameters
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {"timestamp_utc": True}
    fields = []
    for column in schema:
        try:
            (field,) = to_arrow_schema(
                StructType([column]), **in_utc
            )  # pyspark 4.1 has the second form
        except PySparkTypeError:
            field = None
        if field is None or _of_spark_alone(field):
            raise SchemaMismatch(
                f"Column {column.name} is {column.dataType.simpleString()}, which Spark does not hand to"
                " Python as it is.",
                "Make a text of it in the query, a variant by F.to_json, others by .cast; or leave it out.",
            )
        fields.append(field)
    return pa.schema(fields)


_SPARKS_OWN = {b"variant", b"geometry", b"geography"}
"""With one of these pyspark marks the parts of a struct that stands for a value of such a type."""


def _of_spark_alone(field: pa.Field) -> bool:
    """Return True if a column has values, or parts of them, that Spark hands on as bytes of its own."""
    parts = (field.type.field(i) for i in range(field.type.num_fields))
    marked = (field.metadata or {}).keys() & _SPARKS_OWN
    return bool(marked) or any(map(_of_spark_alone, parts))


def session_of(rows: DataFrame) -> OwnSession:
    """Return the configuration by which rows are planned: in `foreachBatch`, that of the query."""
    return OwnSession(rows._jdf.sparkSession().conf())


def expected_bytes(rows: DataFrame) -> int:
    """Return how many bytes rows have, as Spark expects: of files, those on the disk.

    Where Spark does not know, it is `spark.sql.defaultSizeInBytes`: by default, more than any rows have.
    """
    return int(str(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def answers_of(
    rows: DataFrame, answer: Answer, schema: pa.Schema, most_rows: int | None
) -> list[bytes]:
    """Run a Spark job in which each task makes an answer; return the answers in the partitions' order.

    :param schema: `arrow_schema` of the rows; where their bytes are bounded, times may come in another zone.
    :param most_rows: the only bound of a batch: then Spark neither plans nor compiles a query for the Python
        function, which takes it a second of CPU in a fresh session. None: its bytes are bounded as Spark is
        set (`mapInArrow`), as they are by a Spark that takes no such number.
    """
    encoded = None if most_rows is None else _encoded(rows, most_rows)
    if encoded is None:
        answers = map_in_arrow(rows, partial(_in_batch, answer), "answer binary").collect()
        return [bytes(row.answer) for row in answers]
    return encoded.mapPartitions(partial(_of_encoded, answer, schema)).collect()


def _encoded(rows: DataFrame, most_rows: int) -> RDD[bytes] | None:
    """Return the rows as Arrow's messages, without their schema, times in UTC; None where Spark cannot."""
    try:
        java = rows._jdf.toArrowBatchRdd(most_rows, "UTC", True, False).toJavaRDD()
    except Py4JJavaError:
        raise
    except Py4JError:
        return None
    return RDD(java, rows.sparkSession.sparkContext, NoOpSerializer())


def _in_batch(answer: Answer, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"answer": [answer(batches)]})


def _of_encoded(answer: Answer, schema: pa.Schema, encoded: Iterator[bytes]) -> Iterator[bytes]:
    yield answer(pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in encoded)


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Return what a function makes of each partition's batches, as `rows.mapInArrow(function, schema)`.

    That one wants pandas installed on the driver, and does not use it (4.3.0).
    """
    udf = UserDefinedFunction(
        function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    quoted = [name.replace("`", "``") for name in rows.columns]
    column: Any = udf(*(rows[f"`{name}`"] for name in quoted))
    mapped = rows._jdf.mapInArrow(column._jc, False, None)
    return DataFrame(mapped, rows.sparkSession)
