"""`flush`: hosts a flusher in a process without Spark. Any number of flushers may act on one query.

The flusher trims as well: it deletes flushed epochs once `wal.retention` is over.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import msgspec
from tenacity import RetryCallState

from wal_sink.admin.query import Progress, Query, actor, no_progress, sink_options
from wal_sink.configuration import retention_of
from wal_sink.errors import NotDrained, WalSinkError
from wal_sink.flush.flusher import Flusher, Pass
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.report import Reporter
from wal_sink.flush.write import WriteInThread
from wal_sink.flush_metrics import FlushMetrics
from wal_sink.model.state import Mark, State
from wal_sink.progress.backlog import backlog_of
from wal_sink.protocol import state as protocol
from wal_sink.text import counted
from wal_sink.wal.garbage import garbage
from wal_sink.wal.location import refuse_other_log, store_errors
from wal_sink.wal.states import newest

_TRIES = 4
"""How often a pass is tried whose error may pass by itself; at any other error the flush ends at once."""

_SIGNAL_S = 0.1
"""How soon a waiting flusher notices a signal."""


Watch = Callable[..., FlushMetrics]
"""Makes the metrics of a flusher, see `metrics.server.Exposition.watch`."""


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the log."""

    path: str
    """Below the log's folder."""
    bytes: int


class FlushDone(msgspec.Struct, frozen=True, kw_only=True):
    """What was flushed meanwhile, by this process or another; of a dry run, what would be."""

    query_id: str
    target: str
    """Its name in the log."""
    log: str
    dry_run: bool
    flushed: int
    """The last epoch that is in the target, -1 for none."""
    epochs: int
    rows: int
    bytes: int
    pending_epochs: int
    """Checkpointed and not flushed, at the end."""
    trimmed: int
    """What the log had of epochs up to this one is deleted; of a dry run, would be."""
    deletes: tuple[LogFile, ...] = ()
    """What a dry run would delete. The files of what is flushed now go later, and are not listed."""
    seconds: float
    reason: str
    """Why it ended."""


@store_errors()
def preview(query: Query, name: str = "") -> list[FlushDone]:
    """Say what `flush` would do now for each target, or for one. Changes nothing, and never connects.

    :raises WrongOwner, OptionError: see `Query.state`.
    """
    started_s = time.monotonic()
    state = query.state()
    protocol.refuse_other_place(state, query.query_id, query.checkpoint.url)
    retention = retention_of(sink_options(query, state))
    trimmed = protocol.trim(state, retention, actor()) or state
    files = _sized(query, garbage(query.store, trimmed))
    committed = query.checkpoint.last_commit()
    wanted = [protocol.named_target(state, name)] if name else state.live or state.targets
    backlogs = [(target.name, backlog_of(state, target, committed)) for target in wanted]
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
            deletes=files,
            seconds=time.monotonic() - started_s,
            reason="a dry run changes nothing",
        )
        for target, backlog in backlogs
    ]


def _sized(query: Query, listed: list[str]) -> tuple[LogFile, ...]:
    sizes: dict[str, int] = {}
    for folder in sorted({path.partition("/")[0] for path in listed}):
        sizes |= query.store.backend.sizes(f"{folder}/")
    return tuple(LogFile(path=path, bytes=sizes[path]) for path in listed if path in sizes)


class FlushCommand:
    """Hosts a flusher. One thread uses it; another one, or a signal handler, may call `stop`.

    :param pipeline: of one of the query's targets.
    :param rows_per_second: `flush.maxRowsPerSecond`.
    :param watch: makes what counts for metrics; None: nothing is counted.
    :raises WrongOwner: log and checkpoint do not belong together; nothing was written to the log.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        rows_per_second: int | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.pipeline = pipeline
        state = newest(pipeline.store)
        refuse_other_log(pipeline.store, pipeline.checkpoint)
        if state is not None:  # a copy reports nothing in the log of the original
            protocol.refuse_other_place(state, pipeline.query_id, pipeline.checkpoint.url)
        name = pipeline.target_name
        metrics = watch and watch(
            *(pipeline.query_id, pipeline.checkpoint, pipeline.store, name),
            pipeline.target.writes_to,
            several=pipeline.several,
        )
        reporter = Reporter(pipeline.store, name, gives_way=True, metrics=metrics)
        self._flusher = Flusher(pipeline, reporter, write_rows=WriteInThread(rows_per_second))
        self._tally = _Tally(pipeline)
        self._endless_loop: FlushLoop | None = None
        self._started_s = time.monotonic()
        # No Event: a signal handler calls `stop` while this thread may hold the lock of it.
        self._stopping = False

    def stop(self) -> None:
        """End after the slice under way; called from a signal handler."""
        self._stopping = True
        self._flusher.interrupt()

    def drain(self, progress: Progress = no_progress) -> FlushDone:
        """Flush what is checkpointed now, and trim.

        :raises NotDrained: it was stopped before.
        :raises WalSinkError: the flush stops at it; a transient one is raised after some tries.
        """
        goal = self.pipeline.checkpoint.last_commit()
        total = self._tally.pending(goal)
        progress(0, total)
        reason = ""

        def is_last(done: Pass) -> bool:
            nonlocal reason
            was_past = self._tally.is_past(goal)
            self._tally.refresh()
            progress(self._tally.epochs, total)
            if done.idle:
                reason = done.reason
            elif was_past and self._tally.is_past(goal):
                # After one more pass, which trims; a target that went back is not past the goal.
                reason = "everything that was checkpointed at the start is flushed"
            return bool(reason)

        self._run(FlushLoop(self._flusher, is_last, _gives_up))
        if not reason:
            raise NotDrained(
                f"Interrupted after {counted(self._tally.epochs, 'epoch')};"
                f" {counted(self._done('').pending_epochs, 'epoch is', 'epochs are')} pending.",
                "Nothing is lost: run it again.",
            )
        return self._done(reason)

    def follow(self, progress: Progress = no_progress) -> FlushDone:
        """Flush until `stop`. An error is reported, and the pass is tried again (rule `stop`)."""
        self._run(self._endless(progress))
        self._tally.refresh()
        return self._done("stopped")

    def begin(self) -> None:
        """Do as `follow` in another thread, until `end`."""
        self._endless_loop = self._endless(no_progress)
        self._endless_loop.start()

    def is_alive(self) -> bool:
        """Return True if the flush that `begin` has begun goes on."""
        return self._endless_loop is not None and self._endless_loop.is_alive()

    def end(self) -> FlushDone:
        """End it, after the slice under way.

        :raises WalSinkError: at which it has ended before.
        """
        loop = self._endless_loop
        if loop is not None:
            self.stop()
            loop.stop()
            loop.join()
            if loop.error is not None:
                raise loop.error
        self._tally.refresh()
        return self._done("stopped")

    def _endless(self, progress: Progress) -> FlushLoop:
        """Return a loop that goes on until it is stopped."""

        def count(_: Pass) -> bool:
            # What cannot be read stops the flusher as well, which says so.
            with contextlib.suppress(OSError, WalSinkError):
                self._tally.refresh()
            progress(self._tally.epochs, self._tally.epochs)
            return False

        return FlushLoop(self._flusher, count)

    def _run(self, loop: FlushLoop) -> None:
        """Let a loop run to its end, or until `stop`; raise the error at which it has ended.

        A second Ctrl-C ends the process at once, and the loop with it.
        """
        if self._stopping:
            return
        loop.start()
        while loop.is_alive() and not self._stopping:
            loop.join(_SIGNAL_S)
        loop.stop()
        loop.join()
        if loop.error is not None:
            raise loop.error

    def _done(self, reason: str) -> FlushDone:
        tally, state = self._tally, self._tally.state
        committed = self.pipeline.checkpoint.last_commit()
        return FlushDone(
            query_id=self.pipeline.query_id,
            target=self.pipeline.target_name,
            log=self.pipeline.store.url,
            dry_run=False,
            flushed=tally.flushed,
            epochs=tally.epochs,
            rows=tally.rows,
            bytes=tally.bytes,
            pending_epochs=tally.pending(committed),
            trimmed=state.trimmed if state is not None else -1,
            seconds=time.monotonic() - self._started_s,
            reason=reason,
        )


class _Tally:
    """Adds up what the mark passes: differences of running sums."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.state: State | None = None
        self._mark: Mark | None = None
        self.epochs = self.rows = self.bytes = 0
        self.refresh()

    @property
    def flushed(self) -> int:
        """The target's last epoch, -1 for none."""
        target = self.state.target(self._pipeline.target_name) if self.state is not None else None
        return target.flushed if target is not None else -1

    def pending(self, committed: int) -> int:
        """Return how many epochs up to the last completed one the target lacks."""
        return max(0, committed - self._mark.epoch) if self._mark is not None else 0

    def is_past(self, epoch: int) -> bool:
        """Return True if the target has an epoch."""
        return self._mark is not None and self._mark.epoch >= epoch

    def refresh(self) -> None:
        """Add what was flushed since. Of a target that went back, what is flushed again counts again."""
        self.state, former = newest(self._pipeline.store), self._mark
        target = self.state.target(self._pipeline.target_name) if self.state is not None else None
        self._mark = target.mark if target is not None else None
        if self._mark is None or former is None or self._mark.epoch <= former.epoch:
            return
        self.epochs += self._mark.epoch - former.epoch
        self.rows += self._mark.sums.rows - former.sums.rows
        self.bytes += self._mark.sums.bytes - former.sums.bytes


def _gives_up(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    passes = isinstance(error, WalSinkError) and error.transient
    return not passes or state.attempt_number == _TRIES
