"""The queries of a classic session: starts, wakes and ends the flush of each, as Spark's events report.

Events are hints: they are late, one thread delivers all of them, and a crash loses them. `commits/` is the
truth. Each flusher reads `commits/` every second, or every 15 s in a bucket.

A query in a mode that the sink refuses must be stopped as it starts, since Spark ignores an error
that `onQueryStarted` raises. The next call of the handle raises the error: `await_flushed`, `status` or
`close`.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryStartedEvent, QueryTerminatedEvent
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.query import Query
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import FILE_MANAGER, Configuration, Destination, configure
from wal_sink.errors import CorruptLog, OptionError, WalSinkError, WrongOwner
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.report import Reporter
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
    """A query, and the threads that flush it: one for each target, none if another process flushes."""

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
        """What error texts call the query."""
        return f"query {self.query_id}"

    def place(self) -> Place:
        """Return the query's checkpoint and log."""
        return self.checkpoint, self.store

    def for_each_loop(self, act: Callable[[FlushLoop], object]) -> None:
        """Call a method of every loop, such as `FlushLoop.wake`."""
        for loop in self.loops:
            act(loop)

    def has_tried(self, target: str) -> bool:
        """Return True if the thread of a target has done a pass since the last `FlushLoop.hurry`."""
        return all(loop.has_tried() for loop in self.loops if loop.target_name == target)

    @property
    def is_alive(self) -> bool:
        """True if a thread is running."""
        return any(loop.is_alive() for loop in self.loops)

    def is_done(self) -> bool:
        """Return True if run and flush have ended, and everything is in the target.

        A loop that ended without an error has flushed everything. If another process flushes, log and
        checkpoint are read.
        """
        if not self.terminated or self.is_alive:
            return False
        if self.loops:
            return all(loop.error is None for loop in self.loops)
        try:
            return pending_epochs(self.checkpoint, self.store) == 0
        except (OSError, WalSinkError):
            return False  # unknown, so the query is kept


class Queries(CheckpointListener):
    """The queries that a handle has seen, and the listener that sees them. Other formats are ignored.

    :param at_exit: called at interpreter exit, before the target's driver closes its connections.
    :param exposition: shows the queries' metrics; None: no metrics.
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
        """Why each query was, or will be, refused, by query id."""
        self.closed = False
        """True if no further flush starts."""
        self._spark = spark
        self._at_exit = at_exit
        self._exposition = exposition
        self._lock = threading.Lock()
        self._flushes: dict[str, QueryFlush] = {}
        self._logged_errors: dict[str, str] = {}
        """The error that was logged as a run started, by run id."""
        spark.streams.addListener(self)
        self._adopt_running()

    # --- Spark's events ---------------------------------------------------------------------------

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Start the flush, inside `start()`. An error does not stop the query: Spark starts it anyway."""
        try:
            self._started(str(event.id), str(event.runId))
        except Exception as error:
            logger.error(  # noqa: TRY400 - the first micro-batch raises the same error
                "query %s is not flushed by this process: %s",
                event.id,
                error.one_line if isinstance(error, WalSinkError) else error,
                exc_info=None if isinstance(error, WalSinkError) else error,
            )
            if isinstance(error, WalSinkError):
                self._logged_errors[str(event.runId)] = error.one_line

    def checkpointed(self, query_id: str) -> None:
        """Wake the flush."""
        if flush := self.find(query_id):
            flush.for_each_loop(FlushLoop.wake)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: no epoch was checkpointed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Let the flush finish, and log the error of this sink with which the query failed."""
        logged = self._logged_errors.pop(str(event.runId), "")
        failure = failure_in(event.exception or "")
        if failure is not None and failure.one_line != logged:
            logger.error("query %s failed: %s", event.id, failure.one_line)
        flush = self.find(str(event.id))
        if flush is not None and flush.run_id == str(
            event.runId
        ):  # else the event is an earlier run's
            flush.terminated = True
            flush.for_each_loop(FlushLoop.end)

    @store_errors()
    def _started(self, query_id: str, run_id: str) -> None:
        """Start the flush of a query.

        :raises LogUnavailable: log or checkpoint cannot be used.
        """
        self._prune()
        query = self._spark.streams.get(query_id)
        if query is None:
            return
        if self.closed:
            self._warn_unflushed(query)
            return
        try:
            self._begin(query, run_id)
        except ImportError as error:  # the workers may be able to import it
            refusal = OptionError(
                f"Query {query_id} cannot be flushed by this process: {error}.",
                "A package was installed or changed while this process ran. Start the process again.",
            )
            self._refuse(query, refusal)

    def _warn_unflushed(self, query: StreamingQuery) -> None:
        """Warn of a query that starts after the block. It runs, since Spark keeps the format."""
        if not self.flushes_here:
            return
        if streaming_query.started_query(query, FORMAT, options_at) is not None:
            logger.warning(
                "query %s has started after the end of its block, so nothing flushes it. Its epochs stay in"
                " the log. Call wal_sink.register(spark), which flushes it as well",
                query.id,
            )

    # --- what the handle calls --------------------------------------------------------------------

    def has_seen(self, query_id: str) -> bool:
        """Return True if a query was refused, or has a flush."""
        return query_id in self.refused or self.find(query_id) is not None

    def is_finished(self) -> bool:
        """Return True if the session needs a new handle."""
        return self.closed or spark_session.is_stopped(self._spark)

    def retire(self) -> None:
        """Make way for the handle of a new session; what is checkpointed is still flushed."""
        streaming_query.remove_listener(self._spark, self)
        for flush in self.flushes():
            flush.for_each_loop(FlushLoop.end)

    def place_of(self, query: StreamingQuery) -> Place:
        """Return checkpoint and log of a query.

        :raises WalSinkError: the query was refused.
        :raises OptionError: the query is not of this sink, or Spark does not answer.
        """
        if refusal := self.refused.get(str(query.id)):
            raise type(refusal)(*refusal.args)
        flush = self.find(str(query.id))
        return locate(query) if flush is None else flush.place()

    def hurry(self, query_id: str) -> Callable[[str], bool]:
        """Let the flush of a query try now, even after an error; return `QueryFlush.has_tried`."""
        flush = self.find(query_id)
        if flush is None:
            return lambda _target: True
        flush.for_each_loop(FlushLoop.hurry)
        return flush.has_tried

    def flushing(self) -> Sequence[QueryFlush]:
        """Return what this process flushes, and let each flush try now."""
        flushes = self.flushes() if self.flushes_here else []
        for flush in flushes:
            flush.for_each_loop(FlushLoop.hurry)
        return flushes

    def find(self, query_id: str) -> QueryFlush | None:
        """Return the flush of a query; None if the query is unknown, or was pruned."""
        with self._lock:
            return self._flushes.get(query_id)

    def flushes(self) -> list[QueryFlush]:
        """Return the flush of every query that was not pruned."""
        with self._lock:
            return list(self._flushes.values())

    def close(self) -> bool:
        """Start no further flush; return False if this was called before."""
        with self._lock:
            was_open, self.closed = not self.closed, True
        atexit.unregister(self._at_exit)
        spark_session.drop_interrupted_call(self._spark)
        return was_open

    def end(self, join_s: float, *, exiting: bool = False) -> None:
        """Stop every flush.

        :param join_s: how many seconds to wait for all threads together.
        :param exiting: True at interpreter exit: log nothing about queries, and remove the listener. If
            False, the listener warns of queries that start, until `retire`.
        """
        flushes = self.flushes()
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
                    "query %s still runs, and nothing flushes it now. Its epochs stay in the log. To keep"
                    " the block open, wait for the query in it: query.awaitTermination()",
                    flush.query_id,
                )

    def log_pending(self) -> None:
        """Log how many epochs of each query are pending, and how to flush them."""
        for flush in self.flushes():
            log_pending(flush.query_id, *flush.place(), flushes_here=self.flushes_here)

    # --- the start of a flush ---------------------------------------------------------------------

    def _prune(self) -> None:
        """Drop ended queries that are done: an application may start thousands.

        A call checks a few of them, and puts those that are not done at the end of the list.
        """
        ended = [flush for flush in self.flushes() if flush.terminated][:_PRUNED]
        pending = [flush for flush in ended if not flush.is_done()]
        with self._lock:
            for flush in ended:
                if self._flushes.get(flush.query_id) is flush:  # else the query has started again
                    del self._flushes[flush.query_id]
                    if flush in pending:
                        self._flushes[flush.query_id] = flush

    def _adopt_running(self) -> None:
        """Start the flush of queries that are running already."""
        for query in streaming_query.running_queries(self._spark):
            if not streaming_query.is_active(query):
                continue  # it is stopping, for example since it was refused
            try:
                self._begin(query, str(query.runId), already_runs=True)
            except Exception:
                logger.warning(
                    "query %s runs already and cannot be flushed", query.id, exc_info=True
                )

    def _begin(self, query: StreamingQuery, run_id: str, *, already_runs: bool = False) -> None:
        """Start the flush of a query, unless the query is refused or of another format.

        :param already_runs: a micro-batch is in flight, so the plans stay: its tasks and its `commit` must
            use one plan.
        """
        if self.closed:
            return
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
            # Its first commit fails, but the run may end without a commit. If this handle flushes the query's
            # own log, the query of the copy must not be reported in its place.
            if self.find(started.query_id) is None:
                self.refused[started.query_id] = error
            raise
        except (CorruptLog, OptionError) as error:
            self._refuse(query, error)
            return
        place = Query(started.query_id, checkpoint, store)
        loops = self._loops(query, place, configuration) if self.flushes_here else []
        flush = QueryFlush(started.query_id, run_id, checkpoint, store, loops)
        if self.flushes_here and self.find(flush.query_id) is None:
            log_left_epochs(flush.query_id, checkpoint, store)
        if not self._start(flush):
            return
        logger.info("query %s starts with %s", flush.query_id, configuration.public)
        log_start(
            *(flush.query_id, configuration, store, started.sources),
            lambda name: self._spark.conf.get(name, None),
            flushes_here=self.flushes_here,
        )

    def _start(self, flush: QueryFlush) -> bool:
        """Start a flush, and stop the earlier one of its query; return False if the handle is closed."""
        with self._lock:
            if self.closed:
                return False
            # The exit handler that was registered last runs first: this one, then the driver's.
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)
            earlier = self._flushes.get(flush.query_id)
            self._flushes[flush.query_id] = flush
            self.refused.pop(flush.query_id, None)
            flush.for_each_loop(FlushLoop.start)
        if earlier is not None:  # its options may be old; that both run for a moment does no harm
            earlier.for_each_loop(FlushLoop.stop)
        return True

    def _refuse(self, query: StreamingQuery, error: WalSinkError) -> None:
        """Stop a query, also inside `onQueryStarted`, and keep the error for the handle."""
        logger.error("query %s is refused: %s", query.id, error.one_line)
        self.refused[str(query.id)] = error
        streaming_query.stop(query)

    def _loops(
        self, query: StreamingQuery, place: Query, configuration: Configuration
    ) -> list[FlushLoop]:
        """Make a loop for each target."""
        sink, run_id = configuration.sink, str(query.runId)

        def stopping() -> str:
            return run_id if streaming_query.is_active(query) is False else ""

        def loop(destination: Destination) -> FlushLoop:
            metrics = None
            if self._exposition is not None:
                metrics = self._exposition.watch(
                    *(place.query_id, place.checkpoint, place.store, destination.name),
                    destination.target.writes_to,
                    several=configuration.several,
                )
            by_job = WriteByJob(self._spark, sink.distributed_above_bytes, sink.max_rows_per_second)
            reporter = Reporter(place.store, destination.name, metrics=metrics, stopping=stopping)
            pipeline = place.pipeline(configuration, destination)
            return FlushLoop(Flusher(pipeline, reporter, write_rows=by_job))

        return [loop(destination) for destination in configuration.destinations]


def locate(query: StreamingQuery) -> Place:
    """Find checkpoint and log of a query of this process by asking Spark.

    :raises OptionError: the query is not of this sink, or was refused, or Spark does not answer.
    """
    try:
        started = streaming_query.started_query(query, FORMAT, options_at)
    except WalSinkError:
        raise
    except Exception as error:  # py4j's: the query failed before it had a plan, or Spark is gone
        raise OptionError(
            f"Spark does not tell where the checkpoint of query {query.id} is: {error!r}",
            "Pass the location of its checkpoint to wal_sink.status() or wal_sink.await_flushed().",
        ) from error
    if started is None:
        raise OptionError(
            f"Query {query.id} writes neither to format {FORMAT} nor by wal_sink.batch_writer.",
            "Pass a query of this sink, or the location of its checkpoint.",
        )
    location = configure(started.options, started.folder).location
    return location.open_checkpoint(), location.open_log(started.query_id)
