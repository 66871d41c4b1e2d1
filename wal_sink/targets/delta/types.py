"""Delta's types, as its log writes them in JSON: as Arrow types, as words of Spark's SQL. No I/O."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.types as pt

_ARROW = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SQL = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_DELTA = {type_: name for name, type_ in _ARROW.items()} | {
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")

Json = Any
"""A type of Delta's log: a name, or an object for a nested one."""


def to_text(type_: Json) -> str:
    """Return a type as a plan keeps it; equal types have equal texts."""
    return type_ if isinstance(type_, str) else msgspec.json.encode(type_).decode()


def from_text(text: str) -> Json:
    """Return what `to_text` was given."""
    return msgspec.json.decode(text) if text.startswith("{") else text


def to_arrow(type_: Json) -> pa.DataType | None:
    """Return the Arrow type of a type's values; None for one that is not written."""
    if isinstance(type_, str):
        if found := _DECIMAL.fullmatch(type_):
            return pa.decimal128(int(found[1]), int(found[2]))
        return _ARROW.get(type_)
    match type_["type"]:
        case "array":
            inner = to_arrow(type_["elementType"])
            return inner and pa.list_(pa.field("element", inner))
        case "map":
            key, value = to_arrow(type_["keyType"]), to_arrow(type_["valueType"])
            return key and value and pa.map_(key, value)
        case "struct":
            types = [(field["name"], to_arrow(field["type"])) for field in type_["fields"]]
            return pa.struct(types) if all(inner for _, inner in types) else None
    return None


def to_sql(type_: Json) -> str:
    """Return a type in words of Spark's SQL."""
    if isinstance(type_, str):
        return _SQL.get(type_, type_)
    match type_["type"]:
        case "array":
            return f"array<{to_sql(type_['elementType'])}>"
        case "map":
            return f"map<{to_sql(type_['keyType'])},{to_sql(type_['valueType'])}>"
    inner = ",".join(f"{field['name']}:{to_sql(field['type'])}" for field in type_["fields"])
    return f"struct<{inner}>"


def from_arrow(type_: pa.DataType) -> Json | None:
    """Return the type that holds an Arrow type of Spark's; None: Delta has none."""
    if pt.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pt.is_list(type_) or pt.is_large_list(type_):
        inner = from_arrow(type_.value_type)
        return inner and {"type": "array", "elementType": inner, "containsNull": True}
    if pt.is_map(type_):
        key, value = from_arrow(type_.key_type), from_arrow(type_.item_type)
        return (
            key
            and value
            and {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        )
    if pt.is_struct(type_):
        fields = [json_field(field) for field in type_]
        return {"type": "struct", "fields": fields} if all(f["type"] for f in fields) else None
    return _DELTA.get(type_)


def json_field(field: pa.Field) -> dict[str, Json]:
    """Return a column as a new table would have it."""
    type_ = from_arrow(field.type)
    return {"name": field.name, "type": type_, "nullable": True, "metadata": {}}


def holds(type_: pa.DataType, source: pa.DataType) -> bool:
    """Whether a cast from `source` keeps each value or refuses it, and never changes it."""
    for kind, rule in _RULES:
        if kind(type_) and kind(source):
            return rule(type_, source)
    return type_ == source or bool(pt.is_integer(source) and pt.is_float64(type_))


def _is_list(type_: pa.DataType) -> bool:
    return bool(pt.is_list(type_) or pt.is_large_list(type_))


def _is_text(type_: pa.DataType) -> bool:
    return bool(pt.is_string(type_) or pt.is_large_string(type_))


def _is_blob(type_: pa.DataType) -> bool:
    return bool(pt.is_binary(type_) or pt.is_large_binary(type_))


def _holds_struct(type_: pa.DataType, source: pa.DataType) -> bool:
    if [field.name for field in type_] != [field.name for field in source]:
        return False
    return all(holds(a.type, b.type) for a, b in zip(type_, source, strict=True))


def _always(type_: pa.DataType, source: pa.DataType) -> bool:  # noqa: ARG001 -- the cast refuses values
    return True


_Kind = Callable[[pa.DataType], bool]
_Rule = Callable[[pa.DataType, pa.DataType], bool]

_RULES: tuple[tuple[_Kind, _Rule], ...] = (
    (_is_list, lambda type_, source: holds(type_.value_type, source.value_type)),
    (pt.is_map, lambda type_, source: bool(type_ == source)),
    (pt.is_struct, _holds_struct),
    (pt.is_floating, lambda type_, source: bool(type_.bit_width >= source.bit_width)),
    (pt.is_timestamp, lambda type_, source: (type_.tz is None) == (source.tz is None)),
    *((kind, _always) for kind in (pt.is_integer, pt.is_decimal, _is_text, _is_blob)),
)
"""For two types of one kind, whether the first one holds the second."""
