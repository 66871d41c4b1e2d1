"""The order of the tests when several processes share them (xdist)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, TypeVar

Test = TypeVar("Test")


class Rank(NamedTuple):
    """The place of a test in the order."""

    length: int
    """The position of the tests by their duration: 0 for the longest tests."""
    group: str
    """Tests of one length and group stay together, since they share fixtures of a process."""


def dealt(ranked: Sequence[tuple[Rank, Test]], processes: int) -> list[Test]:
    """Return the tests so that each process starts with its share of the long tests, longest first.

    `--dist worksteal` splits the list into one piece for each process; an idle process takes tests from the
    end of another piece. So each piece begins with long tests and ends with short ones. A group goes to the
    process with the fewest tests. The shortest tests are groups of one, which make the pieces equal.
    """
    pieces: list[list[Test]] = [[] for _ in range(processes)]
    in_order = sorted(ranked, key=lambda pair: pair[0].length)
    for _, group in groupby(in_order, key=lambda pair: pair[0]):
        shortest = min(reversed(pieces), key=len)
        shortest.extend(test for _, test in group)
    return [test for piece in pieces for test in piece]
