"""Maps Spark's types to CQL types and to what the log holds: one table for plan, check and write.

docs/cassandra.md has the same table; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from wal_sink.model.spark_types import spark_type
from wal_sink.targets.cassandra.types import constraints
from wal_sink.targets.cassandra.types.constraints import Constraint
from wal_sink.targets.cassandra.types.scalar_casts import (
    as_float,
    as_is,
    as_milliseconds,
    as_nanoseconds,
    as_nanoseconds_of_day,
    as_number,
    as_text,
    cast_to,
)
from wal_sink.targets.values import uuids


class ScalarType(NamedTuple):
    """A CQL type without parts."""

    accepts: tuple[str, ...]
    """Spark types that fit without loss; the first is what to cast others to."""
    cast: Callable[[pa.Array], pa.Array]
    """From the DataFrame's column to what the log holds."""
    log: str
    """Arrow type in the log, in words."""
    constraints: tuple[Constraint, ...] = ()
    """The tasks refuse values that break one of them."""
    key_constraints: tuple[Constraint, ...] = ()
    """Beside these where two values that differ must not become one: in the primary key, and as a map's keys
    and a set's elements."""
    note: str = ""


WHOLE_DECIMAL = "decimal(p,0)"
"""A decimal without digits after the point."""

TYPES = {
    "ascii": ScalarType(
        ("string",), as_text, "string", constraints.ASCII, note="characters below 128, checked"
    ),
    "text": ScalarType(
        ("string",),
        as_text,
        "string",
        constraints.TEXT,
        note="`varchar` is the same; UTF-8, checked",
    ),
    "boolean": ScalarType(("boolean",), as_is, "bool"),
    "tinyint": ScalarType(("tinyint",), as_is, "int8"),
    "smallint": ScalarType(("smallint", "tinyint"), cast_to(pa.int16()), "int16"),
    "int": ScalarType(("int", "smallint", "tinyint"), cast_to(pa.int32()), "int32"),
    "bigint": ScalarType(("bigint", "int", "smallint", "tinyint"), cast_to(pa.int64()), "int64"),
    "varint": ScalarType(
        (WHOLE_DECIMAL, "bigint", "int", "smallint", "tinyint", "string"),
        as_number,
        "decimal of scale 0, or string",
        constraints.WHOLE,
        key_constraints=constraints.WHOLE_KEY,
        note="any number of digits from a string, checked",
    ),
    "float": ScalarType(("float",), as_float, "float", note="NaN and infinities as they are"),
    "double": ScalarType(
        ("double", "float"), cast_to(pa.float64()), "double", note="NaN and infinities as they are"
    ),
    "decimal": ScalarType(
        ("decimal", "bigint", "int", "smallint", "tinyint", "string"),
        as_number,
        "decimal, or string",
        constraints.DECIMAL,
        key_constraints=constraints.DECIMAL_KEY,
        note="the scale is kept: 1.50 is not 1.5 to a partition key; a string as `-1.50` or `1e400`, checked",
    ),
    "timestamp": ScalarType(
        ("timestamp",),
        as_milliseconds,
        "int64 milliseconds, UTC",
        key_constraints=constraints.MILLISECONDS,
        note="see below",
    ),
    "date": ScalarType(("date",), as_is, "date32"),
    "time": ScalarType(
        ("time", "string"),
        as_nanoseconds_of_day,
        "int64 nanoseconds of the day",
        constraints.TIME,
        note="from a string `HH:MM:SS[.nnnnnnnnn]`, checked",
    ),
    "duration": ScalarType(
        ("interval day to second",),
        as_nanoseconds,
        "int64 nanoseconds",
        constraints.DURATION,
        note="as nanoseconds, never days or months; ±292 years, checked",
    ),
    "uuid": ScalarType(
        ("string", "binary"),
        uuids.as_uuid,
        "16 bytes",
        constraints.UUID,
        note="8-4-4-4-12 digits, upper or lower case, or 16 bytes, checked",
    ),
    "timeuuid": ScalarType(
        ("string", "binary"),
        uuids.as_uuid,
        "16 bytes",
        constraints.TIMEUUID,
        note="as a uuid; version 1, checked",
    ),
    "inet": ScalarType(
        ("string",),
        as_text,
        "string",
        constraints.INET,
        note="IPv4 or IPv6, checked; no zone; `::ffff:192.0.2.1` is written as IPv4",
    ),
    "blob": ScalarType(("binary",), cast_to(pa.binary()), "binary"),
}


class NestedType(NamedTuple):
    """A CQL type with parts, each of them of one of the types here."""

    accepts: str
    log: str
    constraints: tuple[Constraint, ...] = ()
    """Of its elements, beside the constraints of their own type."""
    note: str = ""


NESTED = {
    "list": NestedType(
        "array",
        "list",
        constraints.NO_NULLS,
        "frozen or not, [lists](#lists); no null elements",
    ),
    "set": NestedType(
        "array",
        "list",
        constraints.NO_NULLS,
        "frozen or not; no null elements; duplicates become one",
    ),
    "map": NestedType("map", "map", constraints.NO_NULLS, "frozen or not; no null values"),
    "tuple": NestedType("struct", "struct", note="by position, as many fields; nulls allowed"),
    "udt": NestedType(
        "struct",
        "struct",
        note="by exact field name; nulls allowed; a field that the struct lacks is null",
    ),
    "vector": NestedType(
        "array",
        "list",
        constraints.NO_NULLS,
        "`vector<float, n>`; exactly n elements, no nulls, checked",
    ),
}


def accepts(cql: str, source: pa.DataType) -> bool:
    """Whether an Arrow type goes to the CQL type `cql`, one of `TYPES`, without loss."""
    spark = spark_type(source)
    if spark == "decimal" and source.scale == 0 and WHOLE_DECIMAL in TYPES[cql].accepts:
        return True
    return spark in TYPES[cql].accepts
