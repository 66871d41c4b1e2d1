"""Compares the rows of a table with its source, without any code of the sink."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class RowCounts(NamedTuple):
    """Numbers of rows of a table and its source."""

    expected: int
    found: int
    missing: int
    """Rows of the source that the table lacks, or has with other values."""
    extra: int
    """Rows of the table that the source lacks, or has fewer times."""
    examples: tuple[Hashable, ...]
    """At most five missing rows, then at most five extra rows."""

    @property
    def exact(self) -> bool:
        """Return True if the table has exactly the rows of the source."""
        return self.missing == 0 and self.extra == 0


def compare_rows(expected: Iterable[Hashable], actual: Iterable[Hashable]) -> RowCounts:
    """Compare two multisets of rows. A doubled row counts as an extra row."""
    wanted, present = Counter(expected), Counter(actual)
    missing, extra = wanted - present, present - wanted
    return RowCounts(
        expected=wanted.total(),
        found=present.total(),
        missing=missing.total(),
        extra=extra.total(),
        examples=(*list(missing)[:5], *list(extra)[:5]),
    )
