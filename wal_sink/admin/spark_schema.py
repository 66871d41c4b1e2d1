"""Reads a DataFrame's schema without Spark: from Spark's DDL, or from a Parquet file.

It gives the Arrow types in which Spark hands rows to tasks: timestamps in UTC, in microseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.parquet as pq
import sqlglot
from sqlglot import exp

from wal_sink.errors import OptionError

_PLAIN: Mapping[exp.DType, pa.DataType] = {
    exp.DType.BOOLEAN: pa.bool_(),
    exp.DType.TINYINT: pa.int8(),
    exp.DType.SMALLINT: pa.int16(),
    exp.DType.INT: pa.int32(),
    exp.DType.BIGINT: pa.int64(),
    exp.DType.FLOAT: pa.float32(),
    exp.DType.DOUBLE: pa.float64(),
    exp.DType.TEXT: pa.string(),
    exp.DType.VARCHAR: pa.string(),
    exp.DType.CHAR: pa.string(),
    exp.DType.BINARY: pa.binary(),
    exp.DType.DATE: pa.date32(),
    exp.DType.TIMESTAMPTZ: pa.timestamp("us", "UTC"),  # sqlglot's word for Spark's TIMESTAMP
    exp.DType.TIMESTAMPNTZ: pa.timestamp("us"),
}
_DIGITS = (10, 0)
"""Of a DECIMAL without parameters, in Spark."""


def ddl_schema(text: str) -> pa.Schema:
    """Parse the columns of a Spark DDL string, such as `id BIGINT NOT NULL, tags ARRAY<STRING>`.

    :raises OptionError: the text is not such a string, or has a type that Spark does not hand to Python.
    """
    try:
        table = sqlglot.parse_one(f"CREATE TABLE t ({text})", read="spark")
    except sqlglot.errors.SqlglotError as error:
        raise _refused(text) from error
    columns = table.this.expressions if isinstance(table.this, exp.Schema) else ()
    if not columns or not all(isinstance(each, exp.ColumnDef) for each in columns):
        raise _refused(text)
    return pa.schema([_field(column) for column in columns])


def parquet_schema(path: str) -> pa.Schema:
    """Read the schema of a Parquet file, as Spark does.

    :raises OptionError: there is no such file, or it is not a Parquet file.
    """
    try:
        found = pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise OptionError(
            f"{path} cannot be read as a Parquet file: {error}", "Name one file, not a folder."
        ) from error
    return pa.schema(
        [pa.field(field.name, _as_spark(field.type), field.nullable) for field in found]
    )


def _field(column: exp.ColumnDef) -> pa.Field:
    required = any(
        isinstance(each.kind, exp.NotNullColumnConstraint) for each in column.constraints
    )
    if column.kind is None:
        raise _refused(column.sql("spark"))
    return pa.field(column.name, _type(column.kind), nullable=not required)


def _type(kind: exp.Expression) -> pa.DataType:
    of = kind.expressions
    match kind.this if isinstance(kind, exp.DataType) else None:
        case exp.DType.DECIMAL:
            digits = [int(each.name) for each in of] or [*_DIGITS]
            return pa.decimal128(digits[0], digits[1] if len(digits) > 1 else 0)
        case exp.DType.ARRAY if len(of) == 1:
            return pa.list_(pa.field("element", _type(of[0])))
        case exp.DType.MAP if len(of) == 2:
            return pa.map_(_type(of[0]), _type(of[1]))
        case exp.DType.STRUCT if of and all(isinstance(each, exp.ColumnDef) for each in of):
            return pa.struct([_field(each) for each in of])
        case exp.Interval() as interval if "YEAR" not in interval.sql().upper():
            return pa.duration("us")
        case exp.DType() as plain if plain in _PLAIN:
            return _PLAIN[plain]
    raise OptionError(
        f"--schema has the type {kind.sql('spark')}, which Spark does not hand to Python.",
        "Write the columns as Spark's SQL does: id BIGINT, at TIMESTAMP, tags ARRAY<STRING>,"
        " place STRUCT<x: INT, y: INT>.",
    )


def _as_spark(type_: pa.DataType) -> pa.DataType:
    """Return what Spark makes of a type that Arrow reads from Parquet."""
    found = next((read for wide, read in _WIDER if wide(type_)), type_)
    if pa.types.is_timestamp(type_):
        found = pa.timestamp("us", "UTC" if type_.tz else None)
    elif pa.types.is_dictionary(type_):
        found = _as_spark(type_.value_type)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        found = pa.list_(pa.field("element", _as_spark(type_.value_type)))
    elif pa.types.is_map(type_):
        found = pa.map_(_as_spark(type_.key_type), _as_spark(type_.item_type))
    elif pa.types.is_struct(type_):
        found = pa.struct([pa.field(f.name, _as_spark(f.type), f.nullable) for f in type_])
    return found


_WIDER: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_large_binary, pa.binary()),
    (pa.types.is_fixed_size_binary, pa.binary()),
    (pa.types.is_uint8, pa.int16()),
    (pa.types.is_uint16, pa.int32()),
    (pa.types.is_uint32, pa.int64()),
    (pa.types.is_uint64, pa.decimal128(20, 0)),
)
"""Types that Parquet has and Spark has not, and the ones in which Spark reads them."""


def _refused(text: str) -> OptionError:
    return OptionError(
        f"--schema is not a list of columns of Spark's DDL: {text!r}.",
        "Write it as df.schema.simpleString() has the types: id BIGINT NOT NULL, name STRING, price"
        " DECIMAL(10, 2).",
    )
