"""Times, durations, sizes and counts, with their units, and their texts for people.

Log and ledger have times in microseconds since 1970. Users write durations such as `10s` or `1h`, and sizes
such as `64m` or `10g`. Sizes have the suffixes of Spark's own settings, which are binary: 1k is 1,024 bytes.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Final


def now_us() -> int:
    """Return the time of this host, in microseconds since 1970."""
    return time.time_ns() // 1_000


def iso(us: int) -> str:
    """Return microseconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat()


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: `1 epoch`, `1,200 epochs`.

    :param one: text after the number 1, such as `epoch` or `epoch was`.
    :param many: text after every other number; by default `one` with an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


_DECIMAL_SIZES = ("kB", "MB", "GB", "TB", "PB")


def byte_count(size: int) -> str:
    """Return a size as text, such as `1.3 MB`, in decimal units."""
    if size < 1_000:
        return counted(size, "byte")
    power = min((len(str(size)) - 1) // 3, len(_DECIMAL_SIZES))
    return f"{size / 1_000**power:,.1f} {_DECIMAL_SIZES[power - 1]}"


def duration(seconds: float) -> str:
    """Return seconds as text: below a minute such as `4.2 s`, otherwise such as `0:02:03`."""
    return f"{seconds:.1f} s" if seconds < 60 else str(timedelta(seconds=int(seconds)))


def ago(seconds: float) -> str:
    """Return an age as text in one unit, such as `4 s ago` or `3 h ago`."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,.0f} {unit} ago"
    return f"{max(0.0, seconds):.0f} s ago"


_SECONDS: Final = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_BYTES: Final = {
    "b": Fraction(1),
    "k": Fraction(1024),
    "m": Fraction(1024**2),
    "g": Fraction(1024**3),
    "t": Fraction(1024**4),
}

UNITS: Final = {
    "seconds": _SECONDS,
    "milliseconds": {suffix: unit * 1000 for suffix, unit in _SECONDS.items()},
    "bytes": _BYTES | {f"{suffix}b": unit for suffix, unit in _BYTES.items() if suffix != "b"},
}
"""The factor of each suffix, by the unit of the option."""

EXAMPLES: Final = {
    "seconds": "a number of seconds, or a duration such as 10s, 5m, 1h",
    "milliseconds": "a number of milliseconds, or a duration such as 500ms, 10s, 5m",
    "bytes": "a number of bytes, or a size such as 64k, 64m, 10g",
}
"""The values that an option of each unit accepts, in words."""

_NUMBER_WITH_SUFFIX = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def plain_number(text: str, unit: str) -> str:
    """Return a number with a suffix as a plain number of `unit`: `1h` is `3600` seconds.

    Text without such a suffix is returned unchanged: the caller validates the number.

    :param unit: a key of `UNITS`.
    """
    match = _NUMBER_WITH_SUFFIX.fullmatch(text)
    if match is None or (factor := UNITS[unit].get(match[2].lower())) is None:
        return text
    number = Fraction(match[1]) * factor
    return str(number.numerator) if number.denominator == 1 else str(float(number))


def with_unit(value: float, unit: str) -> str:
    """Return a number with the largest suffix that leaves a whole number.

    :param unit: the unit of `value`, a key of `UNITS`.
    """
    suffixes = {scale: suffix for suffix, scale in reversed(UNITS[unit].items())}
    number = Fraction(str(value))  # 0.1 is 1/10, and not the nearest binary fraction
    for scale, suffix in sorted(suffixes.items(), reverse=True):
        if number and number % scale == 0:
            return f"{number / scale}{suffix}"
    return f"{value:g}"
