"""The metrics for Prometheus: the name, the help text and the value of each.

A `QueryMetrics` counts what the flush of one query does. Each scrape reads the backlog from log and
checkpoint, so the backlog is right while the flush hangs in a request, fails, or has ended. Every series has
the label `query_id`; `wal_sink_query_info` maps it to checkpoint and table.

When the flush of a query has ended, its series stay while epochs are pending, so that alerts continue. The
series stay for another `KEEP_S`, so that the last counts are scraped. After that a scrape removes the series.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from wal_sink import units
from wal_sink.checkpoint.checkpoint import Checkpoint, committed_us
from wal_sink.errors import WalSinkError
from wal_sink.progress.status import Backlog, aged_backlog
from wal_sink.telemetry import FlushedEpoch, FlushMetrics
from wal_sink.wal.segment import refused_files
from wal_sink.wal.store import LogStore, newest

logger = logging.getLogger(__name__)

KEEP_S = 900.0
"""Seconds for which the series of a query stay after its flush has ended and nothing is pending."""

_SECONDS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 21_600)

_LABELS = ("query_id", "target")
"""The labels of every series. `target` is empty unless the query names several targets."""

BACKLOG: Mapping[str, tuple[str, Callable[[Snapshot, int], float]]] = {
    "wal_sink_checkpointed_epoch": (
        "The last epoch that is checkpointed, -1 for none.",
        lambda read, _now_us: read.backlog.checkpointed,
    ),
    "wal_sink_flushed_epoch": (
        "The last epoch that is in the target, as the log says, -1 for none.",
        lambda read, _now_us: read.backlog.flushed,
    ),
    "wal_sink_pending_epochs": (
        "Epochs that are checkpointed and not flushed.",
        lambda read, _now_us: read.backlog.epochs,
    ),
    "wal_sink_pending_rows": ("Rows of pending epochs.", lambda read, _now_us: read.backlog.rows),
    "wal_sink_pending_bytes": (
        "Bytes of segments of pending epochs.",
        lambda read, _now_us: read.backlog.bytes,
    ),
    "wal_sink_oldest_pending_seconds": (
        "Age of the oldest pending epoch in seconds, 0 if nothing is pending. Alert on this metric.",
        lambda read, now_us: read.backlog.oldest_seconds(now_us),
    ),
    "wal_sink_quarantined_rows": (
        "Rows that could not be written, which the log keeps.",
        lambda read, _now_us: read.quarantined_rows,
    ),
    "wal_sink_pending_read_timestamp_seconds": (
        "Time of the last read of log and checkpoint for pending epochs, seconds since 1970.",
        lambda read, _now_us: read.read_us / 1_000_000,
    ),
}
"""Gauges that are read from log and checkpoint. A query has these gauges once a first read has succeeded."""

FLUSH: Mapping[str, tuple[str, Callable[[QueryMetrics], float]]] = {
    "wal_sink_flushers": (
        "Threads of this process that flush the query; 0 when its flush has ended.",
        lambda query: query.running,
    ),
    "wal_sink_flush_stopped": (
        "1 while the flush is stopped by an error that a retry does not cure, else 0.",
        lambda query: query.stopped,
    ),
    "wal_sink_requests_in_flight": (
        "Requests with rows that this process has sent to the target, and that are not answered.",
        lambda query: query.in_flight,
    ),
}
"""Gauges of the present state of the flush."""

INFO = "wal_sink_query_info"

RETRIES = ("retry", "throttle")
"""The kinds of errors after which a request is sent again, see `Target.classify`."""


class Snapshot(NamedTuple):
    """A backlog, and when it was read."""

    backlog: Backlog
    quarantined_rows: int
    read_us: int
    """Microseconds since 1970."""


class BacklogReader:
    """Reads the backlog of one target for each scrape.

    One thread reads at a time. While that thread waits for a store, others get the backlog of the last read.

    :param target: name of the target.
    """

    def __init__(self, checkpoint: Checkpoint, store: LogStore, target: str) -> None:
        self._checkpoint, self._store, self._target = checkpoint, store, target
        self._last: Snapshot | None = None
        self._reading = threading.Lock()

    def read(self) -> Snapshot | None:
        """Return the backlog. If log or checkpoint do not answer, return the backlog that was read last."""
        if not self._reading.acquire(blocking=False):
            return self._last
        try:
            self._last = self._read()
        except (OSError, WalSinkError) as error:
            logger.debug("the backlog cannot be read now: %s", error)
        finally:
            self._reading.release()
        return self._last

    def _read(self) -> Snapshot:
        state = newest(self._store)
        target = state.target(self._target) if state is not None else None
        committed = self._checkpoint.last_commit()
        if state is not None and target is not None:
            backlog = aged_backlog(self._store, state, target, committed)
        else:
            backlog = Backlog(committed, -1, 0, 0, 0)
        rows = sum(refused.rows for refused in refused_files(self._store))
        return Snapshot(backlog, rows, units.now_us())


class Metrics(Collector):
    """The metrics of all queries that one process flushes, in a registry of their own.

    :param clock_s: returns seconds since 1970.
    """

    def __init__(self, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._queries: dict[tuple[str, str], QueryMetrics] = {}
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def watch(
        self,
        query_id: str,
        checkpoint: Checkpoint,
        store: LogStore,
        target: str,
        table: str,
        *,
        several: bool,
    ) -> QueryMetrics:
        """Return the metrics of a query. A query that starts again keeps its counts.

        :param target: name of the target in the log. It is a label only if `several` is True.
        :param several: True if the query names several targets.
        """
        labels = query_id, target if several else ""
        with self._lock:
            query = self._queries.get(labels)
            if query is None:
                backlog = BacklogReader(checkpoint, store, target)
                query = QueryMetrics(labels, checkpoint.url, table, backlog.read)
                self._queries[labels] = query
            query.idle_since_s = None
            return query

    def collect(self) -> Iterator[Metric]:
        """Yield the series of all queries. Each scrape calls this in a thread of its own."""
        now_s = self._clock_s()
        with self._lock:
            queries = list(self._queries.values())
        families: dict[str, Metric] = {INFO: _info()}
        for query in queries:
            read = query.read_backlog()
            with self._lock:
                if query.check_expiry(read, now_s):
                    self._queries.pop(query.labels, None)
                    continue
            for family in query.families(read, round(now_s * 1_000_000)):
                if family.name in families:
                    families[family.name].samples += family.samples
                else:
                    families[family.name] = family
        yield from families.values()


class QueryMetrics(FlushMetrics):
    """Counts what the flush of one query does. `Metrics.watch` makes it.

    :param checkpoint: URL of the query's checkpoint.
    :param read_backlog: reads the backlog. Returns None if no read has succeeded yet.
    """

    def __init__(
        self,
        labels: tuple[str, str],
        checkpoint: str,
        table: str,
        read_backlog: Callable[[], Snapshot | None],
    ) -> None:
        self.labels, self._checkpoint, self._table = labels, checkpoint, table
        self.read_backlog = read_backlog
        self.running: int = 0
        """Number of threads that flush the query."""
        self.stopped: int = 0
        """1 while the flush is stopped by an error that a retry does not cure, else 0."""
        self.idle_since_s: float | None = None
        """Time of the first scrape that saw the flush ended and nothing pending, in seconds since 1970.
        None if the last scrape did not see this."""
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry)
        histogram = partial(
            Histogram, labelnames=_LABELS, registry=self._registry, buckets=_SECONDS
        )
        self._rows = counter(
            "wal_sink_flushed_rows", "Rows that this process brought into the target.", _LABELS
        ).labels(*labels)
        self._bytes = counter(
            "wal_sink_flushed_bytes", "Bytes of the segments of flushed epochs.", _LABELS
        ).labels(*labels)
        self._epochs = counter(
            "wal_sink_flushed_epochs", "Epochs that this process brought into the target.", _LABELS
        ).labels(*labels)
        self._flush_seconds = histogram(
            "wal_sink_flush_seconds",
            "Seconds from the start of a window of epochs to its ledger row, for tries that succeed.",
        ).labels(*labels)
        self._visible_seconds = histogram(
            "wal_sink_commit_to_visible_seconds",
            "Seconds from Spark's commits/N to the ledger row, for each epoch: the whole epoch is visible"
            " then.",
        ).labels(*labels)
        by_kind = (*_LABELS, "kind")
        self._errors = counter(
            "wal_sink_flush_errors",
            "Steps of the flush that failed and are tried again, by the error's kind.",
            by_kind,
        )
        self._retries = counter(
            "wal_sink_request_retries",
            "Requests with rows that were sent again, by kind: retry, or throttle if the target is"
            " overloaded.",
            by_kind,
        )
        # Series begin at 0: PromQL's `increase` does not count the first value of a series.
        for kind in RETRIES:
            self._retries.labels(*labels, kind)
        for kind in ("TargetUnavailable", "LogUnavailable"):
            self._errors.labels(*labels, kind)

    def families(self, read: Snapshot | None, now_us: int) -> Iterator[Metric]:
        """Yield the series of the query.

        :param read: the backlog. If it is None, its gauges have no value.
        """
        yield from self._registry.collect()
        info = _info()
        info.add_metric([*self.labels, self._checkpoint, self._table], 1)
        yield info
        for name, (text, state) in FLUSH.items():
            family = _gauge(name, text)
            family.add_metric(self.labels, state(self))
            yield family
        for name, (text, value) in BACKLOG.items():
            family = _gauge(name, text)
            if read is not None:
                family.add_metric(self.labels, value(read, now_us))
            yield family

    def check_expiry(self, read: Snapshot | None, now_s: float) -> bool:
        """Return True if the flush has ended and nothing has been pending for more than `KEEP_S`.

        Each scrape calls this method, which stores in `idle_since_s` since when both are true.
        """
        if self.running or read is None or read.backlog.epochs:
            self.idle_since_s = None
            return False
        if self.idle_since_s is None:
            self.idle_since_s = now_s
        return now_s - self.idle_since_s > KEEP_S

    def started(self) -> None:
        """See `FlushMetrics`."""
        with self._lock:
            self.running += 1

    def ended(self) -> None:
        """See `FlushMetrics`. `stopped` keeps its value, since the next flush would have the same error."""
        with self._lock:
            self.running -= 1

    def flushed(self, epochs: Sequence[FlushedEpoch], seconds: float | None) -> None:
        """See `FlushMetrics`."""
        now_us = units.now_us()
        self._rows.inc(sum(epoch.rows for epoch in epochs))
        self._bytes.inc(sum(epoch.bytes for epoch in epochs))
        self._epochs.inc(len(epochs))
        if seconds is not None:
            self._flush_seconds.observe(seconds)
        for epoch in epochs:
            since_us = committed_us(self._checkpoint, epoch.epoch, epoch.published_us)
            self._visible_seconds.observe(max(0, now_us - since_us) / 1_000_000)

    def retried(self, kind: str) -> None:
        """See `FlushMetrics`."""
        self._retries.labels(*self.labels, kind).inc()

    def failed(self, kind: str, *, transient: bool) -> None:
        """See `FlushMetrics`."""
        self._errors.labels(*self.labels, kind).inc()
        self.stopped = int(not transient)

    def succeeded(self) -> None:
        """See `FlushMetrics`."""
        self.stopped = 0


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=[*_LABELS, *labels])


def _info() -> GaugeMetricFamily:
    return _gauge(INFO, "1; maps a query id to its checkpoint and table.", "checkpoint", "table")
