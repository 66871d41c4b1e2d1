"""Types of SQL databases: the Arrow types that hold them, the values they accept, and new columns. No I/O.

A plan has a type in the database's own words, in lower case: `varchar(50)`, `bigint unsigned`,
`numeric(10,2)[]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.model.spark_types import is_array, is_blob, is_text
from wal_sink.targets.arrow_values import int64
from wal_sink.targets.number_texts import UUID_PATTERN


class SqlType(NamedTuple):
    """The parts of a type: `decimal(10,2)` has the base `decimal`, and the numbers 10 and 2."""

    base: str
    first: int | None = None
    second: int | None = None


_FORM = re.compile(
    r"(?P<base>[a-z][a-z0-9_ ]*?) ?(?:\((?P<first>\d+)(?:,(?P<second>-?\d+))?\))?(?P<rest> [^(]+)?"
)


def parse(words: str) -> SqlType:
    """Parse a type. For example, `timestamp(3) with time zone` has the base `timestamp with time zone`."""
    parts = _FORM.fullmatch(words)
    if parts is None:
        return SqlType(words)
    first, second = (None if text is None else int(text) for text in parts.group("first", "second"))
    return SqlType(parts["base"] + (parts["rest"] or ""), first, second)


# --- the Arrow type that holds a type ---

Types = Mapping[str, Any]
"""The Arrow type of each type by its base, or a function that returns it for a `SqlType`. A type that is
missing, or has None, cannot be written."""

LISTS = "[]"
"""The end of an array's type. As a key of `Types` or `NewTypes` it says that the database has arrays."""


def decimal(type_: SqlType) -> pa.DataType | None:
    """Return the Arrow type of a decimal. None if Arrow's type has fewer digits."""
    digits, scale = type_.first, type_.second or 0
    held = digits is not None and 0 < digits <= 38 and 0 <= scale <= digits
    return pa.decimal128(digits, scale) if held else None


def time(digits: int, zone: str | None = None) -> Callable[[SqlType], pa.DataType | None]:
    """Return a function for `Types` that returns the Arrow type of a timestamp.

    The function returns None if Arrow has no unit for the digits.

    :param digits: the digits of a second, if the type names no number.
    :param zone: the time zone of the Arrow type. None for a timestamp without a zone.
    """

    def arrow(type_: SqlType) -> pa.DataType | None:
        precision = digits if type_.first is None else type_.first
        unit = {0: "s", 3: "ms", 6: "us", 9: "us"}.get(precision)
        return None if unit is None else pa.timestamp(unit, zone)

    return arrow


INTEGERS: Types = {"smallint": pa.int16(), "integer": pa.int32(), "bigint": pa.int64()}
COMMON: Types = {
    **INTEGERS,
    "int": pa.int32(),
    **dict.fromkeys(("varchar", "char", "text"), pa.string()),
    **dict.fromkeys(("decimal", "numeric"), decimal),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    **dict.fromkeys(("double precision", "double"), pa.float64()),
}


def arrow_type(types: Types, words: str) -> pa.DataType | None:
    """Return the Arrow type that holds a type exactly. None if no Arrow type does."""
    if words.endswith(LISTS):
        element = arrow_type(types, words.removesuffix(LISTS)) if LISTS in types else None
        return None if element is None else pa.list_(element)
    type_ = parse(words)
    held = types.get(type_.base)
    return held(type_) if callable(held) else held


# --- the values that a type accepts; None: all values ---


def at_most(lengths: pa.Array, most: int) -> pa.BooleanArray:
    """Return which lengths are `most` or less."""
    return pc.less_equal(lengths.cast(pa.int64()), int64(most))


def text_fits(type_: SqlType, values: pa.Array) -> pa.BooleanArray | None:
    """Return which texts a type accepts, by their number of characters, or by the form of a uuid or JSON."""
    if type_.base == "uuid":
        return pc.match_substring_regex(values, UUID_PATTERN)
    if type_.base == "json":
        return pa.array(map(_is_json, values.to_pylist()), pa.bool_())
    if type_.first is None:
        return None
    return at_most(pc.utf8_length(values), type_.first)


def _is_json(text: str | None) -> bool:
    try:
        msgspec.json.decode("null" if text is None else text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def by_elements(
    fits: Callable[[str, pa.Array], pa.BooleanArray | None], words: str, values: pa.ListArray
) -> pa.BooleanArray | None:
    """Return which lists have only elements that the element type accepts."""
    flags = fits(words.removesuffix(LISTS), values.flatten())
    if flags is None:
        return None
    bad = pc.list_parent_indices(values).filter(pc.invert(flags))
    return pc.invert(pc.is_in(pa.array(range(len(values)), bad.type), value_set=bad))


# --- new columns ---

NewTypes = Mapping[str, str]
"""The types of new columns, by the name that `_name` gives the DataFrame's type. `{}` stands for an
element's type, or a decimal's digits."""

NEW_STANDARD: NewTypes = {
    "bool": "boolean",
    "int8": "smallint",
    "int16": "smallint",
    "int32": "integer",
    "int64": "bigint",
    "float": "real",
    "double": "double precision",
    "string": "text",
    "key": "varchar(255)",
    "binary": "blob",
    "date32[day]": "date",
    "timestamp": "timestamp with time zone",
    "timestamp_ntz": "timestamp",
    "decimal": "decimal({},{})",
}
"""The types of new columns in standard SQL."""


def new_type(new: NewTypes, source: pa.DataType, *, key: bool) -> str | None:
    """Return the type of a new column for a type of the DataFrame. None if the database has no such type.

    :param key: True if the column is part of the key. Some databases need a bound for a text in the key.
    """
    if pt.is_dictionary(source):
        source = source.value_type
    if is_array(source) and not ("document" in new and is_document(source.value_type)):
        element = new_type(new, source.value_type, key=False) if LISTS in new else None
        return None if element is None else new[LISTS].format(element)
    words = new.get(_name(source, key=key))
    return words and (words.format(source.precision, source.scale) if "{}" in words else words)


def _name(source: pa.DataType, *, key: bool) -> str:
    """Return the key in `NewTypes` for a type of the DataFrame."""
    if is_document(source):
        return "document"
    if is_text(source):
        return "key" if key else "string"
    if is_blob(source):
        return "binary"
    if pt.is_timestamp(source):
        return "timestamp" if source.tz else "timestamp_ntz"
    return "decimal" if pt.is_decimal(source) else str(source)


def is_document(source: pa.DataType) -> bool:
    """Return True for a type that can become JSON: a struct, a map, or an array."""
    return bool(pt.is_struct(source) or pt.is_map(source) or is_array(source))
