"""Tells a observer of each window that its flusher has finished: once, and not of those of other flushers.

A row counts when the mark is moved over it, not when it is written: a window that is written again, after
an error or a crash, would count twice. The answer to `finish` may be lost, and then it is the next look at
the ledger that says whether the mark has moved. So a window is remembered from the moment its `finish` was
asked for, unless that was refused: then another flusher has moved the mark, and counts.
"""

from __future__ import annotations

import time
from collections.abc import Container

from wal_sink.model.ledger import Outcome, Window
from wal_sink.observer import Delivered, Observer


class DeliveryCount:
    """What one flusher has finished, and not told of yet."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._since_s = 0.0
        self._asked = ""

    def look(self) -> None:
        """Take the time: a step begins."""
        self._since_s = time.monotonic()

    def asked(self, window: Window, outcome: Outcome) -> None:
        """Remember a window: `finish` was asked for, and perhaps moved the mark."""
        if outcome is not Outcome.REFUSED:
            self._asked = window.nonce

    def finished(self, window: Window, given_up: Container[int]) -> None:
        """Count a window whose mark has moved, if this flusher moved it.

        :param given_up: epochs of it that were passed over (rule 22).
        """
        if self._asked != window.nonce:
            return
        self._asked = ""
        self._observer.flushed(
            [
                Delivered(epoch.epoch, epoch.rows, epoch.bytes, epoch.published_us)
                for epoch in window.epochs
                if epoch.epoch not in given_up
            ],
            time.monotonic() - self._since_s,
        )
