"""Finds the parts of a column whose types do not fit the table, and the remedy for each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from wal_sink.model.spark_types import canonical, is_array, spark_ddl, spark_type, struct_ddl
from wal_sink.model.spark_types import fields as fields_of
from wal_sink.targets.cassandra.types import CQL_FOR, NESTED, TYPES, WHOLE_DECIMAL, CqlType, accepts
from wal_sink.targets.columns import to_cast
from wal_sink.unknown_names import did_you_mean


class Mismatch(NamedTuple):
    """A column, or a part of a column, whose type does not fit."""

    path: str
    """The column or its part, such as "address.zip" or "prices.element"."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} {self.remedy}"


def mismatches(column: str, source: pa.DataType, tree: CqlType) -> list[Mismatch]:
    """Return the parts of a column that do not fit.

    :param source: the column's type in the DataFrame.
    :param tree: the column's type in the table.
    """
    source = canonical(source)
    cast = _wanted(source, tree)
    return [
        mismatch
        if mismatch.remedy
        else mismatch._replace(remedy=_remedy(column, cast, spark_type(inner), part))
        for mismatch, inner, part in _differences(column, source, tree)
    ]


def _remedy(column: str, cast: str | None, spark: str, part: str | None) -> str:
    if cast is None and part is not None:
        return f"Cast it to {part}, in the type to which the whole column is cast."
    if cast is None:
        return "Cast it to a supported type, or drop it from the DataFrame."
    cast_it = to_cast(column, cast)
    if spark == "timestamp_ntz":
        return f"Set spark.sql.session.timeZone to the zone of the readings. {cast_it}."
    if spark not in CQL_FOR:
        return f"{cast_it}."
    an = "an" if CQL_FOR[spark] == "int" else "a"
    return f"{cast_it}, or write to a table where it is {an} {CQL_FOR[spark]}."


_Differences: TypeAlias = Iterator[tuple[Mismatch, pa.DataType, str | None]]
"""Mismatches, each with the Arrow type of its part, and the Spark type to which the part has to be cast. The
Spark type is None if no cast helps. If a mismatch has an empty remedy, this cast is the remedy."""


def _differences(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    if tree.kind in TYPES:
        yield from _of_value(path, source, tree)
    elif tree.kind not in NESTED or (tree.kind == "vector" and tree.parts[0].kind != "float"):
        problem = f"the table's type {tree.label} is not supported yet."
        yield Mismatch(path, problem, _instead()), source, None
    elif not NESTED[tree.kind](source):
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
    for field, part in zip(fields_of(source), tree.parts, strict=True):
        yield from _differences(f"{path}.{field.name}", field.type, part)


def _of_user_type(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    parts = dict(zip(tree.fields, tree.parts, strict=True))
    fields = fields_of(source)
    for name, count in Counter(field.name for field in fields).items():
        if count > 1:
            problem = f"the struct has {count} fields of this name."
            yield Mismatch(f"{path}.{name}", problem, "Rename all but one."), source, None
    for field in fields:
        inner = f"{path}.{field.name}"
        if field.name in parts:
            yield from _differences(inner, field.type, parts[field.name])
        else:
            nearest = did_you_mean(field.name, set(parts) - {known.name for known in fields})
            problem = f"the table's type {tree.name} has no such field. {nearest}".rstrip()
            yield Mismatch(inner, problem, "Rename or drop it."), source, None


def _wanted(source: pa.DataType, tree: CqlType) -> str | None:
    """Return the Spark type to which a column has to be cast, such as "array<int>"; None if no cast helps."""
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
    fields = fields_of(source)
    names = tree.fields or tuple(field.name for field in fields)
    parts = dict(zip(names, tree.parts, strict=False))
    named = []
    for field in fields:
        ddl = _wanted(field.type, parts[field.name]) if field.name in parts else None
        if ddl is None:
            return None
        named.append((field.name, ddl))
    return struct_ddl(named)


def _printed(source: pa.DataType) -> str:
    spark, arrow = spark_type(source), str(canonical(source))
    nested = source.num_fields > 0
    return spark if spark == arrow or nested else f"{spark} (Arrow {arrow})"


def _instead() -> str:
    return (
        "Leave the column out of the DataFrame, or give the table one of the types "
        f"{', '.join(TYPES)}; list, set and map of them, tuples, user-defined types, vector<float, n>."
    )
