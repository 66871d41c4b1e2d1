"""The events of a flush that metrics count. Without metrics, each call does nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class FlushedEpoch(NamedTuple):
    """An epoch that is in the target."""

    epoch: int
    rows: int
    bytes: int
    """Bytes of its segments."""
    published_us: int
    """Microseconds since 1970, by the publishing driver's clock."""


class FlushMetrics:
    """The events of one query's flush. This class ignores them; `metrics.QueryMetrics` counts them.

    The thread that flushes calls the methods. Other threads read `in_flight`.
    """

    in_flight = 0
    """How many requests of the flusher's session are not answered yet."""

    def started(self) -> None:
        """Count a thread that begins to flush the query."""

    def ended(self) -> None:
        """Count a thread that has ended, whether or not epochs are pending."""

    def flushed(self, epochs: Sequence[FlushedEpoch], seconds: float | None) -> None:
        """Count a window after this process has moved the ledger row over it; called once for each window.

        :param seconds: duration of the pass up to the ledger row's move; None: the answer was lost.
        """

    def retried(self, kind: str) -> None:
        """Count a request that is sent again.

        :param kind: `retry` or `throttle`, as `Target.classify` says.
        """

    def failed(self, kind: str, *, transient: bool) -> None:
        """Count a step that failed.

        :param kind: name of a class in `wal_sink.errors`, or `bug`.
        :param transient: True if the error may pass by itself.
        """

    def succeeded(self) -> None:
        """Count a step that succeeded: no error stops the flush now."""
