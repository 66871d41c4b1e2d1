"""`flush`: hosts flushers in a process without Spark. Any number of flushers may act on one query.

A flusher trims as well: it deletes flushed epochs once `wal.retention` is over.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec
from tenacity import RetryCallState, stop_never

from wal_sink.admin.query import Query, actor, wanted_targets
from wal_sink.configuration import retention_of
from wal_sink.errors import NotDrained, WalSinkError
from wal_sink.flush.flusher import Flusher, Pass
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.report import Reporter
from wal_sink.flush.write import WriteInThread
from wal_sink.flush_metrics import FlushMetrics
from wal_sink.model.state import TargetState
from wal_sink.progress.backlog import backlog_of
from wal_sink.protocol import state as protocol
from wal_sink.text import counted
from wal_sink.wal.location import store_errors
from wal_sink.wal.states import existing

_TRIES = 4
"""How often a pass is tried whose error may pass by itself; at any other error the flush ends at once."""

_PROGRESS_S = 0.02
"""How often progress is reported, and how soon the end is noticed."""

Watch = Callable[..., FlushMetrics]
"""Makes the metrics of a flusher, see `metrics.server.Exposition.watch`."""

Wait = Callable[[float], bool]
"""Waits some seconds; returns True, perhaps at once, if the work is to end."""


def never(seconds: float) -> bool:
    """Wait, and let the work go on."""
    time.sleep(seconds)
    return False


Progress = Callable[[int, int], object]
"""Called with how many epochs are flushed, and of how many."""


class FlushDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was flushed meanwhile, by this process or another; of a dry run, what would be."""

    query_id: str
    target: str
    """Its name in the log."""
    log: str
    dry_run: bool = False
    flushed: int
    """The last epoch that is in the target, -1 for none."""
    epochs: int
    rows: int
    bytes: int
    pending_epochs: int
    """Checkpointed and not flushed, at the end."""
    trimmed: int
    """What the log had of epochs up to this one is deleted; of a dry run, would be."""
    seconds: float
    reason: str
    """Why it ended."""


@store_errors()
def preview(query: Query, name: str = "") -> list[FlushDone]:
    """Say what `flush` would do now for each target, or for one. Changes nothing, and never connects.

    :raises WrongOwner, OptionError: see `Query.own_state`.
    """
    started_s, state = time.monotonic(), query.own_state()
    retention = retention_of(query.sink_options(state))
    trimmed = protocol.trim(state, retention, actor()) or state
    committed = query.checkpoint.last_commit()
    backlogs = {
        target.name: backlog_of(state, target, committed) for target in wanted_targets(state, name)
    }
    return [
        FlushDone(
            query_id=query.query_id,
            target=target,
            log=query.store.url,
            dry_run=True,
            flushed=backlog.flushed,
            epochs=backlog.epochs,
            rows=backlog.rows,
            bytes=backlog.bytes,
            pending_epochs=backlog.epochs,
            trimmed=trimmed.trimmed,
            seconds=time.monotonic() - started_s,
            reason="a dry run changes nothing",
        )
        for target, backlog in backlogs.items()
    ]


class HostedFlusher:
    """A flusher in a thread of this process, and what is flushed meanwhile.

    :param pipeline: of one target of a query, whose log belongs to its checkpoint.
    :param rows_per_second: `flush.maxRowsPerSecond`.
    :param watch: makes what counts for metrics; None: nothing is counted.
    :param until: the epoch at which it ends, if not at an error that does not pass; None: it goes on.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        rows_per_second: int | None = None,
        watch: Watch | None = None,
        *,
        until: int | None = None,
    ) -> None:
        self.pipeline, self._until = pipeline, until
        self.epochs = self._rows = self._bytes = 0
        self._state, self._began_s = existing(pipeline.store), time.monotonic()
        self.pending = 0 if until is None else max(0, until - self._target.mark.epoch)
        """Epochs that it is to flush."""
        self.reason = ""
        """Why it has ended by itself."""
        name = pipeline.target_name
        metrics = watch and watch(
            *(pipeline.query_id, pipeline.checkpoint, pipeline.store, name),
            pipeline.target.writes_to,
            several=pipeline.several,
        )
        reporter = Reporter(pipeline.store, name, gives_way=True, metrics=metrics)
        flusher = Flusher(pipeline, reporter, write_rows=WriteInThread(rows_per_second))
        self._loop = FlushLoop(flusher, self._is_last, stop_never if until is None else _gives_up)

    def start(self) -> None:
        """Begin to flush."""
        self._loop.start()

    def is_alive(self) -> bool:
        """Return True if the flush goes on."""
        return self._loop.is_alive()

    def stop(self) -> None:
        """End after the slice under way."""
        self._loop.stop()

    def end(self) -> FlushDone:
        """Wait for the end, and return what was flushed.

        :raises WalSinkError: at which it has ended.
        """
        self._loop.join()
        if self._loop.error is not None:
            raise self._loop.error
        self._count()
        pipeline = self.pipeline
        backlog = backlog_of(self._state, self._target, pipeline.checkpoint.last_commit())
        return FlushDone(
            query_id=pipeline.query_id,
            target=pipeline.target_name,
            log=pipeline.store.url,
            flushed=backlog.flushed,
            epochs=self.epochs,
            rows=self._rows,
            bytes=self._bytes,
            pending_epochs=backlog.epochs,
            trimmed=self._state.trimmed,
            seconds=time.monotonic() - self._began_s,
            reason=self.reason or "stopped",
        )

    def _is_last(self, done: Pass) -> bool:
        self._count()
        if self._until is None:
            return False
        if done.idle:
            self.reason = done.reason
        elif self._target.mark.epoch >= self._until:
            self.reason = "everything that was checkpointed at the start is flushed"
        return bool(self.reason)

    def _count(self) -> None:
        """Add what the mark has passed. What a target that went back gets again counts again."""
        former = self._target.mark
        # What cannot be read stops the flusher as well, which says so.
        with contextlib.suppress(OSError, WalSinkError):
            self._state = existing(self.pipeline.store)
        mark = self._target.mark
        if mark.epoch > former.epoch:
            self.epochs += mark.epoch - former.epoch
            self._rows += mark.sums.rows - former.sums.rows
            self._bytes += mark.sums.bytes - former.sums.bytes

    @property
    def _target(self) -> TargetState:
        return protocol.named_target(self._state, self.pipeline.target_name)


@store_errors()
def drain(
    pipelines: Sequence[Pipeline],
    rows_per_second: int | None = None,
    *,
    wait: Wait = never,
    progress: Progress = lambda _done, _total: None,
) -> list[FlushDone]:
    """Flush what is checkpointed now, to each target at once, and trim. An error of one stops no other.

    :param wait: ends the flush early.
    :raises NotDrained: it was ended early.
    :raises WalSinkError: the flush to a target stops at it; a transient one is raised after some tries.
    """
    flushers = [
        HostedFlusher(pipeline, rows_per_second, until=pipeline.checkpoint.last_commit())
        for pipeline in pipelines
    ]
    total = sum(flusher.pending for flusher in flushers)
    for flusher in flushers:
        flusher.start()
    try:
        while any(flusher.is_alive() for flusher in flushers) and not wait(_PROGRESS_S):
            progress(sum(flusher.epochs for flusher in flushers), total)
    finally:
        for flusher in flushers:
            flusher.stop()
    done = [flusher.end() for flusher in flushers]
    if not all(flusher.reason for flusher in flushers):
        flushed, pending = sum(one.epochs for one in done), sum(one.pending_epochs for one in done)
        raise NotDrained(
            f"Interrupted after {counted(flushed, 'epoch')};"
            f" {counted(pending, 'epoch is', 'epochs are')} pending.",
            "Nothing is lost: run it again.",
        )
    return done


def _gives_up(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    passes = isinstance(error, WalSinkError) and error.transient
    return not passes or state.attempt_number == _TRIES
