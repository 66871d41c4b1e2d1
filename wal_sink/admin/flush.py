"""`flush`: runs flushers in a process without Spark, once or with `--follow` until a signal.

Any number of flushers may work on one query. A flusher also deletes flushed epochs from the log once
`wal.retention` is over.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import msgspec
from tenacity import RetryCallState, stop_never

from wal_sink.admin.query import Query, actor, find_query, logged_options, wanted_targets
from wal_sink.configuration import retention_of
from wal_sink.errors import NotDrained, WalSinkError
from wal_sink.flush.flusher import Flusher, Pass
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.pipeline import Pipeline
from wal_sink.flush.reporter import Reporter
from wal_sink.flush.write import WriteInThread
from wal_sink.model.state import Mark, State
from wal_sink.progress.status import backlog_of
from wal_sink.protocol import state as protocol
from wal_sink.telemetry import FlushMetrics
from wal_sink.units import counted
from wal_sink.wal.location import store_errors
from wal_sink.wal.store import existing

_MOST_TRIES = 4
"""How often a pass with a transient error is tried at most; any other error ends the flush at once."""

_PROGRESS_S = 0.02
"""Seconds between two reports of progress."""

Watch = Callable[..., FlushMetrics]
"""Makes the metrics of a flusher, as `metrics.server.Exposition.watch` does."""

Wait = Callable[[float], bool]
"""Waits for a number of seconds; returns True as soon as the flush has to end."""


Progress = Callable[[int, int], object]
"""Called with the number of flushed epochs and the number of all epochs to flush."""


class FlushDone(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a flush to one target. The counts include what other processes have flushed meanwhile.

    In a dry run, the counts are of the epochs that would be flushed. `wal-sink flush --json` prints this
    class.
    """

    query_id: str
    target: str
    """Name of the target in the log."""
    log: str
    dry_run: bool = False
    flushed: int
    """The last epoch that the target has; -1 for none."""
    epochs: int
    rows: int
    bytes: int
    pending_epochs: int
    """Number of epochs that are checkpointed and not flushed at the end."""
    trimmed: int
    """The last epoch whose files are deleted from the log."""
    seconds: float
    reason: str
    """Why the flush ended."""


@store_errors()
def preview(query: Query, name: str = "") -> list[FlushDone]:
    """Return what `flush` would do now. Change nothing, and connect to no target.

    :param name: the only target; empty for all targets.
    :raises WrongOwner: checkpoint and log do not belong together.
    """
    began_s, state = time.monotonic(), query.own_state()
    retention, committed = retention_of(query.sink_options(state)), query.checkpoint.last_commit()
    state = protocol.trim(state, retention, actor()) or state
    return [
        msgspec.structs.replace(
            _outcome(query, state, target.name, committed, began_s, "a dry run changes nothing"),
            dry_run=True,
        )
        for target in wanted_targets(state, name)
    ]


def _outcome(
    query: Query | Pipeline, state: State, name: str, committed: int, began_s: float, reason: str
) -> FlushDone:
    """Return the outcome for a target, with the counts of the pending epochs as those to flush."""
    backlog = backlog_of(state, protocol.named_target(state, name), committed)
    return FlushDone(
        query_id=query.query_id,
        target=name,
        log=query.store.url,
        flushed=backlog.flushed,
        epochs=backlog.epochs,
        rows=backlog.rows,
        bytes=backlog.bytes,
        pending_epochs=backlog.epochs,
        trimmed=state.trimmed,
        seconds=time.monotonic() - began_s,
        reason=reason,
    )


def metrics_of(pipeline: Pipeline, watch: Watch | None) -> FlushMetrics | None:
    """Return the metrics of a flusher; None if `watch` is None."""
    return watch and watch(
        *(pipeline.query_id, pipeline.checkpoint, pipeline.store, pipeline.target_name),
        pipeline.target.writes_to,
        several=pipeline.several,
    )


class HostedFlusher:
    """A flusher in a thread of this process.

    :param rows_per_second: `flush.maxRowsPerSecond`; None for no limit.
    :param watch: makes the metrics; None for no metrics.
    :param until: the epoch after which the flusher ends; None: it runs until `stop`. With an epoch, the
        flusher also ends at an error that is not transient, and after four tries at a transient error.
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
        self._began_s, self._first = time.monotonic(), self._mark(existing(pipeline.store))
        self.reason = ""
        """Why the flusher ended by itself; empty if it runs or was stopped."""
        metrics = metrics_of(pipeline, watch)
        reporter = Reporter(pipeline.store, pipeline.target_name, gives_way=True, metrics=metrics)
        self._flusher = Flusher(pipeline, reporter, write_rows=WriteInThread(rows_per_second))
        stop = stop_never if until is None else _is_final
        self.loop = FlushLoop(self._flusher, self._is_last, stop)

    @property
    def progress(self) -> tuple[int, int]:
        """Return the number of flushed epochs, and the number of all epochs up to `until`."""
        first, until = self._first.epoch, self._until or 0
        return max(0, self._flusher.mark - first), max(0, until - first)

    def end(self) -> FlushDone:
        """Wait for the thread, and return what was flushed.

        :raises WalSinkError: the error that ended the flusher.
        """
        self.loop.join()
        if self.loop.error is not None:
            raise self.loop.error
        state, first = existing(self.pipeline.store), self._first
        mark = self._mark(state)
        outcome = _outcome(
            self.pipeline,
            state,
            self.pipeline.target_name,
            self.pipeline.checkpoint.last_commit(),
            self._began_s,
            self.reason or "stopped",
        )
        return msgspec.structs.replace(
            outcome,
            epochs=mark.epoch - first.epoch,
            rows=mark.sums.rows - first.sums.rows,
            bytes=mark.sums.bytes - first.sums.bytes,
        )

    def _mark(self, state: State) -> Mark:
        return protocol.named_target(state, self.pipeline.target_name).mark

    def _is_last(self, done: Pass) -> bool:
        if self._flusher.mark < self._first.epoch:  # the target went back
            # If the state cannot be read, the next pass fails, and the loop tries that pass again.
            with contextlib.suppress(OSError, WalSinkError):
                self._first = self._mark(existing(self.pipeline.store))
        if self._until is None:
            return False
        if done.idle:
            self.reason = done.reason
        elif self._flusher.mark >= self._until:
            self.reason = "everything that was checkpointed at the start is flushed"
        return bool(self.reason)


@store_errors()
def drain(
    pipelines: Sequence[Pipeline],
    rows_per_second: int | None = None,
    *,
    wait: Wait,
    progress: Progress = lambda _done, _total: None,
) -> list[FlushDone]:
    """Flush the epochs that are checkpointed now to all targets at the same time, and trim the log.

    An error of one target does not stop the flush to the others.

    :raises NotDrained: `wait` ended the flush early.
    :raises WalSinkError: the flush to a target failed. A transient error is raised after four tries.
    """
    flushers = [
        HostedFlusher(pipeline, rows_per_second, until=pipeline.checkpoint.last_commit())
        for pipeline in pipelines
    ]
    for flusher in flushers:
        flusher.loop.start()
    try:
        while any(flusher.loop.is_alive() for flusher in flushers) and not wait(_PROGRESS_S):
            done, total = zip(*(flusher.progress for flusher in flushers), strict=True)
            progress(sum(done), sum(total))
    finally:
        for flusher in flushers:
            flusher.loop.stop()
    outcomes = [flusher.end() for flusher in flushers]
    if not all(flusher.reason for flusher in flushers):
        flushed = sum(outcome.epochs for outcome in outcomes)
        pending = sum(outcome.pending_epochs for outcome in outcomes)
        raise NotDrained(
            f"The flush was interrupted after {counted(flushed, 'epoch')};"
            f" {counted(pending, 'epoch is', 'epochs are')} pending.",
            "Nothing is lost. Run the command again.",
        )
    return outcomes


def _is_final(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    transient = isinstance(error, WalSinkError) and error.transient
    return not transient or state.attempt_number == _MOST_TRIES


REFRESH_S, REFRESH_BILLED_S = 2.0, 60.0
"""Seconds between two reads of the list of queries; the longer time is for stores that bill requests."""


class Candidate(NamedTuple):
    """A query that may have something to flush."""

    place: str
    """URL of the log or the checkpoint, which identifies the query."""
    open: Callable[[], Query]
    """Opens the query, or raises a `WalSinkError` if the query cannot be flushed yet."""


Find = Callable[[], Iterable[Candidate]]
"""Returns the queries that exist now."""

_LIST = ""
"""Stands for the place of a query if the list of queries itself cannot be read."""


class _Followed(NamedTuple):
    """A query with running flushers."""

    query_id: str
    options: Mapping[str, str]
    """The options of the run for which the flushers were started."""
    flushers: Sequence[HostedFlusher]


class Follower:
    """Flushes all queries of a list, which it reads again every few seconds. Not thread-safe.

    Each target of a query gets a flusher. If a new run of the query has other options, the flushers of the
    query are started again. If its log is gone, they are stopped.

    :param find: returns the present queries.
    :param say: called with a line of text at each change.
    :param watch: makes the metrics; None for no metrics.
    :param target: the only target; empty for all targets.
    :param billed: True if the store of the logs bills each request.
    """

    def __init__(
        self,
        find: Find,
        say: Callable[[str], object],
        watch: Watch | None = None,
        *,
        target: str = "",
        billed: bool = False,
    ) -> None:
        self._find, self._say, self._watch, self._target = find, say, watch, target
        self._period_s = REFRESH_BILLED_S if billed else REFRESH_S
        self._followed: dict[str, _Followed] = {}
        self.complaints: dict[str, str] = {}
        """Why a query is not flushed, by the place of its log."""
        self._outcomes: dict[tuple[str, str], FlushDone] = {}

    def run(self, wait: Wait) -> list[FlushDone]:
        """Flush until `wait` returns True. Return an outcome for each query and target."""
        try:
            self.refresh()
            while not wait(self._period_s):
                self.refresh()
        finally:
            # This loop waits for no flusher, so that all of them end at the same time.
            for followed in self._followed.values():
                for flusher in followed.flushers:
                    flusher.loop.stop()
            for place in list(self._followed):
                self._end(place)
        return list(self._outcomes.values())

    def refresh(self) -> None:
        """Start the flushers of new queries, and end the flushers of queries that are gone."""
        try:
            candidates = {candidate.place: candidate for candidate in self._find()}
        except (OSError, WalSinkError) as error:
            self._complain(_LIST, error)
            return
        self.complaints.pop(_LIST, None)
        for place in self._followed.keys() - candidates.keys():
            self._say(f"The log {place} is gone. Nothing more is flushed from it")
            self._end(place, is_gone=True)
        for place in self.complaints.keys() - candidates.keys():
            del self.complaints[place]
        for place, candidate in candidates.items():
            try:
                self.follow(candidate)
            except (OSError, WalSinkError) as error:
                self._complain(place, error)
            else:
                self.complaints.pop(place, None)

    @store_errors()
    def follow(self, candidate: Candidate) -> None:
        """Start the flushers of a query, unless they run with its present options."""
        followed, query = self._followed.get(candidate.place), candidate.open()
        state = query.own_state()
        options = logged_options(state)
        if followed is not None:
            is_same = (followed.query_id, followed.options) == (query.query_id, options)
            if is_same and all(flusher.loop.is_alive() for flusher in followed.flushers):
                return
            self._end(candidate.place)
        rate = query.sink_options(state).max_rows_per_second
        flushers = [
            HostedFlusher(pipeline, rate, self._watch)
            for pipeline in query.pipelines(state, self._target)
        ]
        for flusher in flushers:
            flusher.loop.start()
        self._followed[candidate.place] = _Followed(query.query_id, options, flushers)
        targets = ", ".join(flusher.pipeline.target_name for flusher in flushers)
        self._say(f"Query {query.query_id}: flushing {query.checkpoint.url} to {targets}")

    def _end(self, place: str, *, is_gone: bool = False) -> None:
        """End the flushers of a query, and add their counts to the outcomes. A log that is gone has none."""
        followed = self._followed.pop(place)
        for flusher in followed.flushers:
            flusher.loop.stop()
        for flusher in followed.flushers:
            try:
                outcome = flusher.end()
            except (OSError, WalSinkError) as error:
                if not is_gone:
                    self._complain(place, error)
                continue
            former = self._outcomes.get((outcome.query_id, outcome.target))
            if former is not None:
                sums = ("epochs", "rows", "bytes", "seconds")
                added = {name: getattr(former, name) + getattr(outcome, name) for name in sums}
                outcome = msgspec.structs.replace(outcome, **added)
            self._outcomes[outcome.query_id, outcome.target] = outcome

    def _complain(self, place: str, error: Exception) -> None:
        """Report once why a query is not flushed. The next refresh tries again."""
        text = error.one_line if isinstance(error, WalSinkError) else repr(error)
        if self.complaints.get(place) != text:
            self.complaints[place] = text
            self._say(f"{place or 'The logs'}: not flushed for now. {text}")


def at_checkpoint(checkpoint: str, wal: str | None, options: Mapping[str, str]) -> Candidate:
    """Return the query at a checkpoint, which may start later. It has the arguments of `find_query`."""
    return Candidate(checkpoint, partial(find_query, checkpoint, wal, options))
