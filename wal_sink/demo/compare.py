"""Compares the rows that a table should have with those that it has; knows nothing of the sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class RowCounts(NamedTuple):
    """How a table compares with its source, counted in rows."""

    expected: int
    found: int
    missing: int
    """Rows of the source that the table lacks, or holds with other values."""
    extra: int
    """Rows of the table that the source lacks: ghosts, doubles, mixtures."""
    examples: tuple[Hashable, ...]
    """A few of them, missing first."""

    @property
    def exact(self) -> bool:
        """Return True if the table holds exactly the rows of the source."""
        return self.missing == 0 and self.extra == 0


def compare_rows(expected: Iterable[Hashable], actual: Iterable[Hashable]) -> RowCounts:
    """Compare two collections of rows as multisets: a doubled row counts as extra."""
    wanted, present = Counter(expected), Counter(actual)
    missing, extra = wanted - present, present - wanted
    return RowCounts(
        expected=wanted.total(),
        found=present.total(),
        missing=missing.total(),
        extra=extra.total(),
        examples=(*list(missing)[:5], *list(extra)[:5]),
    )
