"""Up to which row of a query's history a total goes, and where the rows of a window are in it. Pure."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from wal_sink.model.ledger import Window

Ints = npt.NDArray[np.int64]


class Added(NamedTuple):
    """The last row that is in a total."""

    query: str
    """The key of the query's ledger row."""
    epoch: int
    row: int
    """Counted from 0 in the epoch."""

    def to_text(self) -> str:
        """Encode for the table; equal ones have equal texts."""
        return f"{self.query} {self.epoch} {self.row}"

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Decode what `to_text` has encoded.

        :raises ValueError: the text is something else.
        """
        query, epoch, row = text.rsplit(" ", 2)
        return cls(query, int(epoch), int(row))


class Places:
    """The rows of a begun window, by epoch and number.

    Both are the same however often an epoch is flushed, and in whichever window; its timestamps need not be.
    """

    def __init__(self, window: Window) -> None:
        self._epochs = np.array([begun.epoch for begun in window.epochs], np.int64)
        self._bases = np.array([begun.base_us for begun in window.epochs], np.int64)

    def of(self, stamps: Ints) -> tuple[Ints, Ints]:
        """Return the epoch of each row, and its number there.

        :param stamps: write timestamps, microseconds since 1970.
        """
        at = np.searchsorted(self._bases, stamps, side="right") - 1
        return self._epochs[at], stamps - self._bases[at]
