"""Finds the parts of a column whose types do not fit the table, and the remedy for each part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pyarrow as pa

from wal_sink.model.spark_types import canonical, fields, spark_type
from wal_sink.targets.cassandra.types import CQL_FOR, NESTED, TYPES, WHOLE_DECIMAL, CqlType, accepts
from wal_sink.targets.columns import to_cast
from wal_sink.unknown_names import did_you_mean

_NO_CAST = "Cast it to a supported type, or drop it from the DataFrame."
_INSTEAD = (
    "Leave the column out of the DataFrame, or give the table one of the types "
    f"{', '.join(TYPES)}; list, set and map of them, tuples, user-defined types, vector<float, n>."
)


def mismatches(
    path: str, source: pa.DataType, tree: CqlType, *, is_part: bool = False
) -> Iterator[str]:
    """Yield a line with problem and remedy for each part of a column that does not fit.

    :param path: the column or its part, such as "address.zip" or "prices.element".
    :param source: the type of the column or the part in the DataFrame.
    :param tree: the type of the column or the part in the table.
    :param is_part: True for a part of a column.
    """
    source = canonical(source)
    if tree.kind in TYPES:
        if not accepts(tree.kind, source):
            yield f"{path}: {_about_value(path, source, tree, is_part=is_part)}"
    elif tree.kind not in NESTED or (tree.kind == "vector" and tree.parts[0].kind != "float"):
        yield f"{path}: the table's type {tree.label} is not supported yet. {_INSTEAD}"
    elif not NESTED[tree.kind](source):
        yield f"{path}: {_lossy(source, tree)} {_NO_CAST}"
    elif tree.kind == "tuple" and source.num_fields != len(tree.parts):
        yield (
            f"{path}: the struct has {source.num_fields} fields, the table's {tree.label}"
            f" {len(tree.parts)}; they go by position. Make the struct with as many fields."
        )
    else:
        if tree.kind == "udt":
            yield from _about_fields(path, source, tree)
        for name, part, part_tree in _parts(source, tree):
            yield from mismatches(f"{path}.{name}", part, part_tree, is_part=True)


def _parts(source: pa.DataType, tree: CqlType) -> Iterator[tuple[str, pa.DataType, CqlType]]:
    """Yield the parts that both types have: name, type in the DataFrame, and type in the table.

    :param tree: the table's type. Its parts are fields, elements, or keys and values.
    """
    match tree.kind:
        case "udt":
            by_name = dict(zip(tree.fields, tree.parts, strict=True))
            for field in fields(source):
                if field.name in by_name:
                    yield field.name, field.type, by_name[field.name]
        case "tuple":
            for field, part in zip(fields(source), tree.parts, strict=True):
                yield field.name, field.type, part
        case "map":
            yield "key", source.key_type, tree.parts[0]
            yield "value", source.item_type, tree.parts[1]
        case _:
            yield "element", source.value_type, tree.parts[0]


def _about_fields(path: str, source: pa.DataType, tree: CqlType) -> Iterator[str]:
    names = Counter(field.name for field in fields(source))
    for name, count in names.items():
        if count > 1:
            yield f"{path}.{name}: the struct has {count} fields of this name. Rename all but one."
        if name not in tree.fields:
            nearest = did_you_mean(name, {*tree.fields} - {*names})
            problem = f"the table's type {tree.name} has no such field. {nearest}".rstrip()
            yield f"{path}.{name}: {problem} Rename or drop it."


def _about_value(path: str, source: pa.DataType, tree: CqlType, *, is_part: bool) -> str:
    spark, ddl = spark_type(source), TYPES[tree.kind].accepts[0]
    if spark not in CQL_FOR and not pa.types.is_null(source):
        return f"{_lossy(source, tree)} {_NO_CAST}"
    ddl = {"decimal": "decimal(38,18)", WHOLE_DECIMAL: "decimal(38,0)"}.get(ddl, ddl)
    cast = f"Cast the column to a type in which {path} is {ddl}" if is_part else to_cast(path, ddl)
    if spark == "timestamp_ntz" and tree.kind == "timestamp":
        return (
            "timestamp_ntz is a clock reading without a zone, the table's timestamp is an instant."
            f" Set spark.sql.session.timeZone to the zone of the readings. {cast}."
        )
    if spark not in CQL_FOR:
        return f"{_lossy(source, tree)} {cast}."
    an = "an" if CQL_FOR[spark] == "int" else "a"
    return f"{_lossy(source, tree)} {cast}, or write to a table where it is {an} {CQL_FOR[spark]}."


def _lossy(source: pa.DataType, tree: CqlType) -> str:
    spark, arrow = spark_type(source), str(canonical(source))
    is_plain = spark == arrow or source.num_fields > 0
    printed = spark if is_plain else f"{spark} (Arrow {arrow})"
    return f"{printed} does not fit the table's {tree.label} without loss."
