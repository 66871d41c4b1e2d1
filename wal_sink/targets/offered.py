"""What a session may offer beside `base.Session`: it encodes rows while their window is begun (rule 14).

A conditional update takes as long as to encode the rows of a small epoch, and the flusher would only wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from wal_sink.model.plan import Plan
from wal_sink.targets.base import Slice


@runtime_checkable
class TakesOffers(Protocol):
    """A session that can make rows ready while `begin` or `replace_row` is on its way."""

    def offer(self, rows: Iterator[tuple[Plan, Slice]]) -> None:
        """Offer the rows of the window that is begun next.

        The session takes as many as it likes, in memory that is bounded, and lets none of them leave: where
        the window is begun, all of them come by `write` after `start`, the same objects again. An offer is
        over when the update has its answer.
        """
