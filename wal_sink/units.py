"""Durations and sizes as users write them: `10s`, `5m`, `1h`; `64m`, `10g`; or a plain number.

Sizes have the suffixes of Spark's own settings, which are binary: 1k is 1,024 bytes. A duration without a
suffix is in the unit of its option: seconds, or milliseconds if the option's name ends in `.ms`.
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

    :param unit: a key of `UNITS`.
    :return: `text` itself if it has no suffix of the unit. The caller validates the number.
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
    for scale, suffix in sorted(suffixes.items(), reverse=True):
        if value and Fraction(value) % scale == 0:
            return f"{Fraction(value) / scale}{suffix}"
    return f"{value:g}"
