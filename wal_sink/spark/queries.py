"""The queries of a classic session. Their flushes start, wake and end as Spark's events report.

Events are only hints, since one thread delivers all events, late, and a crash loses events. So each flusher
also reads `commits/` every second, or every 15 s in a bucket.

Spark ignores an error that `onQueryStarted` raises. So if the sink refuses the mode of a query, the query is
stopped as it starts. The next call of `await_flushed`, `status` or `close` raises the error.

A notebook may stop its session without closing the handle. A flush needs no Spark, so it continues until
everything is flushed. A second flusher of the query, under a new handle, does no harm.
"""

from __future__ import annotations

import atexit
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryStartedEvent, QueryTerminatedEvent
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.flush import metrics_of
from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import FILE_MANAGER, Configuration, configure
from wal_sink.errors import CorruptLog, OptionError, WalSinkError, WrongOwner
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.reporter import Reporter
from wal_sink.metrics.server import Exposition
from wal_sink.progress.status import pending_epochs
from wal_sink.publish.plans import compare_again
from wal_sink.spark.batch_writer import options_at
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.flush_job import WriteByJob
from wal_sink.spark.internals import spark_session, streaming_query
from wal_sink.spark.internals.streaming_query import CheckpointListener
from wal_sink.spark.messages import log_left_epochs, log_pending, log_start
from wal_sink.spark.query_errors import failure_in
from wal_sink.wal.location import owned_state, refuse_other_log, store_errors
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

Place = tuple[Checkpoint, LogStore]

_PRUNED = 4
"""How many ended queries a start checks. If another process flushes, each check costs two listings."""


@dataclass
class QueryFlush:
    """A query, and for each target its flush thread; no thread if another process flushes."""

    query_id: str
    run_id: str
    """The run with which this flush began. Events of an earlier run are ignored."""
    checkpoint: Checkpoint
    store: LogStore
    loops: Sequence[FlushLoop]
    terminated: bool = False
    """True if the run has ended."""

    @property
    def name(self) -> str:
        """The query in error texts."""
        return f"query {self.query_id}"

    def place(self) -> Place:
        """Return the query's checkpoint and log."""
        return self.checkpoint, self.store

    def for_each_loop(self, act: Callable[[FlushLoop], object]) -> None:
        """Call a method of the loop of every target, such as `FlushLoop.wake`."""
        for loop in self.loops:
            act(loop)

    def has_tried(self, target: str) -> bool:
        """Return True if the flush to a target has tried since the last `FlushLoop.hurry`."""
        return all(loop.has_tried() for loop in self.loops if loop.target_name == target)

    @property
    def is_alive(self) -> bool:
        """True if a thread is running."""
        return any(loop.is_alive() for loop in self.loops)

    def is_done(self) -> bool:
        """Return True if run and flush of the query have ended, and everything is in the target."""
        if not self.terminated or self.is_alive:
            return False
        if self.loops:
            return all(loop.error is None for loop in self.loops)
        try:
            return pending_epochs(self.checkpoint, self.store) == 0
        except (OSError, WalSinkError):
            return False  # unknown, so the query is kept


class Queries(CheckpointListener):
    """The queries of a session that use this sink, and the listener that reports them.

    :param at_exit: called at interpreter exit, before the target's driver closes its connections.
    :param exposition: serves the queries' metrics; None: no metrics.
    :param flushes_here: False if another process flushes.
    """

    def __init__(
        self,
        spark: SparkSession,
        at_exit: Callable[[], None],
        exposition: Exposition | None,
        *,
        flushes_here: bool,
    ) -> None:
        self.flushes_here = flushes_here
        self.refused: dict[str, WalSinkError] = {}
        """The error of each refused query, by query id."""
        self.closed = False
        """True if no further flush starts."""
        self._spark = spark
        self._at_exit = at_exit
        self._watch = exposition.watch if exposition else None
        self._lock = threading.Lock()
        self._flushes: dict[str, QueryFlush] = {}
        self._logged_errors: dict[str, str] = {}
        """The error that was logged as a run started, by run id."""
        spark.streams.addListener(self)
        for query in streaming_query.running_queries(spark):
            if not streaming_query.is_active(query):
                continue  # The query is stopping, for example since it was refused.
            try:
                self._check_and_flush(query, str(query.runId), already_runs=True)
            except Exception:
                logger.warning(
                    "query %s runs already and cannot be flushed", query.id, exc_info=True
                )

    # --- Spark's events ---------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Start the flush while `start()` of the query waits. An error of this method stops no query."""
        query_id, run_id = str(event.id), str(event.runId)
        try:
            self._flush_unless_closed(query_id, run_id)
        except WalSinkError as error:  # the first micro-batch raises the same error
            logger.error("query %s is not flushed by this process: %s", query_id, error.one_line)  # noqa: TRY400
            self._logged_errors[run_id] = error.one_line
        except Exception:
            logger.exception("query %s is not flushed by this process", query_id)

    def checkpointed(self, query_id: str) -> None:
        """Let the flush of a query read `commits/` now."""
        if flush := self.find(query_id):
            flush.for_each_loop(FlushLoop.wake)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing, since no epoch was checkpointed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Let the flush finish, and log the error of this sink with which the query failed."""
        query_id, run_id = str(event.id), str(event.runId)
        logged = self._logged_errors.pop(run_id, "")
        failure = failure_in(event.exception or "")
        if failure is not None and failure.one_line != logged:
            logger.error("query %s failed: %s", query_id, failure.one_line)
        flush = self.find(query_id)
        if flush is not None and flush.run_id == run_id:  # else the event is of an earlier run
            flush.terminated = True
            flush.for_each_loop(FlushLoop.end)

    # --- what the handle calls --------------------------------------------------------------------

    def has_seen(self, query_id: str) -> bool:
        """Return True if a query was refused, or has a flush."""
        return query_id in self.refused or self.find(query_id) is not None

    def is_finished(self) -> bool:
        """Return True if the handle is closed, or its session stopped."""
        return self.closed or spark_session.is_stopped(self._spark)

    def stop_listening(self) -> None:
        """Leave the next queries to a new handle. The flushes of this handle finish, then end."""
        streaming_query.remove_listener(self._spark, self)
        for flush in self.kept_flushes():
            flush.for_each_loop(FlushLoop.end)

    def place_of(self, query: StreamingQuery) -> Place:
        """Return checkpoint and log of a query.

        :raises WalSinkError: the query was refused.
        :raises OptionError: the query is not of this sink, or Spark does not answer.
        """
        if refusal := self.refused.get(str(query.id)):
            raise type(refusal)(*refusal.args)
        flush = self.find(str(query.id))
        return open_place(query) if flush is None else flush.place()

    def hurry(self, query_id: str) -> Callable[[str], bool]:
        """Let the flush of a query try at once, without the pause after an error.

        :return: a function that returns True if the flush to a target has tried since this call. It always
            returns True if this process does not flush the query.
        """
        flush = self.find(query_id)
        if flush is None:
            return lambda _target: True
        flush.for_each_loop(FlushLoop.hurry)
        return flush.has_tried

    def hurry_all(self) -> Sequence[QueryFlush]:
        """Let every flush of this process try at once, as `hurry` does; return these flushes."""
        flushes = self.kept_flushes() if self.flushes_here else []
        for flush in flushes:
            flush.for_each_loop(FlushLoop.hurry)
        return flushes

    def find(self, query_id: str) -> QueryFlush | None:
        """Return the flush of a query; None if the query has none, or its flush is done and was dropped."""
        with self._lock:
            return self._flushes.get(query_id)

    def kept_flushes(self) -> list[QueryFlush]:
        """Return the flushes of all queries that this handle has not dropped."""
        with self._lock:
            return list(self._flushes.values())

    def accept_no_more(self) -> bool:
        """Start no flush from now on; return False if this method was called before."""
        with self._lock:
            was_open, self.closed = not self.closed, True
        atexit.unregister(self._at_exit)
        spark_session.drop_interrupted_call(self._spark)
        return was_open

    def stop_flushes(self, join_s: float, *, exiting: bool = False) -> None:
        """Stop every flush, also a flush with pending epochs.

        :param join_s: how many seconds to wait for all threads together.
        :param exiting: True at interpreter exit: log nothing about queries, and remove the listener. If
            False, the listener warns of queries that start, until `stop_listening`.
        """
        flushes = self.kept_flushes()
        for flush in flushes:
            flush.for_each_loop(FlushLoop.stop)
        running = {str(query.id) for query in streaming_query.running_queries(self._spark)}
        if exiting:
            streaming_query.remove_listener(self._spark, self)
        deadline_s = time.monotonic() + join_s
        for flush in flushes:
            flush.for_each_loop(lambda loop: loop.join(max(0.0, deadline_s - time.monotonic())))
            if flush.is_alive and not exiting:
                logger.warning(
                    "the flush of query %s still waits for an answer to a request. It ends after"
                    " that",
                    flush.query_id,
                )
            if self.flushes_here and flush.query_id in running and not exiting:
                logger.warning(
                    "query %s still runs, and nothing flushes it now. Its epochs stay in the log. If"
                    " the block ended too early, wait for the query in it: query.awaitTermination()",
                    flush.query_id,
                )

    def log_pending(self) -> None:
        """Log how many epochs of each query are pending, and how to flush them."""
        for flush in self.kept_flushes():
            log_pending(flush.query_id, *flush.place(), flushes_here=self.flushes_here)

    # --- the start of a flush ---------------------------------------------------------------------

    @store_errors()
    def _flush_unless_closed(self, query_id: str, run_id: str) -> None:
        """Flush a query that has started. If the handle is closed, warn that nothing flushes the query."""
        self._drop_done()
        query = self._spark.streams.get(query_id)
        if query is None:
            return
        if not self.closed:
            try:
                self._check_and_flush(query, run_id)
            except ImportError as error:  # Spark's workers may be able to import it
                refusal = OptionError(
                    f"Query {query_id} cannot be flushed by this process: {error}.",
                    "A package was installed or changed while this process ran. Start the process again.",
                )
                self._refuse(query, refusal)
        elif self.flushes_here and streaming_query.started_query(query, FORMAT, options_at):
            logger.warning(
                "query %s has started after the end of its block, so nothing flushes it. Its epochs stay in"
                " the log. Call wal_sink.register(spark), which flushes it, too",
                query_id,
            )

    def _drop_done(self) -> None:
        """Drop some of the flushes that are done, since an application may start thousands of queries."""
        ended = [flush for flush in self.kept_flushes() if flush.terminated]
        for flush in random.sample(ended, min(len(ended), _PRUNED)):
            if flush.is_done():
                with self._lock:
                    if self._flushes.get(flush.query_id) is flush:  # else it has started again
                        del self._flushes[flush.query_id]

    def _check_and_flush(
        self, query: StreamingQuery, run_id: str, *, already_runs: bool = False
    ) -> None:
        """Start the flush of a query. Stop a query that is refused. Ignore a query of another format.

        :param already_runs: True if a micro-batch may be in flight. Its tasks and its `commit` must use one
            plan, so the plans are not compared with the tables now.
        """
        try:
            started = streaming_query.started_query(query, FORMAT, options_at)
        except OptionError as error:
            self._refuse(query, error)
            return
        if started is None:
            return
        configuration = configure(started.options, started.folder)
        checkpoint = configuration.location.open_checkpoint()
        store = configuration.location.open_log(started.query_id)
        try:
            refuse_other_log(store, checkpoint)
            owned_state(store, checkpoint, started.query_id)
            if not already_runs:
                compare_again(store)
            configuration.refuse_bucket(self._spark.conf.get(FILE_MANAGER, None))
        except WrongOwner as error:
            # The first commit of this run fails, but the run may end without a commit. So the handle keeps
            # the error. A copied query has the id of the original, which this handle may already flush. Then
            # the error must not hide the original.
            if self.find(started.query_id) is None:
                self.refused[started.query_id] = error
            raise
        except (CorruptLog, OptionError) as error:
            self._refuse(query, error)
            return
        loops = []
        if self.flushes_here:
            if self.find(started.query_id) is None:
                log_left_epochs(started.query_id, checkpoint, store)
            logged = Query(started.query_id, checkpoint, store)
            loops = self._loops(query, run_id, logged, configuration)
        if self._start_threads(QueryFlush(started.query_id, run_id, checkpoint, store, loops)):
            logger.info("query %s starts with %s", started.query_id, configuration.public)
            log_start(
                *(started.query_id, configuration, store, started.sources),
                lambda name: self._spark.conf.get(name, None),
                flushes_here=self.flushes_here,
            )

    def _loops(
        self, query: StreamingQuery, run_id: str, logged: Query, configuration: Configuration
    ) -> list[FlushLoop]:
        def stopping() -> str:
            return run_id if streaming_query.is_active(query) is False else ""

        loops = []
        for destination in configuration.destinations:
            pipeline = logged.pipeline(configuration, destination)
            metrics = metrics_of(pipeline, self._watch)
            reporter = Reporter(logged.store, destination.name, metrics=metrics, stopping=stopping)
            sink = configuration.sink
            by_job = WriteByJob(self._spark, sink.distributed_above_bytes, sink.max_rows_per_second)
            loops.append(FlushLoop(Flusher(pipeline, reporter, write_rows=by_job)))
        return loops

    def _start_threads(self, flush: QueryFlush) -> bool:
        """Start the threads of a flush, and stop the threads of the query's former flush.

        :return: False if the handle is closed. No thread then starts.
        """
        with self._lock:
            if self.closed:
                return False
            # Python runs the exit handler first that was registered last, so this handler runs before the
            # handler of the target's driver.
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)
            former = self._flushes.get(flush.query_id)
            self._flushes[flush.query_id] = flush
            self.refused.pop(flush.query_id, None)
            flush.for_each_loop(FlushLoop.start)
        if former is not None:  # The former flush may have old options. Both may run for a moment.
            former.for_each_loop(FlushLoop.stop)
        return True

    def _refuse(self, query: StreamingQuery, error: WalSinkError) -> None:
        """Stop a query, also inside `onQueryStarted`, and keep the error for the handle."""
        logger.error("query %s is refused: %s", query.id, error.one_line)
        self.refused[str(query.id)] = error
        streaming_query.stop(query)


def open_place(query: StreamingQuery) -> Place:
    """Open checkpoint and log of a query of this process, by the options that Spark has.

    :raises OptionError: the query is not of this sink, or was refused, or Spark does not answer.
    """
    try:
        started = streaming_query.started_query(query, FORMAT, options_at)
    except WalSinkError:
        raise
    except (
        Exception
    ) as error:  # py4j raises it if the query failed before it had a plan, or if Spark is gone.
        raise OptionError(
            f"Spark does not report where the checkpoint of query {query.id} is: {error!r}",
            "Pass the location of its checkpoint to wal_sink.status() or wal_sink.await_flushed().",
        ) from error
    if started is None:
        raise OptionError(
            f"Query {query.id} writes neither to format {FORMAT} nor by wal_sink.batch_writer.",
            "Pass a query of this sink, or the location of its checkpoint.",
        )
    location = configure(started.options, started.folder).location
    return location.open_checkpoint(), location.open_log(started.query_id)
