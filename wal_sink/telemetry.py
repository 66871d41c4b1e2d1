"""The telemetry of a flusher: query, target and epoch in its log records, and the events for metrics.

Messages begin with `query <id>, target <name>, epoch <n>:`, and leave out a part that does not apply. Log
records have the attributes `query_id`, `target` and `epoch`, for handlers that write structured logs.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

_EVERY_S = 60.0

_QUERY: ContextVar[str] = ContextVar("wal_sink_query", default="")
_TARGET: ContextVar[str] = ContextVar("wal_sink_target", default="")
_EPOCH: ContextVar[int | None] = ContextVar("wal_sink_epoch", default=None)


@contextlib.contextmanager
def logging_query(query_id: str, target: str) -> Iterator[None]:
    """Within the block, add a query and one of its targets to the log records of this thread.

    :param target: the name of the target; empty for a single target.
    """
    query, name, epoch = _QUERY.set(query_id), _TARGET.set(target), _EPOCH.set(None)
    try:
        yield
    finally:
        _EPOCH.reset(epoch)
        _TARGET.reset(name)
        _QUERY.reset(query)


def log_epoch(epoch: int | None) -> None:
    """Set the epoch of the following log records in the block of `logging_query`; None for no epoch."""
    if _QUERY.get():
        _EPOCH.set(epoch)


class OncePerMinute:
    """Limits a repeated message to one a minute, for each kind of message."""

    def __init__(self) -> None:
        self._logged_s: dict[str, float] = {}

    def is_due(self, kind: str = "") -> bool:
        """Return True if a message was not logged in the last minute; the caller then logs it."""
        now_s = time.monotonic()
        if now_s - self._logged_s.get(kind, float("-inf")) < _EVERY_S:
            return False
        self._logged_s[kind] = now_s
        return True


class _FlushLogger(logging.LoggerAdapter[logging.Logger]):
    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        """Add query, target and epoch to a record."""
        query_id, target, epoch = _QUERY.get(), _TARGET.get(), _EPOCH.get()
        if not query_id:
            return msg, kwargs
        of_target = f", target {target}" if target else ""
        at_epoch = "" if epoch is None else f", epoch {epoch}"
        extra = {"query_id": query_id, "target": target, "epoch": epoch}
        return f"query {query_id}{of_target}{at_epoch}: {msg}", {**kwargs, "extra": extra}


def line_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return a logger whose lines name query, target and epoch, for code of a flusher's thread."""
    return _FlushLogger(logging.getLogger(name))


class FlushedEpoch(NamedTuple):
    """An epoch that is in the target."""

    epoch: int
    rows: int
    bytes: int
    """Bytes of the epoch's segments."""
    published_us: int
    """Microseconds since 1970, by the publishing driver's clock."""


class FlushMetrics:
    """Receives the events of one query's flush, and ignores them.

    The derived class `QueryMetrics` of the package `metrics` counts events. The thread that flushes calls the
    methods. Other threads read `in_flight`.
    """

    in_flight = 0
    """How many requests of the flusher's session are not answered yet."""

    def started(self) -> None:
        """Count a thread that begins to flush the query."""

    def ended(self) -> None:
        """Count a thread that has ended, whether or not epochs are pending."""

    def flushed(self, epochs: Sequence[FlushedEpoch], seconds: float | None) -> None:
        """Count a window after this process has moved the ledger row over it; called once for each window.

        :param seconds: from the start of the pass to the move of the ledger row; None if the answer was lost.
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
        """Count a step that succeeded. From now on, no error counts as stopping the flush."""


_METRICS: ContextVar[FlushMetrics | None] = ContextVar("wal_sink_metrics", default=None)


@contextlib.contextmanager
def counting_requests(metrics: FlushMetrics) -> Iterator[None]:
    """Within the block, `Target.connect` makes sessions that count their requests in `metrics`."""
    token = _METRICS.set(metrics)
    try:
        yield
    finally:
        _METRICS.reset(token)


def session_metrics() -> FlushMetrics:
    """Return the metrics of a new session. The session sets `in_flight`, and calls `retried`.

    Outside of a flusher the session gets metrics that nobody reads.
    """
    return _METRICS.get() or FlushMetrics()
