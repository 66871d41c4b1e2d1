"""Casts of columns to what the log holds, and constraints on their values, by kernels of Arrow, in the tasks.

A constraint finds values that the server would refuse or could not hold.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.model import plan
from wal_sink.targets import text_formats
from wal_sink.targets.arrow_scalars import int64, text

_DAY_0 = text("1970-01-01T")
_NO_TEXT = text("")
_THOUSAND = int64(1_000)


def as_is(column: pa.Array) -> pa.Array:
    """Return the column, decoded when it is a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def cast_to(kind: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """Return a cast to a type that holds every value: a wider number, or any layout of strings or bytes."""
    return lambda column: column.cast(kind)


as_text = cast_to(pa.string())


def as_float(column: pa.Array) -> pa.Array:
    """Round to 32 bits; what is out of range becomes infinite."""
    return column.cast(pa.float32(), safe=False)


def as_number(column: pa.Array) -> pa.Array:
    """Make decimals of scale 0 of integers; decimals stay as they are, and so do texts, of any length."""
    column = as_is(column)
    if plan.is_text(column.type):
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
    """Count from midnight; strings are those that match `TIME_PATTERN`."""
    column = as_is(column)
    if not pa.types.is_time64(column.type):
        texts = pc.binary_join_element_wise(_DAY_0, as_text(column), _NO_TEXT)
        column = texts.cast(pa.timestamp("ns"))  # no kernel makes a time of a string
    return column.cast(pa.int64())


def as_nanoseconds(column: pa.Array) -> pa.Array:
    """Turn microseconds into nanoseconds; `DURATION` has refused what overflows."""
    return pc.multiply_checked(as_is(column).cast(pa.int64()), _THOUSAND)


def sub_milliseconds(column: pa.Array) -> pa.Array:
    """Return which instants have digits below the millisecond."""
    micros = as_is(column).cast(pa.int64())
    return pc.not_equal(pc.multiply(pc.divide(micros, _THOUSAND), _THOUSAND), micros)


TIME_PATTERN = r"\A([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?\z"
_DAY = int64(86_400 * 10**9)
_NO_VALUES = pa.nulls(0, pa.bool_())
"""Flags of a column without bad values."""
_MOST_MICROS = int64((2**63 - 1) // 1_000)


class Constraint(NamedTuple):
    """A condition that values must not meet."""

    bad: Callable[[pa.Array], pa.Array]
    """Returns which values are bad; empty for none. What it returns for nulls does not matter, unless it is
    about them."""
    problem: str
    """Continues "Column c of t (value) …"."""
    remedy: str
    """A sentence."""


def _unlike(pattern: str) -> Callable[[pa.Array], pa.Array]:
    def bad(column: pa.Array) -> pa.Array:
        return pc.invert(pc.match_substring_regex(as_text(column), pattern))

    return bad


def _no_digits(pattern: str) -> Callable[[pa.Array], pa.Array]:
    """Return the condition for texts; a column of numbers never meets it."""
    unlike = _unlike(pattern)

    def bad(column: pa.Array) -> pa.Array:
        if not plan.is_text(as_is(column).type):
            return _NO_VALUES
        length = pc.binary_length(as_text(column)).cast(pa.int64())
        return pc.or_(unlike(column), pc.greater(length, int64(text_formats.MOST_CHARACTERS)))

    return bad


def _beyond_ascii(column: pa.Array) -> pa.Array:
    return pc.invert(pc.string_is_ascii(as_text(column)))


def _no_time(column: pa.Array) -> pa.Array:
    column = as_is(column)
    if not pa.types.is_time64(column.type):
        return _unlike(TIME_PATTERN)(column)
    nanos = column.cast(pa.int64())
    return pc.or_(pc.less(nanos, int64(0)), pc.greater_equal(nanos, _DAY))


def _too_long(column: pa.Array) -> pa.Array:
    micros = as_is(column).cast(pa.int64())
    return pc.or_(pc.greater(micros, _MOST_MICROS), pc.less(micros, pc.negate(_MOST_MICROS)))


def _no_address(column: pa.Array) -> pa.Array:
    """Return which texts are not addresses; no kernel parses them, so each distinct one is parsed once."""
    encoded = as_text(column).dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    flags = pa.py_buffer(bytes(not is_address(text) for text in distinct))
    bad = pa.Array.from_buffers(pa.uint8(), len(distinct), [None, flags])
    return bad.take(encoded.indices).cast(pa.bool_())


def is_address(text: str) -> bool:
    """Return True if a text is an IPv4 or an IPv6 address, without zone and port."""
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
    text_formats.are_no_uuids,
    "is not a uuid",
    "Write it as 8-4-4-4-12 hexadecimal digits, 123e4567-e89b-12d3-a456-426614174000, or as 16 bytes, "
    "or make the table's type text.",
)
TIMEUUID = Constraint(
    text_formats.are_no_version_1_uuids,
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
    _no_digits(text_formats.WHOLE),
    "is not a whole number",
    f"Write it as digits, -12 or 12, at most {text_formats.MOST_CHARACTERS:,} of them, or make the"
    " table's type text.",
)
DECIMAL = Constraint(
    _no_digits(text_formats.DECIMAL),
    "is not a decimal number",
    f"Write it as -12.50 or 1.25e-30, in at most {text_formats.MOST_CHARACTERS:,} characters and with at most"
    " four digits after the e, or make the table's type text.",
)
WHOLE_KEY = Constraint(
    _no_digits(text_formats.WHOLE_ONCE),
    "can be written in another way, and in a key two texts of a number would be one",
    "Write it without a plus sign and without zeros in front.",
)
DECIMAL_KEY = Constraint(
    _no_digits(text_formats.DECIMAL_ONCE),
    "can be written in another way, and in a key two texts of a number would be one",
    "Write it as -12.5: no exponent, no plus sign, no zeros in front or at the end of the fraction.",
)
NO_NULLS = Constraint(
    pc.is_null,
    "is null, which a collection cannot hold",
    "Drop such elements, filter(c, x -> x IS NOT NULL), map_filter(c, (k, v) -> v IS NOT NULL), "
    "or fill them in.",
)
