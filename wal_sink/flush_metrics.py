"""The events of a flush that metrics count. With metrics off, each is an empty call."""

from __future__ import annotations

from collections.abc import Sequence

from wal_sink.model.state import EpochManifest


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

    def flushed(self, epochs: Sequence[EpochManifest], seconds: float | None) -> None:
        """Count epochs, once: this process has marked them.

        :param seconds: since the pass began that wrote and marked them; None: an earlier one wrote them.
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
