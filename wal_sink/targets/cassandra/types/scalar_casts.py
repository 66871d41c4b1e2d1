"""Casts from a DataFrame's columns to what the log holds for scalar types; vectorised, in the tasks."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.values import literals

_DAY_0 = literals.text("1970-01-01T")
_NO_TEXT = literals.text("")
_THOUSAND = literals.long(1_000)


def as_is(column: pa.Array) -> pa.Array:
    """Return the column, decoded when it is a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def cast_to(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a cast to a type that holds every value: a wider number, or any layout of strings or bytes."""
    return lambda column: column.cast(kind)


as_text = cast_to(pa.string())


def is_text(column: pa.Array) -> bool:
    """Whether a column, which is no dictionary, has strings in some layout."""
    kind = column.type
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)
    )


def as_float(column: pa.Array) -> pa.Array:
    """Round to 32 bits; what is out of range becomes infinite."""
    return column.cast(pa.float32(), safe=False)


def as_number(column: pa.Array) -> pa.Array:
    """Make decimals of scale 0 of integers; decimals stay as they are, and so do texts, of any length."""
    column = as_is(column)
    if is_text(column):
        return as_text(column)
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64()).cast(pa.decimal128(19, 0))
    return column


def as_milliseconds(column: pa.Array) -> pa.Array:
    """Floor an instant in microseconds to milliseconds since 1970, before 1970 too."""
    micros = as_is(column).cast(pa.int64())
    truncated = pc.divide(micros, _THOUSAND)  # towards zero
    below = pc.less(micros, pc.multiply(truncated, _THOUSAND)).cast(pa.int64())
    return pc.subtract(truncated, below)


def as_nanoseconds_of_day(column: pa.Array) -> pa.Array:
    """Count from midnight; strings are those that match `constraints.TIME_PATTERN`."""
    column = as_is(column)
    if not pa.types.is_time64(column.type):
        texts = pc.binary_join_element_wise(_DAY_0, as_text(column), _NO_TEXT)
        column = texts.cast(pa.timestamp("ns"))  # no kernel makes a time of a string
    return column.cast(pa.int64())


def as_nanoseconds(column: pa.Array) -> pa.Array:
    """Turn microseconds into nanoseconds; `constraints.DURATION` has refused what overflows."""
    return pc.multiply_checked(as_is(column).cast(pa.int64()), _THOUSAND)


def sub_milliseconds(column: pa.Array) -> pa.Array:
    """Return which instants have digits below the millisecond."""
    micros = as_is(column).cast(pa.int64())
    return pc.not_equal(pc.multiply(pc.divide(micros, _THOUSAND), _THOUSAND), micros)
