"""Durations and sizes as users write them: `10s`, `5m`, `1h`; `64m`, `10g`; or a plain number. Pure.

The suffixes of sizes are those of Spark's own settings, and binary: 1k is 1,024 bytes. A duration without a
suffix is in the unit of its option: seconds, or milliseconds where Kafka's name of it ends in `.ms`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

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
    "bytes": {
        name: unit
        for suffix, unit in _BYTES.items()
        for name in dict.fromkeys((suffix, f"{suffix}b" if suffix != "b" else suffix))
    },
}
"""How many of a unit each suffix stands for, by the unit that an option counts in."""

EXAMPLES: Final = {
    "seconds": "a number of seconds, or a duration such as 10s, 5m, 1h",
    "milliseconds": "a number of milliseconds, or a duration such as 500ms, 10s, 5m",
    "bytes": "a number of bytes, or a size such as 64k, 64m, 10g",
}
"""What an option of each unit takes, in words."""

_NUMBER_WITH_SUFFIX = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def plain_number(text: str, unit: str) -> str:
    """Return a number with a suffix as a plain number of `unit`: `1h` of seconds is `3600`.

    :param unit: a key of `UNITS`.
    :returns: `text` as it is where it has no suffix of the unit: whoever validates it says what is wrong.
    """
    match = _NUMBER_WITH_SUFFIX.fullmatch(text)
    if match is None or (factor := UNITS[unit].get(match[2].lower())) is None:
        return text
    number = Fraction(match[1]) * factor
    return str(number.numerator) if number.denominator == 1 else str(float(number))


def with_unit(value: float, unit: str) -> str:
    """Return a number as a user would write it: by the largest suffix of which it is a whole number.

    :param unit: what the number counts, a key of `UNITS`.
    """
    suffixes = {scale: suffix for suffix, scale in reversed(UNITS[unit].items())}
    for scale, suffix in sorted(suffixes.items(), reverse=True):
        if value and Fraction(value) % scale == 0:
            return f"{Fraction(value) / scale}{suffix}"
    return f"{value:g}"
