"""Constraints on values: what the server would refuse or could not hold, found in the tasks by kernels."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from wal_sink.targets.cassandra.types import scalar_casts
from wal_sink.targets.values import digits, uuids
from wal_sink.targets.values.literals import long

TIME_PATTERN = r"\A([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?\z"
_DAY = long(86_400 * 10**9)
_NONE = pa.nulls(0, pa.bool_())
"""No value is bad."""
_MOST_MICROS = long((2**63 - 1) // 1_000)


class Constraint(NamedTuple):
    """A condition that values must not meet."""

    bad: Callable[[pa.Array], pa.Array]
    """Returns which values are bad; empty for none. Anything for nulls, unless it is about them."""
    problem: str
    """Continues "Column c of t (value) …"."""
    remedy: str
    """A sentence; `{name}` stands for the column's path."""


def _unlike(pattern: str) -> Callable[[pa.Array], pa.Array]:
    def bad(column: pa.Array) -> pa.Array:
        return pc.invert(pc.match_substring_regex(scalar_casts.as_text(column), pattern))

    return bad


def _no_digits(pattern: str) -> Callable[[pa.Array], pa.Array]:
    """Say it of texts; a number is one whatever it is."""
    unlike = _unlike(pattern)

    def bad(column: pa.Array) -> pa.Array:
        if not scalar_casts.is_text(scalar_casts.as_is(column)):
            return _NONE
        length = pc.binary_length(scalar_casts.as_text(column)).cast(pa.int64())
        return pc.or_(unlike(column), pc.greater(length, long(digits.MOST)))

    return bad


def _beyond_ascii(column: pa.Array) -> pa.Array:
    return pc.invert(pc.string_is_ascii(scalar_casts.as_text(column)))


def _no_time(column: pa.Array) -> pa.Array:
    column = scalar_casts.as_is(column)
    if not pa.types.is_time64(column.type):
        return _unlike(TIME_PATTERN)(column)
    nanos = column.cast(pa.int64())
    return pc.or_(pc.less(nanos, long(0)), pc.greater_equal(nanos, _DAY))


def _too_long(column: pa.Array) -> pa.Array:
    micros = scalar_casts.as_is(column).cast(pa.int64())
    return pc.or_(pc.greater(micros, _MOST_MICROS), pc.less(micros, pc.negate(_MOST_MICROS)))


def _no_address(column: pa.Array) -> pa.Array:
    """No kernel parses addresses: each distinct string is parsed once."""
    encoded = scalar_casts.as_text(column).dictionary_encode()
    distinct = encoded.dictionary.to_pylist()
    flags = pa.py_buffer(bytes(not is_address(each) for each in distinct))
    bad = pa.Array.from_buffers(pa.uint8(), len(distinct), [None, flags])
    return bad.take(encoded.indices).cast(pa.bool_())


def is_address(text: str) -> bool:
    """Whether this is an IPv4 or an IPv6 address, without zone and port."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    try:
        socket.inet_pton(family, text)
    except (OSError, ValueError):  # ValueError: a NUL
        return False
    return True


def _no_utf8(column: pa.Array) -> pa.Array:
    """No kernel says which value it is: only when there is one, each is decoded by itself."""
    column = scalar_casts.as_text(column)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([not _decodes(each.as_buffer()) for each in column])
    return _NONE


def _decodes(encoded: pa.Buffer | None) -> bool:
    """Whether bytes are UTF-8; True for null."""
    try:
        str(encoded or b"", "utf-8")
    except UnicodeDecodeError:
        return False
    return True


TEXT = (
    Constraint(
        _no_utf8,
        "is not UTF-8, which Cassandra wants of a text",
        "Mend it by make_valid_utf8(…), or write the bytes to a blob.",
    ),
)
ASCII = (
    Constraint(
        _beyond_ascii,
        "has characters that ascii cannot hold",
        "Replace them, or make the table's type text.",
    ),
)
UUID = (
    Constraint(
        uuids.are_none,
        "is not a uuid",
        "Write it as 8-4-4-4-12 hexadecimal digits, 123e4567-e89b-12d3-a456-426614174000, or as 16 bytes, "
        "or make the table's type text.",
    ),
)
TIMEUUID = (
    Constraint(
        uuids.are_not_of_version_1,
        "is not a uuid of version 1",
        "A timeuuid is written as 8-4-4-4-12 hexadecimal digits, the third group of which begins "
        "with 1, or as its 16 bytes. For other uuids make the table's type uuid.",
    ),
)
INET = (
    *TEXT,
    Constraint(
        _no_address,
        "is not an IPv4 or IPv6 address",
        "Write it as 192.0.2.1 or 2001:db8::1, without port and zone, or make the table's type text.",
    ),
)
TIME = (
    Constraint(
        _no_time,
        "is not a time of day",
        "Write it as HH:MM:SS or HH:MM:SS.nnnnnnnnn, from 00:00:00 to 23:59:59.999999999.",
    ),
)
DURATION = (
    Constraint(
        _too_long,
        "is more than the 2^63 nanoseconds, 292 years, that CQL's duration can hold",
        "Write it to a bigint in a unit of your choice.",
    ),
)
MILLISECONDS = (
    Constraint(
        scalar_casts.sub_milliseconds,
        "has digits below the millisecond, which CQL's timestamp cannot hold: two could become one",
        'Truncate it knowingly, by date_trunc("MILLISECOND", …); the keys of a map within transform_keys, an '
        "array's elements within transform.",
    ),
)
WHOLE = (
    Constraint(
        _no_digits(digits.WHOLE),
        "is not a whole number",
        f"Write it as digits, -12 or 12, at most {digits.MOST:,} of them, or make the table's type text.",
    ),
)
DECIMAL = (
    Constraint(
        _no_digits(digits.DECIMAL),
        "is not a decimal number",
        f"Write it as -12.50 or 1.25e-30, in at most {digits.MOST:,} characters and with at most four digits "
        "behind the e, or make the table's type text.",
    ),
)
WHOLE_KEY = (
    Constraint(
        _no_digits(digits.WHOLE_ONCE),
        "can be written in another way, and in a key two texts of a number would be one",
        "Write it without a plus sign and without zeros in front.",
    ),
)
DECIMAL_KEY = (
    Constraint(
        _no_digits(digits.DECIMAL_ONCE),
        "can be written in another way, and in a key two texts of a number would be one",
        "Write it as -12.5: no exponent, no plus sign, no zeros in front or at the end of the fraction.",
    ),
)
NO_NULLS = (
    Constraint(
        pc.is_null,
        "is null, which a collection cannot hold",
        "Drop such elements, filter(c, x -> x IS NOT NULL), map_filter(c, (k, v) -> v IS NOT NULL), "
        "or fill them in.",
    ),
)
