"""The types of each database of the target `sql`, and the values that they accept. Pure.

Tasks import this module, so it does not import SQLAlchemy. docs/sql.md has the same types.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.targets.arrow_values import int64
from wal_sink.targets.sql.types import (
    COMMON,
    INTEGERS,
    LISTS,
    NEW_STANDARD,
    SqlType,
    Types,
    at_most,
    by_elements,
    parse,
    text_fits,
    time,
)

_COLLATION = re.compile(r" (character set|charset|collate) \S+")


def words_of(text: str) -> str:
    """Return a type as a plan has it: in lower case, without collation, and without blanks at brackets."""
    text = re.sub(r"\s*([(),])\s*", r"\1", _COLLATION.sub("", text.lower()))
    return text.replace(")", ") ").replace(" [", "[").strip()


def _unrounded(held_by: pa.DataType) -> Callable[[SqlType], pa.DataType | None]:
    """Return a function for `Types` that refuses MySQL's `float(7,4)` and `double(10,2)`, which round."""
    return lambda type_: held_by if type_.second is None else None


SQLITE_TYPES: Types = {
    **dict.fromkeys((*INTEGERS, "int", "tinyint"), pa.int64()),
    **dict.fromkeys(("varchar", "char", "text"), pa.string()),
    **dict.fromkeys(("real", "float", "double", "double precision"), pa.float64()),
    "blob": pa.binary(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    **dict.fromkeys(("datetime", "timestamp"), time(6)),
}
MYSQL_TYPES: Types = {
    **COMMON,
    "tinyint": pa.int8(),
    "mediumint": pa.int32(),
    "tinyint unsigned": pa.uint8(),
    "smallint unsigned": pa.uint16(),
    "mediumint unsigned": pa.uint32(),
    **dict.fromkeys(("integer unsigned", "int unsigned"), pa.uint32()),
    "bigint unsigned": pa.uint64(),
    "float": _unrounded(pa.float32()),
    **dict.fromkeys(("double", "double precision"), _unrounded(pa.float64())),
    **dict.fromkeys(("tinytext", "mediumtext", "longtext", "json"), pa.string()),
    **dict.fromkeys(
        ("tinyblob", "blob", "mediumblob", "longblob", "varbinary", "binary"), pa.binary()
    ),
    "datetime": time(0),
    "timestamp": time(0, "UTC"),
}
DUCKDB_TYPES: Types = {
    **COMMON,
    LISTS: None,
    "tinyint": pa.int8(),
    "utinyint": pa.uint8(),
    "usmallint": pa.uint16(),
    "uinteger": pa.uint32(),
    "ubigint": pa.uint64(),
    "hugeint": pa.decimal128(38, 0),
    "float": pa.float32(),
    "blob": pa.binary(),
    **dict.fromkeys(("uuid", "json"), pa.string()),
    "timestamp": time(6),
    "timestamp_s": time(0),
    "timestamp_ms": time(3),
    "timestamp with time zone": time(6, "UTC"),
}
GENERIC_TYPES: Types = {
    **COMMON,
    "real": pa.float32(),
    **dict.fromkeys(("blob", "bytea", "varbinary"), pa.binary()),
    **dict.fromkeys(("timestamp", "timestamp without time zone"), time(6)),
    "timestamp with time zone": time(6, "UTC"),
}
"""The types of standard SQL, for all other databases."""

OF_CHARSET = " of character set "
"""Stands in a type of MySQL before the name of a character set that does not hold every text."""

# --- new columns ---

NEW_SQLITE = {name: words for name, words in NEW_STANDARD.items() if name != "decimal"} | {
    "timestamp": "datetime",
    "timestamp_ntz": "datetime",
}
NEW_DUCKDB = {
    **NEW_STANDARD,
    "int8": "tinyint",
    "float": "float",
    "key": "varchar",
    "string": "varchar",
    LISTS: "{}[]",
}
NEW_MYSQL = {
    **NEW_STANDARD,
    "int8": "tinyint",
    "float": "float",
    "double": "double",
    "string": "longtext",
    "binary": "longblob",
    "timestamp": "datetime(6)",
    "timestamp_ntz": "datetime(6)",
}

# --- values ---

_BYTES = {
    "tinytext": 255,
    "text": 65_535,
    "mediumtext": 16_777_215,
    "tinyblob": 255,
    "blob": 65_535,
    "mediumblob": 16_777_215,
}
"""The most bytes of a value in MySQL and MariaDB."""
_TIMESTAMP_S = 1, 2_147_483_647
"""The first and last second since 1970 that MySQL's `timestamp` accepts."""
_MEDIUM = {"mediumint": (-(2**23), 2**23 - 1), "mediumint unsigned": (0, 2**24 - 1)}


def mysql_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: PLR0911 -- a case each
    """Return which values MySQL and MariaDB accept."""
    type_ = parse(words)
    if pt.is_floating(values.type):
        return pc.is_finite(values)
    if type_.base == "binary":  # the server pads shorter values
        return pc.equal(pc.binary_length(values).cast(pa.int64()), int64(type_.first or 1))
    if type_.base in _BYTES or pt.is_binary(values.type):
        most = _BYTES.get(type_.base, type_.first)
        return None if most is None else at_most(pc.binary_length(values), most)
    if pt.is_string(values.type):
        return _char_fits(type_, values)
    if (bounds := _MEDIUM.get(type_.base)) is not None:
        return _between(values.cast(pa.int64()), *bounds)
    if type_.base == "timestamp":
        seconds = pc.floor_temporal(values, unit="second").cast(pa.timestamp("s", "UTC"))
        return _between(seconds.cast(pa.int64()), *_TIMESTAMP_S)
    return None


def sqlite_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:  # noqa: ARG001 -- for every type
    """Return which values SQLite accepts. It would store NaN as null."""
    return pc.invert(pc.is_nan(values)) if pt.is_floating(values.type) else None


def duckdb_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values DuckDB accepts."""
    if words.endswith(LISTS):
        return by_elements(duckdb_fits, words, values)
    return text_fits(parse(words), values) if pt.is_string(values.type) else None


def standard_fits(words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values a type of standard SQL accepts. Some databases count its length in bytes."""
    type_ = parse(words)
    if pt.is_string(values.type):
        return _char_fits(type_, values, in_bytes=True)
    is_bounded = pt.is_binary(values.type) and type_.first is not None
    return text_fits(type_, values, in_bytes=True) if is_bounded else None


def _char_fits(
    type_: SqlType, values: pa.Array, *, in_bytes: bool = False
) -> pa.BooleanArray | None:
    """Return which texts fit; for a `char` only those without a blank at the end, which it would cut."""
    fits = text_fits(type_, values, in_bytes=in_bytes)
    if type_.base != "char":
        return fits
    without_blank = pc.invert(pc.ends_with(values, " "))
    return without_blank if fits is None else pc.and_(without_blank, fits)


def _between(values: pa.Array, first: int, last: int) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(values, int64(first)), pc.less_equal(values, int64(last)))


def driver_values(values: pa.Array, *, utc: bool, as_texts: bool) -> list[object]:
    """Return the values of a column for the driver's `executemany`.

    :param utc: True if instants have no time zone, as the connection's time zone is UTC.
    :param as_texts: True if dates and times are texts, in SQLAlchemy's form for SQLite.
    """
    if pt.is_timestamp(values.type) and utc:
        values = values.cast(pa.timestamp("us"))
    objects: list[Any] = values.to_pylist()
    if as_texts and pt.is_temporal(values.type):
        form = (" ", "microseconds") if pt.is_timestamp(values.type) else ()
        return [None if o is None else o.isoformat(*form) for o in objects]
    return objects
