"""Which Spark type fits which CQL type, and what the log holds: one table for plan, check and write.

README.md prints it; see `types_table`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from wal_sink.targets.cassandra.types import scalar_casts, value_limits
from wal_sink.targets.cassandra.types.spark_types import spark_type
from wal_sink.targets.cassandra.types.value_limits import Rule


class CqlType(NamedTuple):
    """A CQL type that can be written, without parts."""

    accepts: tuple[str, ...]
    """Spark types that fit without loss; the first is what to cast others to."""
    store: Callable[[pa.Array], pa.Array]
    """From the DataFrame's column to what the log holds and `write` takes; see `storage`."""
    log: str
    """What the log holds, in words."""
    rules: tuple[Rule, ...] = ()
    """Which values the tasks refuse."""
    key_rules: tuple[Rule, ...] = ()
    """Which values they refuse where two that differ must not become one: in the primary key, and as a map's
    keys and a set's elements."""
    note: str = ""


WHOLE_DECIMAL = "decimal(p,0)"
"""A decimal without digits after the point."""

TYPES = {
    "ascii": CqlType(
        ("string",),
        scalar_casts.as_text,
        "string",
        value_limits.ASCII,
        note="characters below 128, checked",
    ),
    "text": CqlType(
        ("string",),
        scalar_casts.as_text,
        "string",
        value_limits.TEXT,
        note="`varchar` is the same; UTF-8, checked",
    ),
    "boolean": CqlType(("boolean",), scalar_casts.as_is, "bool"),
    "tinyint": CqlType(("tinyint",), scalar_casts.as_is, "int8"),
    "smallint": CqlType(("smallint", "tinyint"), scalar_casts.as_smallint, "int16"),
    "int": CqlType(("int", "smallint", "tinyint"), scalar_casts.as_int, "int32"),
    "bigint": CqlType(("bigint", "int", "smallint", "tinyint"), scalar_casts.as_bigint, "int64"),
    "varint": CqlType(
        (WHOLE_DECIMAL, "bigint", "int", "smallint", "tinyint"),
        scalar_casts.as_decimal,
        "decimal of scale 0",
    ),
    "float": CqlType(
        ("float",), scalar_casts.as_float, "float", note="NaN and infinities as they are"
    ),
    "double": CqlType(
        ("double", "float"), scalar_casts.as_double, "double", note="NaN and infinities as they are"
    ),
    "decimal": CqlType(
        ("decimal", "bigint", "int", "smallint", "tinyint"),
        scalar_casts.as_decimal,
        "decimal",
        note="the scale of Spark's type is kept: 1.50 is not 1.5 to a partition key",
    ),
    "timestamp": CqlType(
        ("timestamp",),
        scalar_casts.as_milliseconds,
        "int64 milliseconds, UTC",
        key_rules=value_limits.MILLISECONDS,
        note="see below",
    ),
    "date": CqlType(("date",), scalar_casts.as_is, "date32"),
    "time": CqlType(
        ("time", "string"),
        scalar_casts.as_nanoseconds_of_day,
        "int64 nanoseconds of the day",
        value_limits.TIME,
        note="from a string `HH:MM:SS[.nnnnnnnnn]`, checked",
    ),
    "duration": CqlType(
        ("interval day to second",),
        scalar_casts.as_nanoseconds,
        "int64 nanoseconds",
        value_limits.DURATION,
        note="as nanoseconds, never days or months; ±292 years, checked",
    ),
    "uuid": CqlType(
        ("string",),
        scalar_casts.as_uuid,
        "16 bytes",
        value_limits.UUID,
        note="8-4-4-4-12 digits, upper or lower case, checked",
    ),
    "timeuuid": CqlType(
        ("string",),
        scalar_casts.as_uuid,
        "16 bytes",
        value_limits.TIMEUUID,
        note="version 1, checked",
    ),
    "inet": CqlType(
        ("string",),
        scalar_casts.as_text,
        "string",
        value_limits.INET,
        note="IPv4 or IPv6, checked; no zone; `::ffff:192.0.2.1` is written as IPv4",
    ),
    "blob": CqlType(("binary",), scalar_casts.as_blob, "binary"),
}


class NestedType(NamedTuple):
    """A CQL type with parts, each of which is again of one of the types here."""

    accepts: str
    log: str
    rules: tuple[Rule, ...] = ()
    """Which values of a part the tasks refuse, beside the part's own rules."""
    note: str = ""


NESTED = {
    "list": NestedType(
        "array",
        "list",
        value_limits.NO_NULLS,
        "frozen only, `frozen<list<…>>`: see Rows; no null elements",
    ),
    "set": NestedType(
        "array",
        "list",
        value_limits.NO_NULLS,
        "frozen or not; no null elements; duplicates become one",
    ),
    "map": NestedType("map", "map", value_limits.NO_NULLS, "frozen or not; no null values"),
    "tuple": NestedType("struct", "struct", note="by position, as many fields; nulls allowed"),
    "udt": NestedType(
        "struct",
        "struct",
        note="by exact field name; nulls allowed; a field that the struct lacks is null",
    ),
    "vector": NestedType(
        "array",
        "list",
        value_limits.NO_NULLS,
        "`vector<float, n>`; exactly n elements, no nulls, checked",
    ),
}


def accepts(cql: str, source: pa.DataType) -> bool:
    """Whether an Arrow type goes to the CQL type `cql`, one of `TYPES`, without loss."""
    spark = spark_type(source)
    if spark == "decimal" and source.scale == 0 and WHOLE_DECIMAL in TYPES[cql].accepts:
        return True
    return spark in TYPES[cql].accepts
