"""Which column of a DataFrame fits which CQL type: one table, used by plan, check and write."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa

from wal_sink.targets.cassandra import storage


class CqlType(NamedTuple):
    """A CQL type that can be written."""

    accepts: tuple[str, ...]
    """Spark types that fit without loss; the first is what to cast others to."""
    store: Callable[[pa.Array], pa.Array]
    """From the DataFrame's column to what the log holds and `write` takes; see `storage`."""


TYPES = {
    "text": CqlType(("string",), storage.as_text),
    "boolean": CqlType(("boolean",), storage.as_is),
    "int": CqlType(("int", "smallint", "tinyint"), storage.as_int),
    "bigint": CqlType(("bigint", "int", "smallint", "tinyint"), storage.as_bigint),
    "double": CqlType(("double", "float"), storage.as_double),
    "decimal": CqlType(("decimal", "bigint", "int", "smallint", "tinyint"), storage.as_decimal),
    "timestamp": CqlType(("timestamp",), storage.as_milliseconds),
    "date": CqlType(("date",), storage.as_is),
    "uuid": CqlType(("string",), storage.as_uuid),
    "blob": CqlType(("binary",), storage.as_blob),
}

CQL_FOR = {
    "string": "text",
    "boolean": "boolean",
    "tinyint": "int",
    "smallint": "int",
    "int": "int",
    "bigint": "bigint",
    "float": "double",
    "double": "double",
    "decimal": "decimal",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "date": "date",
    "binary": "blob",
}
"""The CQL type that a new table would have for a Spark type; timestamp_ntz after a cast."""

_PLAIN = {
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.date32(): "date",
    pa.binary(): "binary",
}


class Misfit(NamedTuple):
    """Why a column cannot be written, and what to do; two sentences."""

    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.problem} {self.remedy}"


def canonical(source: pa.DataType) -> pa.DataType:
    """Return the type that means the same, whatever way Arrow lays it out and names its zone."""
    if pa.types.is_dictionary(source):
        return canonical(source.value_type)
    if pa.types.is_large_string(source) or pa.types.is_string_view(source):
        return pa.string()
    if pa.types.is_large_binary(source) or pa.types.is_binary_view(source):
        return pa.binary()
    if pa.types.is_timestamp(source) and source.tz is not None:
        return pa.timestamp(source.unit, "UTC")
    return source


def spark_type(source: pa.DataType) -> str:
    """Return Spark's word for an Arrow type; Arrow's own for what Spark does not send."""
    source = canonical(source)
    if pa.types.is_decimal(source):
        return "decimal"
    return _PLAIN.get(source, str(source))


def misfit(column: str, source: pa.DataType, cql: str) -> Misfit | None:
    """Say why a column of the Arrow type `source` cannot go to the CQL type `cql`; None: it can."""
    if cql not in TYPES:
        return Misfit(f"the table's type {cql} is not supported yet.", _instead_of(cql))
    accepts = TYPES[cql].accepts
    spark = spark_type(source)
    if spark in accepts:
        return None
    if spark == "timestamp_ntz" and cql == "timestamp":
        return Misfit(
            "timestamp_ntz is a clock reading without a zone, the table's timestamp is an instant.",
            "Set spark.sql.session.timeZone to the zone of the readings, and cast it, "
            f'.withColumn("{column}", col("{column}").cast("timestamp")).',
        )
    problem = f"{_printed(source)} does not fit the table's {cql} without loss."
    if spark not in CQL_FOR:
        return Misfit(problem, "Cast it to a supported type, or drop it from the DataFrame.")
    wanted = "decimal(38,18)" if accepts[0] == "decimal" else accepts[0]
    return Misfit(
        problem,
        f'Cast it, .withColumn("{column}", col("{column}").cast("{wanted}")), or write to a table '
        f"where it is a {CQL_FOR[spark]}.",
    )


def _printed(source: pa.DataType) -> str:
    spark = spark_type(source)
    arrow = str(canonical(source))
    return spark if spark == arrow else f"{spark} (Arrow {arrow})"


def _instead_of(cql: str) -> str:
    leave = "Leave the column out of the DataFrame, or give the table one of the types " + (
        ", ".join(TYPES) + "."
    )
    if cql.startswith(("list<", "set<", "map<")):
        return (
            "A collection that is not frozen cannot be replayed safely either (a list doubles its "
            f"elements): it will have to be frozen<{cql}>. {leave}"
        )
    return leave
