"""Finds what keeps a column of the DataFrame, with all its parts, from a column of the table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from wal_sink.model import spark_types
from wal_sink.model.spark_types import (
    canonical,
    is_array,
    spark_ddl,
    spark_type,
)
from wal_sink.targets.cassandra.names import did_you_mean
from wal_sink.targets.cassandra.types.cql_for import CQL_FOR
from wal_sink.targets.cassandra.types.cql_type import CqlType
from wal_sink.targets.cassandra.types.mapping import NESTED, TYPES, WHOLE_DECIMAL, accepts


class Mismatch(NamedTuple):
    """A column, or a part of one, that cannot be written, and what to do."""

    path: str
    """The column, or the part of it, `address.zip`; an element as Spark calls it, `prices.element`."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} {self.remedy}"


def mismatches(column: str, source: pa.DataType, tree: CqlType) -> list[Mismatch]:
    """Return all that keeps a column of the Arrow type `source` from the CQL type `tree`."""
    source = canonical(source)
    cast = _wanted(source, tree)
    return [
        each
        if each.remedy
        else each._replace(remedy=_remedy(column, cast, spark_type(inner), part))
        for each, inner, part in _differences(column, source, tree)
    ]


def _remedy(column: str, cast: str | None, spark: str, part: str | None) -> str:
    if cast is None and part is not None:
        return f"Cast it to {part}, in the type to which the whole column is cast."
    if cast is None:
        return "Cast it to a supported type, or drop it from the DataFrame."
    cast_it = f'ast it, .withColumn("{column}", col("{column}").cast("{cast}"))'
    if spark == "timestamp_ntz":
        return f"Set spark.sql.session.timeZone to the zone of the readings, and c{cast_it}."
    if spark not in CQL_FOR:
        return f"C{cast_it}."
    an = "an" if CQL_FOR[spark] == "int" else "a"
    return f"C{cast_it}, or write to a table where it is {an} {CQL_FOR[spark]}."


_Differences: TypeAlias = Iterator[tuple[Mismatch, pa.DataType, str | None]]
"""Each mismatch with the type of its part, and the type to cast that to, in Spark's DDL; its remedy is empty
where a cast is one."""


def _differences(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    if tree.kind in TYPES:
        yield from _of_value(path, source, tree)
    elif tree.kind not in NESTED or (tree.kind == "vector" and tree.parts[0].kind != "float"):
        problem = f"the table's type {tree.label} is not supported yet."
        yield Mismatch(path, problem, _instead()), source, None
    elif not _SHAPES[tree.kind](source):
        yield _lossy(path, source, tree), source, _wanted(source, tree)
    elif tree.kind == "udt":
        yield from _of_user_type(path, source, tree)
    elif tree.kind == "tuple":
        yield from _of_tuple(path, source, tree)
    elif tree.kind == "map":
        yield from _differences(f"{path}.key", source.key_type, tree.parts[0])
        yield from _differences(f"{path}.value", source.item_type, tree.parts[1])
    else:
        yield from _differences(f"{path}.element", source.value_type, tree.parts[0])


_SHAPES: dict[str, Callable[[pa.DataType], bool]] = {
    "list": is_array,
    "set": is_array,
    "vector": is_array,
    "map": pa.types.is_map,
    "tuple": pa.types.is_struct,
    "udt": pa.types.is_struct,
}


def _lossy(path: str, source: pa.DataType, tree: CqlType) -> Mismatch:
    problem = f"{_printed(source)} does not fit the table's {tree.label} without loss."
    return Mismatch(path, problem, "")


def _of_value(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    if spark_type(source) == "timestamp_ntz" and tree.kind == "timestamp":
        problem = (
            "timestamp_ntz is a clock reading without a zone, the table's timestamp is an instant."
        )
        yield Mismatch(path, problem, ""), source, "timestamp"
    elif not accepts(tree.kind, source):
        yield _lossy(path, source, tree), source, _wanted(source, tree)


def _of_tuple(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    if source.num_fields != len(tree.parts):
        problem = (
            f"the struct has {source.num_fields} fields, the table's {tree.label} "
            f"{len(tree.parts)}; they go by position."
        )
        yield Mismatch(path, problem, "Make the struct with as many fields."), source, None
        return
    for field, part in zip(spark_types.fields(source), tree.parts, strict=True):
        yield from _differences(f"{path}.{field.name}", field.type, part)


def _of_user_type(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    parts = dict(zip(tree.fields, tree.parts, strict=True))
    fields = spark_types.fields(source)
    for name, count in Counter(field.name for field in fields).items():
        if count > 1:
            problem = f"the struct has {count} fields of this name."
            yield Mismatch(f"{path}.{name}", problem, "Rename all but one."), source, None
    for field in fields:
        inner = f"{path}.{field.name}"
        if field.name in parts:
            yield from _differences(inner, field.type, parts[field.name])
        else:
            nearest = did_you_mean(field.name, set(parts) - {each.name for each in fields})
            problem = f"the table's type {tree.name} has no such field. {nearest}".rstrip()
            yield Mismatch(inner, problem, "Rename or drop it."), source, None


def _wanted(source: pa.DataType, tree: CqlType) -> str | None:
    """Return the type to cast the column to, in Spark's DDL; None when no cast helps."""
    if tree.kind in TYPES:
        return _wanted_value(source, tree.kind)
    if tree.kind in ("list", "set", "vector") and is_array(source):
        element = _wanted(source.value_type, tree.parts[0])
        return element and f"array<{element}>"
    if tree.kind == "map" and pa.types.is_map(source):
        key = _wanted(source.key_type, tree.parts[0])
        value = _wanted(source.item_type, tree.parts[1])
        return f"map<{key},{value}>" if key and value else None
    if tree.kind in ("tuple", "udt") and pa.types.is_struct(source):
        return _wanted_struct(source, tree)
    return None


def _wanted_value(source: pa.DataType, cql: str) -> str | None:
    if accepts(cql, source):
        return spark_ddl(source)
    if spark_type(source) not in CQL_FOR and not pa.types.is_null(source):
        return None
    first = TYPES[cql].accepts[0]
    return {"decimal": "decimal(38,18)", WHOLE_DECIMAL: "decimal(38,0)"}.get(first, first)


def _wanted_struct(source: pa.DataType, tree: CqlType) -> str | None:
    fields = spark_types.fields(source)
    names = tree.fields or tuple(field.name for field in fields)
    parts = dict(zip(names, tree.parts, strict=False))
    named = []
    for field in fields:
        ddl = _wanted(field.type, parts[field.name]) if field.name in parts else None
        if ddl is None:
            return None
        named.append((field.name, ddl))
    return spark_types.struct_ddl(named)


def _printed(source: pa.DataType) -> str:
    spark, arrow = spark_type(source), str(canonical(source))
    nested = source.num_fields > 0
    return spark if spark == arrow or nested else f"{spark} (Arrow {arrow})"


def _instead() -> str:
    return (
        "Leave the column out of the DataFrame, or give the table one of the types "
        f"{', '.join(TYPES)}; list, set and map of them, tuples, user-defined types, vector<float, n>."
    )
