"""PostgreSQL's types: the Spark types that fit, the types in the log, and the refused values. No I/O.

The types are written as `format_type` prints them. docs/postgresql.md has the same table; a test compares
both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from wal_sink.errors import SchemaMismatch
from wal_sink.model.plan import Column, Plan
from wal_sink.model.spark_types import is_array, is_text
from wal_sink.targets.casts import (
    InvalidValueError,
    cast_or_refuse,
    is_castable,
    key_of,
    refuse,
    stored_by,
)
from wal_sink.targets.postgresql.json_texts import refuse_no_json, to_json
from wal_sink.targets.sql.types import (
    INTEGERS,
    LISTS,
    NEW_STANDARD,
    NewTypes,
    SqlType,
    Types,
    arrow_type,
    by_elements,
    decimal,
    is_document,
    parse,
    text_fits,
    time,
)

JSON = ("json", "jsonb")
_ANY_DECIMAL = pa.decimal128(38, 18)
"""Marks a numeric whose values the log holds in the DataFrame's type."""


def _numeric(type_: SqlType) -> pa.DataType | None:
    return _ANY_DECIMAL if _holds_any(type_) else decimal(type_)


def _holds_any(type_: SqlType) -> bool:
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
    """Return True if a cast to the column's type keeps each value unchanged, or refuses the value.

    :param source: the DataFrame's type.
    :param words: the column's type in PostgreSQL.
    :param held: the Arrow type that holds the column's values.
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
    """Return the type of a column in the temporary table. None stands for the column's own type.

    pgpq cannot encode arrays of some types. Such an array goes into the temporary table with another type,
    from which the server casts it.
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


# --- values ---

# The server accepts every row that passes these checks, unless the row breaks a constraint, or is too long
# for an index or a page.


def fits(words: str, values: pa.Array) -> pa.BooleanArray | None:
    """Return which values a column of a type accepts. None if it accepts all values."""
    if words.endswith(LISTS):
        return by_elements(fits, words, values)
    type_ = parse(words)
    return text_fits(type_, values) if is_text(values.type) and type_.base not in JSON else None


def stored_values(column: Column, values: pa.Array) -> pa.Array:
    """Cast the values of a column to the type in the log.

    :raises InvalidValueError: the server would refuse a value.
    """
    element = parse(column.type.removesuffix(LISTS)).base
    if is_any_decimal(column.type):
        held = as_decimal(values.type.value_type if is_array(values.type) else values.type)
        held = pa.list_(held) if column.type.endswith(LISTS) else held
        return cast_or_refuse(values, held, column.type)
    if column.type in JSON and is_document(values.type):
        texts = _each(values, functools.partial(to_json, type_=values.type))
        return pa.array(list(texts), pa.string())
    array = stored_by(functools.partial(arrow_type, TYPES), fits)(column, values)
    texts = array.flatten() if pt.is_list(array.type) else array
    if pt.is_string(texts.type):
        rows = pc.list_parent_indices(array) if pt.is_list(array.type) else None
        _refuse_texts(texts, rows, is_json=element in JSON)
    return array


def _refuse_texts(texts: pa.Array, rows: pa.Array | None, *, is_json: bool) -> None:
    """Refuse texts that PostgreSQL cannot hold.

    :param rows: the row of each text in an array. None if each text is a row.
    """
    try:
        if is_json:
            for _ in _each(texts, refuse_no_json):
                pass
        else:
            refuse(
                pc.match_substring(texts, "\0"),
                "has the character NUL in it, which PostgreSQL's texts cannot hold",
                "Remove it: regexp_replace({name}, '\\\\x00', ''), or write the bytes to a bytea.",
            )
    except InvalidValueError as bad:
        if rows is None:
            raise
        # `bad.rows` flags elements, and not rows. The new error has no flags, so that
        # `publish.append.split_invalid` finds the rows.
        problem, row = f"has an element that {bad.problem}", rows[bad.row].as_py()
        raise InvalidValueError(problem, bad.remedy, row) from bad.__cause__


def _each(values: pa.Array, convert: Callable[..., str | None]) -> Iterator[str | None]:
    """Yield the result of a function for each value, or None for null. Arrow has no function for JSON.

    :raises InvalidValueError: the function or Arrow refuses a value.
    """
    for row, scalar in enumerate(values):
        try:
            value = scalar.as_py()
            yield None if value is None else convert(value)
        except (ValueError, OverflowError) as error:
            remedy = "Correct the value, or make the table's type text."
            raise InvalidValueError(str(error), remedy, row) from error
