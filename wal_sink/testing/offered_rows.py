"""Reads rows that are offered while their window is begun, as a session does that encodes them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice

_FIRST = 3
"""Slices that are read ahead."""


class ReadsOffers:
    """Part of a session of tests, which encodes offered rows."""

    _offered: Iterator[tuple[Plan, Slice]] = iter(())

    def offer(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        """Read the first of them while the next update is on its way."""
        self._offered = rows

    def read_offered(self) -> None:
        """Read them: the update has been made, and its answer has not come."""
        offered, self._offered = self._offered, iter(())
        for _ in itertools.islice(offered, _FIRST):
            pass
