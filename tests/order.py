"""The order of the tests where several processes share them (xdist)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

Test = TypeVar("Test")


def dealt(ranked: Sequence[tuple[int, Test]], processes: int) -> list[Test]:
    """Return the tests so that each process begins with its share of the long ones, longest first.

    `--dist worksteal` cuts the list into one piece for each process, the first ones being shorter by one
    test if need be; who is done takes from the end of another's piece. So every piece begins with long
    tests, and ends with short ones to be taken.

    :param ranked: the lower a test's rank, the longer it takes.
    """
    in_order = [test for _, test in sorted(ranked, key=lambda each: each[0])]
    return [test for first in reversed(range(processes)) for test in in_order[first::processes]]
