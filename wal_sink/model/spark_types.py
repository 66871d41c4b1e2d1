"""Spark's names of Arrow types. No I/O."""

from __future__ import annotations

import re

import pyarrow as pa

_PLAIN = {
    pa.string(): "string",
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.uint8(): "smallint",  # Spark has no unsigned types, so a larger signed type is used
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time64("ns"): "time",
    pa.duration("us"): "interval day to second",
    pa.binary(): "binary",
}


def canonical(source: pa.DataType) -> pa.DataType:  # noqa: PLR0911 -- a case each
    """Return one Arrow type for all types with the same values, whatever their layouts and names of parts."""
    if pa.types.is_dictionary(source):
        return canonical(source.value_type)
    if pa.types.is_large_string(source) or pa.types.is_string_view(source):
        return pa.string()
    if pa.types.is_large_binary(source) or pa.types.is_binary_view(source):
        return pa.binary()
    if pa.types.is_timestamp(source) and source.tz is not None:
        return pa.timestamp(source.unit, "UTC")
    if is_array(source):
        return pa.list_(canonical(source.value_type))
    if pa.types.is_map(source):
        return pa.map_(canonical(source.key_type), canonical(source.item_type))
    if pa.types.is_struct(source):
        return pa.struct([pa.field(field.name, canonical(field.type)) for field in fields(source)])
    return source


def is_array(source: pa.DataType) -> bool:
    """Return True if Spark reads the Arrow type as an array."""
    return bool(pa.types.is_list(source) or pa.types.is_large_list(source))


def is_text(source: pa.DataType) -> bool:
    """Return True if the type is a string in any Arrow layout."""
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return any(kind(source) for kind in kinds)


def is_blob(source: pa.DataType) -> bool:
    """Return True if the type is binary in any Arrow layout."""
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return any(kind(source) for kind in (*kinds, pa.types.is_fixed_size_binary))


def fields(source: pa.DataType) -> list[pa.Field]:
    """Return the fields of a struct."""
    return [source.field(i) for i in range(source.num_fields)]


def spark_type(source: pa.DataType) -> str:
    """Return Spark's name of an Arrow type, `decimal` for any decimal; Arrow's name if Spark has none."""
    source = canonical(source)
    if pa.types.is_decimal(source):
        return "decimal"
    if is_array(source) or pa.types.is_map(source) or pa.types.is_struct(source):
        return spark_ddl(source)
    if pa.types.is_timestamp(source):
        return "timestamp_ntz" if source.tz is None else "timestamp"
    if pa.types.is_fixed_size_binary(source):
        return "binary"
    return _PLAIN.get(source, str(source))


def spark_ddl(source: pa.DataType) -> str:
    """Return the type as Spark's `cast` accepts it."""
    source = canonical(source)
    if pa.types.is_decimal(source):
        return f"decimal({source.precision},{source.scale})"
    if is_array(source):
        return f"array<{spark_ddl(source.value_type)}>"
    if pa.types.is_map(source):
        return f"map<{spark_ddl(source.key_type)},{spark_ddl(source.item_type)}>"
    if pa.types.is_struct(source):
        inside = (f"{_quoted(field.name)}:{spark_ddl(field.type)}" for field in fields(source))
        return f"struct<{','.join(inside)}>"
    return spark_type(source)


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else f"`{name.replace('`', '``')}`"
