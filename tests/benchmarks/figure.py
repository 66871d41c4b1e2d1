"""A measured figure and its target."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec


class Target(msgspec.Struct, frozen=True):
    """The target of a figure."""

    way: Literal["at least", "at most"]
    value: float

    def __str__(self) -> str:
        return f"{self.way} {self.value:g}"


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure, measured in one or more rounds."""

    name: str
    values: tuple[float, ...]
    """The value of each round; empty if it was not measured, and `note` has the reason."""
    unit: str
    target: Target | None = None
    note: str = ""

    @property
    def median(self) -> float | None:
        """The median of the rounds; None if there are none."""
        return statistics.median(self.values) if self.values else None

    @property
    def met(self) -> bool | None:
        """Return True if the median reaches the target; None without a median or a target."""
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
    """Return a figure."""
    return Figure(name=name, values=tuple(values), unit=unit, target=target, note=note)


def at_least(value: float) -> Target:
    """Return a lower bound as a target."""
    return Target("at least", value)


def at_most(value: float) -> Target:
    """Return an upper bound as a target."""
    return Target("at most", value)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[min(len(values) - 1, round(len(values) * 0.99))]
