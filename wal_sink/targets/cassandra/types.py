"""The CQL types: which Spark types fit, how tasks cast a column, and which values they refuse.

`TYPES` has the types without parts. `parse` makes a `CqlType` of any type, such as `map<text,
frozen<list<int>>>`, from its text in `system_schema`.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model.spark_types import is_array, is_text, spark_type
from wal_sink.targets import number_texts
from wal_sink.targets.arrow_values import int64, string
from wal_sink.targets.cassandra.arrow_buffers import unnest
from wal_sink.targets.cassandra.row_plan import CassandraPlan

_DAY_0 = string("1970-01-01T")
_NO_TEXT = string("")
_THOUSAND = int64(1_000)


def caster(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a function that casts a column to `kind`, which must hold every value of the column."""
    return lambda column: column.cast(kind)


as_text = caster(pa.string())


def as_float(column: pa.Array) -> pa.Array:
    """Round numbers to floats of 32 bits. A number out of range becomes infinite."""
    return column.cast(pa.float32(), safe=False)


def as_number(column: pa.Array) -> pa.Array:
    """Cast integers to decimals of scale 0. Return decimals and texts as they are."""
    if is_text(column.type):
        return as_text(column)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return column


def as_milliseconds(column: pa.Array) -> pa.Array:
    """Round instants down to milliseconds since 1970, also instants before 1970."""
    micros = column.cast(pa.int64())
    truncated = pc.divide(micros, _THOUSAND)  # rounds towards zero
    below = pc.less(micros, pc.multiply(truncated, _THOUSAND)).cast(pa.int64())
    return pc.subtract(truncated, below)


def as_nanoseconds_of_day(column: pa.Array) -> pa.Array:
    """Convert times, or texts that match `TIME_PATTERN`, to nanoseconds since midnight."""
    if not pa.types.is_time64(column.type):
        texts = pc.binary_join_element_wise(_DAY_0, as_text(column), _NO_TEXT)
        column = texts.cast(pa.timestamp("ns"))  # Arrow cannot cast a string to a time
    return column.cast(pa.int64())


def as_nanoseconds(column: pa.Array) -> pa.Array:
    """Convert microseconds to nanoseconds. The constraint `DURATION` refuses values that would overflow."""
    return pc.multiply_checked(column.cast(pa.int64()), _THOUSAND)


def sub_milliseconds(column: pa.Array) -> pa.Array:
    """Return a flag for each instant: True if it is not a whole number of milliseconds."""
    micros = column.cast(pa.int64())
    return pc.not_equal(pc.multiply(pc.divide(micros, _THOUSAND), _THOUSAND), micros)


TIME_PATTERN = r"\A([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?\z"
_DAY = int64(86_400 * 10**9)
_NO_VALUES = pa.nulls(0, pa.bool_())
"""The flags of a column whose type has no bad values."""
_MOST_MICROS = int64((2**63 - 1) // 1_000)


class Constraint(NamedTuple):
    """Finds values that the server would refuse or could not store."""

    bad: Callable[[pa.Array], pa.Array]
    """Returns flags of the bad values; an empty array if the column's type has none. The flags of nulls are
    arbitrary, except for `NO_NULLS`."""
    problem: str
    """The text of the error after "Column c of t (value)", such as "is not a uuid"."""
    remedy: str
    """The remedy of the error, a sentence."""


def _unlike(pattern: str) -> Callable[[pa.Array], pa.Array]:
    def bad(column: pa.Array) -> pa.Array:
        return pc.invert(pc.match_substring_regex(as_text(column), pattern))

    return bad


def _not_numbers(pattern: str) -> Callable[[pa.Array], pa.Array]:
    """Return a function that flags the texts that are not numbers, or are too long.

    In a column of a numeric type, the function flags no value.

    :param pattern: the pattern of a text that is a number.
    """
    unlike = _unlike(pattern)

    def bad(column: pa.Array) -> pa.Array:
        if not is_text(column.type):
            return _NO_VALUES
        length = pc.binary_length(as_text(column)).cast(pa.int64())
        return pc.or_(unlike(column), pc.greater(length, int64(number_texts.MOST_CHARACTERS)))

    return bad


def _beyond_ascii(column: pa.Array) -> pa.Array:
    return pc.invert(pc.string_is_ascii(as_text(column)))


def _no_time(column: pa.Array) -> pa.Array:
    if not pa.types.is_time64(column.type):
        return _unlike(TIME_PATTERN)(column)
    nanos = column.cast(pa.int64())
    return pc.or_(pc.less(nanos, int64(0)), pc.greater_equal(nanos, _DAY))


def _too_long(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.int64())
    return pc.or_(pc.greater(micros, _MOST_MICROS), pc.less(micros, pc.negate(_MOST_MICROS)))


def _no_address(column: pa.Array) -> pa.Array:
    encoded = as_text(column).dictionary_encode()
    distinct = encoded.dictionary.to_pylist()  # Arrow cannot parse addresses, so Python does
    flags = pa.py_buffer(bytes(not is_address(text) for text in distinct))
    bad = pa.Array.from_buffers(pa.uint8(), len(distinct), [None, flags])
    return bad.take(encoded.indices).cast(pa.bool_())


def is_address(text: str) -> bool:
    """Return True if a text is an IPv4 or IPv6 address without zone and port."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):  # ValueError: a NUL
        return False
    return True


ASCII = Constraint(
    _beyond_ascii,
    "has characters that ascii cannot hold",
    "Replace them, or make the table's type text.",
)
UUID = Constraint(
    number_texts.are_no_uuids,
    "is not a uuid",
    "Write it as 8-4-4-4-12 hexadecimal digits, 123e4567-e89b-12d3-a456-426614174000, or as 16 bytes, "
    "or make the table's type text.",
)
TIMEUUID = Constraint(
    number_texts.are_no_version_1_uuids,
    "is not a uuid of version 1",
    "A timeuuid is written as 8-4-4-4-12 hexadecimal digits, the third group of which begins "
    "with 1, or as its 16 bytes. For other uuids make the table's type uuid.",
)
INET = Constraint(
    _no_address,
    "is not an IPv4 or IPv6 address",
    "Write it as 192.0.2.1 or 2001:db8::1, without port and zone, or make the table's type text.",
)
TIME = Constraint(
    _no_time,
    "is not a time of day",
    "Write it as HH:MM:SS or HH:MM:SS.nnnnnnnnn, from 00:00:00 to 23:59:59.999999999.",
)
DURATION = Constraint(
    _too_long,
    "is more than the 2^63 nanoseconds, 292 years, that CQL's duration can hold",
    "Write it to a bigint in a unit of your choice.",
)
MILLISECONDS = Constraint(
    sub_milliseconds,
    "has digits below the millisecond, which CQL's timestamp cannot hold: two could become one",
    'Truncate it knowingly, F.date_trunc("MILLISECOND", …): the keys of a map within transform_keys, an'
    " array's elements within transform.",
)
WHOLE = Constraint(
    _not_numbers(number_texts.WHOLE),
    "is not a whole number",
    f"Write it as digits, -12 or 12, at most {number_texts.MOST_CHARACTERS:,} of them, or make the"
    " table's type text.",
)
DECIMAL = Constraint(
    _not_numbers(number_texts.DECIMAL),
    "is not a decimal number",
    f"Write it as -12.50 or 1.25e-30, in at most {number_texts.MOST_CHARACTERS:,} characters and with at most"
    " four digits after the e, or make the table's type text.",
)
NO_NULLS = Constraint(
    pc.is_null,
    "is null, which a collection cannot hold",
    "Drop such elements, filter(c, x -> x IS NOT NULL), map_filter(c, (k, v) -> v IS NOT NULL), "
    "or fill them in.",
)


class ScalarType(NamedTuple):
    """A CQL type without parts."""

    accepts: tuple[str, ...]
    """The Spark types that fit without loss. Errors propose a cast to the first of them."""
    cast: Callable[[pa.Array], pa.Array]
    """Casts a column of the DataFrame to the type of the log."""
    constraint: Constraint | None = None
    """The values that tasks refuse in any column."""
    key_constraint: Constraint | None = None
    """The values that tasks refuse in the primary key, in keys of maps and in elements of sets, because the
    cast could make two different values equal."""


WHOLE_DECIMAL = "decimal(p,0)"
"""A decimal type of scale 0."""

TYPES = {
    "ascii": ScalarType(("string",), as_text, ASCII),
    "text": ScalarType(("string",), as_text),
    "boolean": ScalarType(("boolean",), caster(pa.bool_())),
    "tinyint": ScalarType(("tinyint",), caster(pa.int8())),
    "smallint": ScalarType(("smallint", "tinyint"), caster(pa.int16())),
    "int": ScalarType(("int", "smallint", "tinyint"), caster(pa.int32())),
    "bigint": ScalarType(("bigint", "int", "smallint", "tinyint"), caster(pa.int64())),
    "varint": ScalarType(
        (WHOLE_DECIMAL, "bigint", "int", "smallint", "tinyint", "string"),
        as_number,
        WHOLE,
    ),
    "float": ScalarType(("float",), as_float),
    "double": ScalarType(("double", "float"), caster(pa.float64())),
    "decimal": ScalarType(
        ("decimal", "bigint", "int", "smallint", "tinyint", "string"),
        as_number,
        DECIMAL,
    ),
    "timestamp": ScalarType(("timestamp",), as_milliseconds, None, MILLISECONDS),
    "date": ScalarType(("date",), caster(pa.date32())),
    "time": ScalarType(("time", "string"), as_nanoseconds_of_day, TIME),
    "duration": ScalarType(("interval day to second",), as_nanoseconds, DURATION),
    "uuid": ScalarType(("string", "binary"), number_texts.as_uuid, UUID),
    "timeuuid": ScalarType(("string", "binary"), number_texts.as_uuid, TIMEUUID),
    "inet": ScalarType(("string",), as_text, INET),
    "blob": ScalarType(("binary",), caster(pa.binary())),
}


NESTED: dict[str, Callable[[pa.DataType], bool]] = {
    "list": is_array,
    "set": is_array,
    "map": pa.types.is_map,
    "tuple": pa.types.is_struct,
    "udt": pa.types.is_struct,
    "vector": is_array,
}
"""The CQL types with parts. A type's function returns True if an Arrow type has the same kind of parts."""


def accepts(cql: str, source: pa.DataType) -> bool:
    """Return True if an Arrow type fits into a CQL type of `TYPES` without loss."""
    spark = spark_type(source)
    if spark == "decimal" and source.scale == 0 and WHOLE_DECIMAL in TYPES[cql].accepts:
        return True
    return spark in TYPES[cql].accepts


UserTypes = Mapping[str, Sequence[tuple[str, str]]]
"""User-defined types by name. A type has the name and the CQL type of each field, in order."""

_WORD = re.compile(r'\s*("(?:[^"]|"")*"|[^<>,"\s]+)\s*(?:<(.+)>)?\s*', re.DOTALL)
_PART = re.compile(r'"(?:[^"]|"")*"|[<>,]')


class CqlType(NamedTuple):
    """A CQL type and the types of its parts."""

    kind: str
    """A key of `TYPES` or `NESTED`; for a type that is not supported, the same text as `label`."""
    label: str
    """The type as the server prints it."""
    frozen: bool
    """True if the server stores the type as one value. A type inside another type is always frozen."""
    parts: tuple[CqlType, ...] = ()
    """The type of the elements, the types of key and value, or the types of the fields."""
    name: str = ""
    """The unquoted name of a user-defined type."""
    fields: tuple[str, ...] = ()
    """The unquoted field names of a user-defined type."""
    length: int = 0
    """The number of elements of a vector."""


def parse(text: str, types: UserTypes, *, frozen: bool = False) -> CqlType:
    """Parse the text of a type, such as "map<text, int>".

    :param types: the keyspace's user-defined types.
    :param frozen: True for a type inside another type.
    """
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
    """Split a text at its commas, except commas in brackets or quoted names."""
    depth, begin, arguments = 0, 0, []
    for match in _PART.finditer(inside):
        if match[0] == "," and depth == 0:
            arguments.append(inside[begin : match.start()].strip())
            begin = match.end()
        depth += {"<": 1, ">": -1}.get(match[0], 0)
    return [*arguments, inside[begin:].strip()]


def user_type_names(tree: CqlType) -> Iterator[str]:
    """Yield the name of each user-defined type in a type, perhaps several times."""
    if tree.kind == "udt":
        yield tree.name
    for part in tree.parts:
        yield from user_type_names(part)


def has_lists(plan: CassandraPlan) -> bool:
    """Return True if a column of the plan is a list that is not frozen.

    If the same list is written twice with one timestamp, the server keeps each element twice.
    """
    return any(tree.kind == "list" and not tree.frozen for tree in column_types(plan))


def column_types(plan: CassandraPlan) -> tuple[CqlType, ...]:
    """Return the CQL types of a plan's columns, in order."""
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
"""The CQL type that errors and createTable propose for a Spark type. A timestamp_ntz needs a cast first."""


def cast_column(column: pa.Array, tree: CqlType) -> pa.Array:
    """Cast a column of the DataFrame to the type of the log.

    A struct gets the fields of the user-defined type, in the type's order. Fields that the struct lacks are
    null.

    :param column: a column whose type fits, see `type_mismatches.mismatches`.
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
