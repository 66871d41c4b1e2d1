"""The types of Spark and CQL, in one table for plan, check and write; docs/cassandra.md explains it.

CQL types are trees, parsed from the text that `system_schema` has. A column of the DataFrame, with all its
parts, is compared with one of the table when a query starts, and cast to what the log holds in the tasks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from wal_sink.model import plan
from wal_sink.model.plan import canonical, is_array, spark_ddl, spark_type
from wal_sink.targets import text_formats
from wal_sink.targets.cassandra import casts
from wal_sink.targets.cassandra.arrow_buffers import unnest
from wal_sink.targets.cassandra.casts import (
    Constraint,
    as_float,
    as_is,
    as_milliseconds,
    as_nanoseconds,
    as_nanoseconds_of_day,
    as_number,
    as_text,
    cast_to,
)
from wal_sink.targets.cassandra.row_plan import CassandraPlan
from wal_sink.text import did_you_mean


class ScalarType(NamedTuple):
    """A CQL type without parts."""

    accepts: tuple[str, ...]
    """Spark types that fit without loss; the first is what to cast others to."""
    cast: Callable[[pa.Array], pa.Array]
    """From the DataFrame's column to what the log holds."""
    constraint: Constraint | None = None
    """The tasks refuse values that break it."""
    key_constraint: Constraint | None = None
    """A further constraint where two values that differ must not become one: in the primary key, and as a
    map's keys and a set's elements."""


WHOLE_DECIMAL = "decimal(p,0)"
"""A decimal without digits after the point."""

TYPES = {
    "ascii": ScalarType(("string",), as_text, casts.ASCII),
    "text": ScalarType(("string",), as_text),
    "boolean": ScalarType(("boolean",), as_is),
    "tinyint": ScalarType(("tinyint",), as_is),
    "smallint": ScalarType(("smallint", "tinyint"), cast_to(pa.int16())),
    "int": ScalarType(("int", "smallint", "tinyint"), cast_to(pa.int32())),
    "bigint": ScalarType(("bigint", "int", "smallint", "tinyint"), cast_to(pa.int64())),
    "varint": ScalarType(
        (WHOLE_DECIMAL, "bigint", "int", "smallint", "tinyint", "string"),
        as_number,
        casts.WHOLE,
        casts.WHOLE_KEY,
    ),
    "float": ScalarType(("float",), as_float),
    "double": ScalarType(("double", "float"), cast_to(pa.float64())),
    "decimal": ScalarType(
        ("decimal", "bigint", "int", "smallint", "tinyint", "string"),
        as_number,
        casts.DECIMAL,
        casts.DECIMAL_KEY,
    ),
    "timestamp": ScalarType(("timestamp",), as_milliseconds, None, casts.MILLISECONDS),
    "date": ScalarType(("date",), as_is),
    "time": ScalarType(("time", "string"), as_nanoseconds_of_day, casts.TIME),
    "duration": ScalarType(("interval day to second",), as_nanoseconds, casts.DURATION),
    "uuid": ScalarType(("string", "binary"), text_formats.as_uuid, casts.UUID),
    "timeuuid": ScalarType(("string", "binary"), text_formats.as_uuid, casts.TIMEUUID),
    "inet": ScalarType(("string",), as_text, casts.INET),
    "blob": ScalarType(("binary",), cast_to(pa.binary())),
}


NESTED: dict[str, Callable[[pa.DataType], bool]] = {
    "list": is_array,
    "set": is_array,
    "map": pa.types.is_map,
    "tuple": pa.types.is_struct,
    "udt": pa.types.is_struct,
    "vector": is_array,
}
"""For each CQL type with parts, what returns True for an Arrow type that has such parts."""


def accepts(cql: str, source: pa.DataType) -> bool:
    """Return True if an Arrow type goes to the CQL type `cql`, one of `TYPES`, without loss."""
    spark = spark_type(source)
    if spark == "decimal" and source.scale == 0 and WHOLE_DECIMAL in TYPES[cql].accepts:
        return True
    return spark in TYPES[cql].accepts


UserTypes = Mapping[str, Sequence[tuple[str, str]]]
"""User-defined types by name: the names and types of their fields, in order."""

_WORD = re.compile(r'\s*("(?:[^"]|"")*"|[^<>,"\s]+)\s*(?:<(.+)>)?\s*', re.DOTALL)
_PART = re.compile(r'"(?:[^"]|"")*"|[<>,]')


class CqlType(NamedTuple):
    """A CQL type, and the types of its parts."""

    kind: str
    """A name in `TYPES` or `NESTED`; any other cannot be written."""
    label: str
    """As the server prints it."""
    frozen: bool
    """True for a type that is written as one value, as is all that is inside of another type."""
    parts: tuple[CqlType, ...] = ()
    """The types of the element, of key and value, or of the fields."""
    name: str = ""
    """Name of a user-defined type, unquoted."""
    fields: tuple[str, ...] = ()
    """Names of its fields, unquoted."""
    length: int = 0
    """Number of elements of a vector."""


def parse(text: str, types: UserTypes, *, frozen: bool = False) -> CqlType:
    """Parse a type; one that is not understood gets its text as its kind."""
    unknown = CqlType(kind=text, label=text, frozen=frozen)
    match = _WORD.fullmatch(text)
    if match is None:
        return unknown
    word, inside = match[1], match[2]
    if inside is None:
        return _named(word, types, unknown)
    if word == "frozen":
        return parse(inside, types, frozen=True)._replace(label=text)
    return _with_parts(word, _split(inside), types, unknown)


def _with_parts(word: str, arguments: list[str], types: UserTypes, unknown: CqlType) -> CqlType:
    length = 0
    if word == "vector" and len(arguments) == 2 and arguments[1].isdecimal():
        length = int(arguments.pop())
    counts = {"list": 1, "set": 1, "map": 2, "tuple": len(arguments), "vector": 1 if length else 0}
    if counts.get(word) != len(arguments):
        return unknown
    parts = tuple(parse(argument, types, frozen=True) for argument in arguments)
    frozen = unknown.frozen or word in ("tuple", "vector")
    return unknown._replace(kind=word, frozen=frozen, parts=parts, length=length)


def _named(word: str, types: UserTypes, unknown: CqlType) -> CqlType:
    name = word[1:-1].replace('""', '"') if word.startswith('"') else word
    if word in TYPES:
        return unknown._replace(kind=word)
    if name not in types or word in NESTED:
        return unknown
    return unknown._replace(
        kind="udt",
        name=name,
        parts=tuple(parse(cql, types, frozen=True) for _, cql in types[name]),
        fields=tuple(field for field, _ in types[name]),
    )


def _split(inside: str) -> list[str]:
    """Split at the commas outside of brackets and quoted names."""
    depth, begin, arguments = 0, 0, []
    for match in _PART.finditer(inside):
        if match[0] == "," and depth == 0:
            arguments.append(inside[begin : match.start()].strip())
            begin = match.end()
        depth += {"<": 1, ">": -1}.get(match[0], 0)
    return [*arguments, inside[begin:].strip()]


def user_type_names(tree: CqlType) -> Iterator[str]:
    """Yield the name of each user-defined type in a tree, as often as it is there."""
    if tree.kind == "udt":
        yield tree.name
    for part in tree.parts:
        yield from user_type_names(part)


def has_lists(plan: CassandraPlan) -> bool:
    """Return True if a column is a list that is not frozen: each write gets elements of its own."""
    return any(tree.kind == "list" and not tree.frozen for tree in column_types(plan))


def column_types(plan: CassandraPlan) -> tuple[CqlType, ...]:
    """Return the types of the values that a plan's columns take, in order."""
    types = tuple(plan.details.types.items())
    return tuple(_planned(column.type, types) for column in plan.columns)


@lru_cache(maxsize=1024)
def _planned(text: str, types: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]) -> CqlType:
    return parse(text, dict(types))


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
"""The CQL type for each Spark type, for timestamp_ntz after a cast. `ddl` composes nested types of these."""


class Mismatch(NamedTuple):
    """A column, or a part of one, that cannot be written, and what to do."""

    path: str
    """The column, or the part of it: `address.zip`; an element as Spark calls it: `prices.element`."""
    problem: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}: {self.problem} {self.remedy}"


def mismatches(column: str, source: pa.DataType, tree: CqlType) -> list[Mismatch]:
    """Return all that keeps a column of the Arrow type `source` from the CQL type `tree`."""
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
    cast_it = f'ast it, .withColumn("{column}", F.col("{column}").cast("{cast}"))'
    if spark == "timestamp_ntz":
        return f"Set spark.sql.session.timeZone to the zone of the readings, and c{cast_it}."
    if spark not in CQL_FOR:
        return f"C{cast_it}."
    an = "an" if CQL_FOR[spark] == "int" else "a"
    return f"C{cast_it}, or write to a table where it is {an} {CQL_FOR[spark]}."


_Differences: TypeAlias = Iterator[tuple[Mismatch, pa.DataType, str | None]]
"""Tuples of a mismatch, the Arrow type of its part, and the type to cast that to in Spark's DDL. The mismatch
has no remedy where the cast is the remedy."""


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
    for field, part in zip(plan.fields(source), tree.parts, strict=True):
        yield from _differences(f"{path}.{field.name}", field.type, part)


def _of_user_type(path: str, source: pa.DataType, tree: CqlType) -> _Differences:
    parts = dict(zip(tree.fields, tree.parts, strict=True))
    fields = plan.fields(source)
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
    fields = plan.fields(source)
    names = tree.fields or tuple(field.name for field in fields)
    parts = dict(zip(names, tree.parts, strict=False))
    named = []
    for field in fields:
        ddl = _wanted(field.type, parts[field.name]) if field.name in parts else None
        if ddl is None:
            return None
        named.append((field.name, ddl))
    return plan.struct_ddl(named)


def _printed(source: pa.DataType) -> str:
    spark, arrow = spark_type(source), str(canonical(source))
    nested = source.num_fields > 0
    return spark if spark == arrow or nested else f"{spark} (Arrow {arrow})"


def _instead() -> str:
    return (
        "Leave the column out of the DataFrame, or give the table one of the types "
        f"{', '.join(TYPES)}; list, set and map of them, tuples, user-defined types, vector<float, n>."
    )


def cast_column(column: pa.Array, tree: CqlType) -> pa.Array:
    """Cast a column for which `mismatches` found none.

    A user-defined type gets all its fields in their order; those that the struct lacks are null.
    """
    if tree.kind in TYPES:
        return TYPES[tree.kind].cast(column)
    if tree.kind in ("tuple", "udt"):
        fields, names = column.flatten(), [str(i) for i in range(len(tree.parts))]
        if tree.kind == "udt":
            by_name = {column.type.field(i).name: field for i, field in enumerate(fields)}
            missing = pa.nulls(len(column))
            fields, names = [by_name.get(name, missing) for name in tree.fields], list(tree.fields)
        stored = [
            field if field.type == pa.null() else cast_column(field, part)
            for field, part in zip(fields, tree.parts, strict=True)
        ]
        return pa.StructArray.from_arrays(stored, names=names, mask=column.is_null())
    offsets, values = unnest(column)
    if tree.kind == "map":
        keys, items = map(cast_column, values.flatten(), tree.parts)
        return pa.MapArray.from_arrays(offsets, keys, items, mask=column.is_null())
    elements = cast_column(values, tree.parts[0])
    return pa.ListArray.from_arrays(offsets, elements, mask=column.is_null())
