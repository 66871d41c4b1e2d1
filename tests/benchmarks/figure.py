"""A measured figure beside its target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec


class Target(msgspec.Struct, frozen=True):
    """What a figure should be."""

    way: Literal["at least", "at most"]
    value: float

    def __str__(self) -> str:
        return f"{self.way} {self.value:g}"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, from one or more rounds."""

    name: str
    values: tuple[float, ...]
    """One for each round; none when it could not be measured, and `note` says why."""
    unit: str
    target: Target | None = None
    note: str = ""

    @property
    def median(self) -> float | None:
        """The middle one."""
        return statistics.median(self.values) if self.values else None

    @property
    def met(self) -> bool | None:
        """Return True if the median reaches the target; None without one of both."""
        if self.target is None or self.median is None:
            return None
        if self.target.way == "at least":
            return self.median >= self.target.value
        return self.median <= self.target.value


def figure(
    name: str,
    values: Sequence[float],
    unit: str,
    target: Target | None = None,
    note: str = "",
) -> Figure:
    """Make a figure."""
    return Figure(name=name, values=tuple(values), unit=unit, target=target, note=note)


def at_least(value: float) -> Target:
    """Make a target."""
    return Target("at least", value)


def at_most(value: float) -> Target:
    """Make a target."""
    return Target("at most", value)


def p99(values: Sequence[float]) -> float:
    """Return the value that one of a hundred exceeds; the largest of fewer."""
    return sorted(values)[min(len(values) - 1, round(len(values) * 0.99))]
