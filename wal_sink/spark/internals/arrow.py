"""Gives tasks rows as Arrow batches, and says in which schema they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which tasks get rows of `schema`, timestamps in UTC."""
    known = signature(to_arrow_schema).parameters
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {"timestamp_utc": True}
    return to_arrow_schema(schema, **in_utc)  # the second form is pyspark 4.1's


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
