"""Starts, wakes and ends the flush of each query of a session, as Spark's events say.

A query is stopped as it starts for a mode that the sink refuses (`modes`), or to keep a proof (rule 12).
Spark drops what `onQueryStarted` raises, and the query runs on. So the sink stops the query, and raises the
error at the next call of the handle: `await_flushed`, `status` or `close`.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.clock import now_us
from wal_sink.configuration import FILE_MANAGER, Configuration, configure
from wal_sink.errors import CorruptLog, MissingManifest, OptionError, WalSinkError, WrongOwner
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.report import Reporter
from wal_sink.flush.run_history import RUN_HISTORY
from wal_sink.metrics.server import Exposition
from wal_sink.observer import Observer
from wal_sink.options import SinkOptions
from wal_sink.progress.heartbeat import this_process
from wal_sink.protocol.budget import Budget
from wal_sink.publish.fencing import take_ticket
from wal_sink.publish.start import (
    BATCHES_NEEDED,
    begin_log,
    claim_early,
    not_noted,
    note_without_sink,
)
from wal_sink.spark.arrow_batching import ArrowBatching
from wal_sink.spark.batch_writer import begin_run, options_at
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.events import RunWatcher
from wal_sink.spark.flush_job import WriteByJob
from wal_sink.spark.internals import spark_session, streaming_query
from wal_sink.spark.messages import say_abandoned, say_in_force, say_left
from wal_sink.spark.query import QueryFlush, take_over
from wal_sink.wal.location import owned, store_errors
from wal_sink.wal.log import Log
from wal_sink.wal.targets import attach_targets, refuse_other_targets

logger = logging.getLogger(__name__)


_ASKED = 4
"""How many queries that have ended are looked at at a time: each look costs two listings."""

_RETAIN = "spark.sql.streaming.minBatchesToRetain"

_DONE_KEPT = 100
"""Newest queries that are done of which checkpoint and log stay at hand."""


class Queries:
    """The queries that one handle has seen; those of other formats are ignored.

    :param at_exit: is called at interpreter exit, before the target's driver closes its connections.
    :param exposition: shows the queries' metrics; None: no metrics.
    :param flushes_here: whether this process flushes; another one does otherwise.
    :param tune_arrow_batches: whether to set how Spark hands rows over, see `ArrowBatching`.
    """

    def __init__(
        self,
        spark: SparkSession,
        at_exit: Callable[[], None],
        exposition: Exposition | None,
        *,
        flushes_here: bool,
        tune_arrow_batches: bool,
    ) -> None:
        self.flushes_here = flushes_here
        self._tune_arrow_batches = tune_arrow_batches
        self.run_watcher = RunWatcher(self)
        self.refused: dict[str, WalSinkError] = {}
        """Why each query was, or will be, refused, by its id; each access is one step for other threads."""
        self._spark = spark
        self._at_exit = at_exit
        self._exposition = exposition
        self._lock = threading.Lock()
        self._flushes: OrderedDict[str, QueryFlush] = OrderedDict()
        self._done: OrderedDict[str, tuple[Checkpoint, Log]] = OrderedDict()
        self.closed = False
        """Whether no further flush starts."""

    @store_errors()
    def started(self, query_id: str, run_id: str) -> None:
        """Start the flush and take the run's ticket; on Spark's thread, inside `start()`.

        :raises LogUnavailable: log or checkpoint cannot be used.
        """
        query = self._spark.streams.get(query_id)
        if query is not None and (begun := self._begin(query, run_id)) is not None:
            flush, configuration = begun
            sink = configuration.sink
            if not self._note_without_sink(query, flush):  # before the ticket, see rule 12
                return
            begin_run(flush.checkpoint, run_id)
            take_ticket(flush.log, run_id)  # a run with a ticket fills the log, flushed or not
            claim_early(
                flush.log,
                flush.checkpoint,
                run_id,
                Budget(sink.max_bytes, sink.on_full),
                configuration.public,
            )

    def _note_without_sink(self, query: StreamingQuery, flush: QueryFlush) -> bool:
        """Note what Spark made without a sink; whether the query may go on.

        Without a note its first commit fails, for want of a ticket. By then Spark has planned the epoch, and
        where it retains few batches, it has deleted the files that tell what is to be noted.
        """
        try:
            note_without_sink(flush.log, flush.checkpoint)
        except (OSError, WalSinkError) as error:
            if int(self._spark.conf.get(_RETAIN) or 0) >= BATCHES_NEEDED:
                raise
            self._refuse(query, not_noted(flush.log.url, error))
            return False
        return True

    def adopt_running(self) -> None:
        """Start the flush of queries that run already; a run has an earlier handle's ticket, or fails."""
        for query in streaming_query.running_queries(self._spark):
            if not streaming_query.is_active(query):
                continue  # it was told to stop, as a query that is refused is
            try:
                self._begin(query, str(query.runId))
                RUN_HISTORY.started(str(query.id), str(query.runId))
            except Exception:  # of this query alone; the handle is there for the others
                logger.warning(
                    "query %s runs already and cannot be flushed", query.id, exc_info=True
                )

    def progressed(self, query_id: str) -> None:
        """Wake the flush: an epoch is checkpointed."""
        if flush := self.find(query_id):
            flush.for_each_loop(FlushLoop.wake)

    def catch_up(self, query_id: str, run_id: str, query: StreamingQuery) -> None:
        """Wake the flush if a run has checkpointed what no event has told; called every ten seconds."""
        if flush := self.find(query_id):
            flush.arrow_batching.look_again()
        epoch = streaming_query.last_commit(query)
        if epoch is not None and RUN_HISTORY.caught_up(query_id, run_id, epoch):
            self.progressed(query_id)

    def has_caught_up(self, query_id: str, run_id: str) -> bool:
        """Ask a run what it has checkpointed; whether it answers."""
        query = self.run_watcher.query(run_id)
        if query is None or streaming_query.last_commit(query) is None:
            return False
        self.catch_up(query_id, run_id, query)
        return True

    def terminated(self, query_id: str, run_id: str) -> None:
        """Let the flush finish. A late event of an earlier run is ignored."""
        self.run_watcher.unwatch(run_id)
        flush = self.find(query_id)
        if flush is not None and flush.run_id == run_id:
            flush.terminated = True
            flush.for_each_loop(FlushLoop.end)

    def end_missed(self, query_id: str, run_id: str) -> None:
        """Let the flush finish: the run has ended, although no event has told so."""
        RUN_HISTORY.terminated(query_id, run_id)
        self.terminated(query_id, run_id)

    def drop_done(self) -> None:
        """Let go of queries that are done: `find` and `flushes` have them no more, `place` for a while.

        Looks at a few that have ended, the next ones at the next call.
        """
        with self._lock:
            ended = (flush for flush in self._flushes.values() if flush.terminated)
            asked = list(itertools.islice(ended, _ASKED))
        for flush in asked:
            done = flush.is_done()
            with self._lock:
                if self._flushes.get(flush.query_id) is not flush:
                    continue  # the query has started again meanwhile
                if not done:
                    self._flushes.move_to_end(flush.query_id)
                    continue
                del self._flushes[flush.query_id]
                RUN_HISTORY.unwatch(flush.query_id)
                self._done[flush.query_id] = flush.checkpoint, flush.log
                while len(self._done) > _DONE_KEPT:
                    self._done.popitem(last=False)

    def find(self, query_id: str) -> QueryFlush | None:
        """Return the flush of a query; None when this handle has not seen it, or it is done."""
        with self._lock:
            return self._flushes.get(query_id)

    def place(self, query_id: str) -> tuple[Checkpoint, Log] | None:
        """Return checkpoint and log of a query; None when it was not seen here, or was done long ago."""
        with self._lock:
            if flush := self._flushes.get(query_id):
                return flush.checkpoint, flush.log
            return self._done.get(query_id)

    def flushes(self) -> list[QueryFlush]:
        """Return the flush of every query that was seen, but for those that are done."""
        with self._lock:
            return list(self._flushes.values())

    def close(self) -> bool:
        """Start no further flush; return False when that was so already."""
        with self._lock:
            was_open, self.closed = not self.closed, True
        atexit.unregister(self._at_exit)
        return was_open

    def end_dead_runs(self) -> None:
        """Note that the runs of a stopped session have ended: Spark sends no event of it (rule 11)."""
        if spark_session.is_stopped(self._spark):
            for flush in self.flushes():
                RUN_HISTORY.terminated(flush.query_id, flush.run_id)

    def _begin(self, query: StreamingQuery, run_id: str) -> tuple[QueryFlush, Configuration] | None:
        """Start the flush of a query; None when it is of another format, refused, or this handle closed."""
        if self.closed:
            return None
        try:
            started = streaming_query.started_query(query, FORMAT, options_at)
        except OptionError as error:
            self._refuse(query, error)
            return None
        if started is None:
            return None
        configuration = configure(started.options, started.folder)
        checkpoint = configuration.location.open_checkpoint()
        log = configuration.location.open_log(started.query_id)
        try:
            # A copied checkpoint writes nothing into the log of the original.
            owned(log, checkpoint)
        except WrongOwner as error:
            # Where the query's own log is flushed here, this one is of a copy.
            if self.place(started.query_id) is None:
                # By its first commit: it may end without one.
                self.refused[started.query_id] = error
            raise
        try:
            configuration.refuse_bucket(self._spark.conf.get(FILE_MANAGER, None))
            refuse_other_targets(log, configuration.names)
            attach_targets(log, checkpoint, configuration.names, now_us(), this_process())
            is_new = begin_log(log, checkpoint)
        except (OptionError, MissingManifest, CorruptLog) as error:
            self._refuse(query, error)
            return None
        loops = self._loops(started.query_id, checkpoint, log, configuration)
        session = streaming_query.own_session(query)
        arrow_batching = ArrowBatching(session, log, wanted=self._tune_arrow_batches)
        arrow_batching.look()
        flush = QueryFlush(started.query_id, run_id, checkpoint, log, loops, arrow_batching)
        taken_over = take_over(flush.query_id) or self.place(flush.query_id) is not None
        self._say_what_is_left(flush, configuration, taken_over=taken_over, is_new=is_new)
        if not self._start(flush):
            return None
        self.run_watcher.watch(flush.query_id, run_id, query, log)
        logger.info("query %s starts with %s", flush.query_id, configuration.public)
        say_in_force(
            *(flush.query_id, configuration, log, started.sources, str(arrow_batching)),
            flushes_here=self.flushes_here,
        )
        return flush, configuration

    def _start(self, flush: QueryFlush) -> bool:
        """Start a flush, and stop an earlier one of its query; return False when this handle is closed."""
        with self._lock:
            if self.closed:
                return False
            # Exit handlers run last first: this one before that of the driver, which `_loop` has loaded.
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)
            earlier = self._flushes.get(flush.query_id)
            self._flushes[flush.query_id] = flush
            self._done.pop(flush.query_id, None)
            RUN_HISTORY.watch(flush.query_id)  # again, if an earlier run has just ended
            self.refused.pop(flush.query_id, None)
            flush.for_each_loop(FlushLoop.start)
        if earlier is not None:  # its options may be old; two that overlap do no harm
            earlier.for_each_loop(FlushLoop.stop)
        return True

    def _say_what_is_left(
        self, flush: QueryFlush, configuration: Configuration, *, taken_over: bool, is_new: bool
    ) -> None:
        """Say what earlier runs have left, and earlier queries.

        :param taken_over: whether another flusher of this process had it until now.
        :param is_new: whether the query has published nothing yet.
        """
        if self.flushes_here and not taken_over:
            say_left(flush)
        if is_new:
            say_abandoned(flush.query_id, configuration.location)

    def _refuse(self, query: StreamingQuery, error: WalSinkError) -> None:
        """Stop a query, and remember why; also inside `onQueryStarted`."""
        logger.error("query %s is refused: %s", query.id, error.one_line)
        self.refused[str(query.id)] = error
        streaming_query.stop(query)

    def _loops(
        self, query_id: str, checkpoint: Checkpoint, log: Log, configuration: Configuration
    ) -> list[FlushLoop]:
        """Make a loop for each target; none where another process flushes."""
        sink, loops = configuration.sink, []
        for name, target in ((each.name, each.target) for each in configuration.destinations):
            view, observer = log.of(name), None
            if self._exposition is not None:
                observer = self._exposition.watch(query_id, checkpoint, view, target.writes_to)
            if self.flushes_here:
                quarantine = sink.on_invalid_row == "quarantine"
                pipeline = Pipeline(query_id, view, checkpoint, target, sink.retention, quarantine)
                loops.append(self._loop(pipeline, sink, observer))
        return loops

    def _loop(self, pipeline: Pipeline, sink: SinkOptions, observer: Observer | None) -> FlushLoop:
        reporter = Reporter(pipeline.log, observer=observer)
        by_job = WriteByJob(self._spark, sink.distributed_above_bytes, sink.max_rows_per_second)
        flusher = Flusher(pipeline, reporter, write_rows=by_job)  # an error here: nothing flushes
        reporter.clear_error()  # of an earlier process; this one has not tried yet
        return FlushLoop(flusher)
