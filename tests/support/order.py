"""The order of the tests where several processes share them (xdist)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

Test = TypeVar("Test")


class Rank(NamedTuple):
    """Where a test comes."""

    length: int
    """The lower, the longer it takes."""
    group: str
    """Tests of one length and group stay together: they share what is made once in each process."""


def dealt(ranked: Sequence[tuple[Rank, Test]], processes: int) -> list[Test]:
    """Return the tests so that each process begins with its share of the long ones, longest first.

    `--dist worksteal` cuts the list into one piece for each process, the first ones being shorter by one
    test if need be; who is done takes from the end of another's piece. So every piece begins with long
    tests, and ends with short ones to be taken. A group goes to the process that has the fewest tests by
    then; the groups of the shortest ones are single tests, and even the pieces out.
    """
    pieces: list[list[Test]] = [[] for _ in range(processes)]
    in_order = sorted(ranked, key=lambda item: item[0].length)
    for _, group in groupby(in_order, key=lambda item: item[0]):
        shortest = min(reversed(pieces), key=len)
        shortest.extend(test for _, test in group)
    return [test for piece in pieces for test in piece]
