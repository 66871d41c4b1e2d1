"""Reads a DataFrame's schema without Spark: from the JSON that Spark writes of it, or from a Parquet file.

It gives the Arrow types in which Spark hands rows to tasks: timestamps in UTC, in microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from wal_sink.errors import OptionError

_PLAIN: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "varchar": pa.string(),
    "char": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
"""By Spark's names of types, without what stands in brackets."""

_SPARKS_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
"""The key under which Spark keeps its own schema in a Parquet file: INT96 has no time zone in Parquet's."""

_DECIMAL = re.compile(r"decimal\((\d+),(-?\d+)\)")
_DAY_TIME = re.compile(r"interval (day|hour|minute|second)\b")


def json_schema(given: str) -> pa.Schema:
    """Read a schema from the text of `df.schema.json()`.

    :param given: that text, or the name of a file with it.
    :raises OptionError: it is neither, or has a type that Spark does not hand to Python.
    """
    text = given
    if not given.lstrip().startswith("{"):
        try:
            text = Path(given).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise _refused(f"{given!r:.200} is neither JSON nor a file") from error
    try:
        found = json.loads(text)
        if found["type"] != "struct":
            raise _refused("it is not a struct")
        return pa.schema([_field(field) for field in found["fields"]])
    except KeyError as error:
        raise _refused(f"{error} is missing") from error
    except (ValueError, TypeError) as error:
        raise _refused(f"{error!s:.200}") from error


def parquet_schema(path: str) -> pa.Schema:
    """Read the schema of a Parquet file, as Spark does: as it wrote it itself, or as Parquet has it.

    :param path: of the file, or of a folder of such files, of which any is taken.
    :raises OptionError: there is no such file, or it is not a Parquet file.
    """
    try:
        found = pq.read_schema(next(Path(path).glob("*.parquet"), path))
    except (OSError, pa.ArrowInvalid) as error:
        raise OptionError(
            f"{path} cannot be read as a Parquet file: {error}",
            "Name a Parquet file, or a folder that holds some.",
        ) from error
    if (text := (found.metadata or {}).get(_SPARKS_SCHEMA)) is not None:
        return json_schema(text.decode())
    return pa.schema(
        [pa.field(field.name, _as_spark(field.type), field.nullable) for field in found]
    )


def _field(field: Mapping[str, Any]) -> pa.Field:
    return pa.field(field["name"], _type(field["type"]), nullable=bool(field["nullable"]))


def _type(kind: Any) -> pa.DataType:
    match kind:
        case {"type": "array", "elementType": element, "containsNull": nullable}:
            return pa.list_(pa.field("element", _type(element), nullable=bool(nullable)))
        case {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": nullable}:
            item = pa.field("value", _type(value), nullable=bool(nullable))
            return pa.map_(pa.field("key", _type(key), nullable=False), item)
        case {"type": "struct", "fields": fields}:
            return pa.struct([_field(each) for each in fields])
        case str() if found := _DECIMAL.fullmatch(kind):
            return pa.decimal128(int(found[1]), int(found[2]))
        case str() if _DAY_TIME.match(kind):
            return pa.duration("us")
        case str() if (name := kind.partition("(")[0].partition(" ")[0]) in _PLAIN:
            return _PLAIN[name]
    raise OptionError(
        f"The schema has the type {kind}, which Spark does not hand to Python.",
        "Cast the column in the query, or leave it out.",
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


def _refused(why: str) -> OptionError:
    return OptionError(
        f"--schema is not the JSON of a schema: {why}.",
        'Give the output of df.schema.json(), or a file with it: --schema schema.json, or --schema "$(cat'
        ' schema.json)".',
    )
