"""The CQL type that a new table would have for each of Spark's types."""

from __future__ import annotations

CQL_FOR = {
    "string": "text",
    "boolean": "boolean",
    "tinyint": "tinyint",
    "smallint": "smallint",
    "int": "int",
    "bigint": "bigint",
    "float": "float",
    "double": "double",
    "decimal": "decimal",
    "timestamp": "timestamp",
    "timestamp_ntz": "timestamp",
    "date": "date",
    "time": "time",
    "interval day to second": "duration",
    "binary": "blob",
}
"""For timestamp_ntz, after a cast. `ddl` composes nested types of these."""
