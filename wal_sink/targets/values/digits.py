"""Numbers that are written as text, of more digits than Spark's 38: what such a text may look like."""

from __future__ import annotations

import decimal
from typing import NamedTuple

MOST = 4_000
"""Characters of such a text: Python takes an integer of at most 4,300 digits from one."""

WHOLE = r"\A[+-]?[0-9]+\z"
"""A whole number."""
WHOLE_ONCE = r"\A(0|-?[1-9][0-9]*)\z"
"""The only way to write it: no plus sign, no zeros in front."""
DECIMAL = r"\A[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,4})?\z"
"""A number with or without a fraction, and with or without an exponent."""
DECIMAL_ONCE = r"\A(0|-?([1-9][0-9]*|(0|[1-9][0-9]*)\.[0-9]*[1-9]))\z"
"""The only way to write it: no exponent, no zeros in front or at the end of a fraction."""


class Scaled(NamedTuple):
    """The number `unscaled` · 10^-`scale`."""

    unscaled: int
    scale: int


def scaled(text: str) -> Scaled:
    """Take a text that matches `DECIMAL` apart; it keeps its scale: 1.50 is not 1.5.

    The same as Java's `new BigDecimal(text)`, but that a zero has no sign.
    """
    sign, digits, exponent = decimal.Decimal(text).as_tuple()
    assert isinstance(exponent, int), "neither infinite nor NaN"
    unscaled = int("".join(map(str, digits)))
    return Scaled(-unscaled if sign else unscaled, -exponent)
