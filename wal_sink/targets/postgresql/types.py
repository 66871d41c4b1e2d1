"""PostgreSQL's types: the Arrow types that the log holds for them, and the Spark types that fit. Pure.

The types are written as `format_type` prints them. docs/postgresql.md has the same table; a test compares
both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.types as pt

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Plan, is_array, is_text
from wal_sink.targets.casts import is_castable, key_of
from wal_sink.targets.sql.types import (
    INTEGERS,
    LISTS,
    NEW_STANDARD,
    NewTypes,
    SqlType,
    Types,
    decimal,
    is_document,
    parse,
    time,
)

JSON = ("json", "jsonb")
_ANY_DECIMAL = pa.decimal128(38, 18)
"""Marks a numeric whose values the log holds in the DataFrame's type."""


def _numeric(type_: SqlType) -> pa.DataType | None:
    return _ANY_DECIMAL if _holds_any(type_) else decimal(type_)


def _holds_any(type_: SqlType) -> bool:
    """Return True for a numeric without bounds, or with more digits than Arrow's decimal."""
    return type_.first is None or (type_.first > 38 and (type_.second or 0) >= 0)


def _of_microseconds(held: pa.DataType) -> Callable[[SqlType], pa.DataType | None]:
    return lambda type_: held if type_.first in (None, 6) else None


TYPES: Types = {
    **INTEGERS,
    LISTS: None,
    "numeric": _numeric,
    "real": pa.float32(),
    "double precision": pa.float64(),
    "boolean": pa.bool_(),
    **dict.fromkeys(("text", "character varying", "character", "citext"), pa.string()),
    **dict.fromkeys(("uuid", *JSON), pa.string()),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "timestamp with time zone": time(6, "UTC"),
    "timestamp without time zone": time(6),
    "time without time zone": _of_microseconds(pa.time64("us")),
    "interval": _of_microseconds(pa.duration("us")),
}

NEW: NewTypes = {
    **NEW_STANDARD,
    LISTS: "{}[]",
    "document": "jsonb",
    "key": "text",
    "binary": "bytea",
    "timestamp_ntz": "timestamp without time zone",
    "decimal": "numeric({},{})",
    **dict.fromkeys(("time64[us]", "time64[ns]"), "time without time zone"),
    "duration[us]": "interval",
}


def is_any_decimal(words: str) -> bool:
    """Return True for a numeric, or an array of it, whose values the log holds in the DataFrame's type."""
    type_ = parse(words.removesuffix(LISTS))
    return type_.base == "numeric" and _holds_any(type_)


def takes(source: pa.DataType, words: str, held: pa.DataType) -> bool:
    """Return True if a cast to a column's type keeps or refuses each value of a type of the DataFrame.

    :param words: the type of the column, and `held`: its Arrow type.
    """
    if pt.is_dictionary(source):
        source = source.value_type
    if words in JSON:
        return is_text(source) or is_document(source)
    if words.endswith(LISTS):
        is_flat = is_array(source) and not is_document(source.value_type)
        return is_flat and takes(source.value_type, words.removesuffix(LISTS), held.value_type)
    if pt.is_time(source) and pt.is_time(held):
        return True
    type_ = parse(words)
    if is_any_decimal(words) and type_.first is not None and is_castable(source, held):
        kept, most = as_decimal(source), type_.second or 0
        return bool(kept.scale <= most and kept.precision - kept.scale <= type_.first - most)
    return is_castable(source, held)


def as_decimal(source: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds a decimal or an integer of the DataFrame."""
    return pa.decimal128(source.precision, source.scale) if pt.is_decimal(source) else _WHOLE


_WHOLE = pa.decimal128(19, 0)
"""Holds a bigint."""


_ROW_BYTES, _HEAD_BYTES = 8_160, 24
"""The most bytes of a row in a page of 8 kB, and the bytes before its values."""
_WIDTHS = {
    **dict.fromkeys(("bigint", "double precision", "time without time zone"), 8),
    **dict.fromkeys(("timestamp with time zone", "timestamp without time zone"), 8),
    **dict.fromkeys(("integer", "real", "date"), 4),
    **dict.fromkeys(("uuid", "interval"), 16),
    "smallint": 2,
    "boolean": 1,
}
"""The bytes of each type of fixed length. Values of other types may be stored outside of the row."""


def refuse_wide_row(types: Iterable[str], table: str) -> None:
    """Refuse a table if a row without nulls cannot fit into a page.

    :param types: the types of the columns that are written.
    :raises SchemaMismatch: the values of fixed length are longer than a page.
    """
    widths = [_WIDTHS.get(parse(words).base, 0) for words in types]
    total = _HEAD_BYTES + sum(widths)
    if total > _ROW_BYTES:
        raise SchemaMismatch(
            f"A row of {table} has {total:,} bytes in {sum(map(bool, widths)):,} columns of fixed length, and"
            f" PostgreSQL takes {_ROW_BYTES:,} bytes (a page): it would refuse every row without nulls.",
            'Put columns of one type together into an array, .withColumn("v", F.array("a", "b", …)), and drop'
            " them; or write to two tables.",
        )


def temporary_type(words: str) -> str | None:
    """Return the type of a column in the temporary table; None: the column's own type.

    pgpq does not encode all types as elements of an array. The server casts these from another type.
    """
    base = parse(words.removesuffix(LISTS)).base
    if not words.endswith(LISTS):
        return None
    if base == "timestamp with time zone":
        return "timestamp without time zone[]"  # in UTC, as the session's time zone is
    if base in ("character varying", "character", "citext", "uuid", "json"):
        return "text[]"
    return None


def needs_temporary_table(plan: Plan) -> bool:
    """Return True if rows go through a temporary table: rows with a key, and rows that the server casts."""
    return bool(key_of(plan)) or any(temporary_type(column.type) for column in plan.columns)
