"""Undocumented names of DataFrame: the rows that tasks get, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from wal_sink.errors import SchemaMismatch


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
