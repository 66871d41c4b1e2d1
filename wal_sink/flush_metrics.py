"""The events of a flush that metrics count. With metrics off, each is an empty call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FlushedEpoch(NamedTuple):
    """An epoch that is in the target."""

    epoch: int
    rows: int
    bytes: int
    """Of its segments."""
    published_us: int
    """Microseconds since 1970, by the publishing driver's clock."""


class FlushMetrics:
    """Counts what the flush of one query does. This one counts nothing; `metrics.QueryMetrics` does.

    The thread that flushes calls it; other threads read `in_flight`.
    """

    in_flight = 0
    """Requests on their way to the target, as the flusher's session says."""

    def started(self) -> None:
        """Note that a thread flushes the query from now on."""

    def ended(self) -> None:
        """Note that the thread has ended, whether or not anything waits."""

    def flushed(self, epochs: Sequence[FlushedEpoch], seconds: float | None) -> None:
        """Count a window, once: the ledger row was moved over it by this process.

        :param seconds: from the pass that took it to the ledger row's move; None: the answer was lost.
        """

    def retried(self, kind: str) -> None:
        """Count a request that is sent again.

        :param kind: `retry` or `throttle`, as `Target.classify` says.
        """

    def failed(self, kind: str, *, transient: bool) -> None:
        """Count a step that failed.

        :param kind: name of a class in `wal_sink.errors`, or `bug`.
        :param transient: whether trying again is the remedy.
        """

    def succeeded(self) -> None:
        """Note that a step was done: no error stops the flush."""
