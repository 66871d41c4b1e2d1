"""Starts, wakes and ends the flush of each query of a session, as Spark's events say.

Events are hints. They are late, one thread delivers all of them, and a crash loses them. `commits/`
says what is checkpointed, and each flusher reads it every second, or every 15 s in a bucket.

A query is stopped as it starts for a mode that the sink refuses (`modes`). Spark drops what `onQueryStarted`
raises, and the query runs on. So the sink stops the query, and raises the error at the next call of
the handle: `await_flushed`, `status` or `close`.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import QueryIdleEvent, QueryStartedEvent, QueryTerminatedEvent
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.query import Query
from wal_sink.configuration import FILE_MANAGER, Configuration, Destination, configure
from wal_sink.errors import CorruptLog, OptionError, WalSinkError, WrongOwner
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.report import Reporter
from wal_sink.metrics.server import Exposition
from wal_sink.publish.agreement import compare_again
from wal_sink.spark.batch_writer import options_at
from wal_sink.spark.data_source import FORMAT
from wal_sink.spark.errors import failure_in
from wal_sink.spark.flush_job import WriteByJob
from wal_sink.spark.internals import streaming_query
from wal_sink.spark.internals.streaming_query import CheckpointListener
from wal_sink.spark.messages import log_left_epochs, log_start
from wal_sink.spark.query import QueryFlush
from wal_sink.wal.location import owned_state, refuse_other_log, store_errors
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

_CHECKED = 4
"""How many queries that have ended are checked at a start. Where another process flushes, each check costs
two listings."""


class Queries(CheckpointListener):
    """The queries that one handle has seen, and the listener that sees them; other formats are ignored.

    :param at_exit: is called at interpreter exit, before the target's driver closes its connections.
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
        """Why each query was, or will be, refused, by its id; each access is one step for other threads."""
        self._spark = spark
        self._at_exit = at_exit
        self._exposition = exposition
        self._lock = threading.Lock()
        self._flushes: dict[str, QueryFlush] = {}
        self.closed = False
        """True if no further flush starts."""
        self._foretold: dict[str, str] = {}
        """The errors that were logged as runs started, by run."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Start the flush, inside `start()`. An error does not stop the query: Spark starts it anyway."""
        try:
            self._started(str(event.id), str(event.runId))
        except Exception as error:
            logger.error(  # noqa: TRY400 - what the first micro-batch will raise needs no traceback
                "query %s is not flushed by this process: %s",
                event.id,
                error.one_line if isinstance(error, WalSinkError) else error,
                exc_info=None if isinstance(error, WalSinkError) else error,
            )
            if isinstance(error, WalSinkError):
                self._foretold[str(event.runId)] = error.one_line

    def checkpointed(self, query_id: str) -> None:
        """Wake the flush."""
        if flush := self.find(query_id):
            flush.for_each_loop(FlushLoop.wake)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: no epoch was checkpointed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Let the flush finish; log in one line with which error of this sink the query has failed."""
        foretold = self._foretold.pop(str(event.runId), "")
        failure = failure_in(event.exception or "")
        if failure is not None and failure.one_line != foretold:
            logger.error("query %s failed: %s", event.id, failure.one_line)
        flush = self.find(str(event.id))
        # An event that is late is of an earlier run.
        if flush is not None and flush.run_id == str(event.runId):
            flush.terminated = True
            flush.for_each_loop(FlushLoop.end)

    @store_errors()
    def _started(self, query_id: str, run_id: str) -> None:
        """Start the flush of a query.

        :raises LogUnavailable: log or checkpoint cannot be used.
        """
        self._drop_done()
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
        """Warn of a query that starts after the block: Spark keeps the format, so no error tells."""
        if not self.flushes_here:
            return
        if streaming_query.started_query(query, FORMAT, options_at) is not None:
            logger.warning(
                "query %s has started after the end of its block, so nothing flushes it. Its epochs stay in"
                " the log. Call wal_sink.register(spark), which flushes it as well",
                query.id,
            )

    def adopt_running(self) -> None:
        """Start the flush of queries that run already."""
        for query in streaming_query.running_queries(self._spark):
            if not streaming_query.is_active(query):
                continue  # it was told to stop, as a query that is refused is
            try:
                self._begin(query, str(query.runId), already_runs=True)
            except Exception:  # of this query alone; the handle is there for the others
                logger.warning(
                    "query %s runs already and cannot be flushed", query.id, exc_info=True
                )

    def _drop_done(self) -> None:
        """Forget queries that are done: an application may start thousands.

        Some that have ended are checked; the next call checks others.
        """
        ended = [flush for flush in self.flushes() if flush.terminated][:_CHECKED]
        pending = [flush for flush in ended if not flush.is_done()]
        with self._lock:
            for flush in ended:
                # Else it has started again meanwhile.
                if self._flushes.get(flush.query_id) is flush:
                    del self._flushes[flush.query_id]
                    if flush in pending:
                        self._flushes[flush.query_id] = flush  # last, so that others come first

    def find(self, query_id: str) -> QueryFlush | None:
        """Return the flush of a query; None when this handle has not seen it, or has dropped it as done."""
        with self._lock:
            return self._flushes.get(query_id)

    def flushes(self) -> list[QueryFlush]:
        """Return the flush of every query that was seen and not dropped as done."""
        with self._lock:
            return list(self._flushes.values())

    def close(self) -> bool:
        """Start no further flush; return False when that was so already."""
        with self._lock:
            was_open, self.closed = not self.closed, True
        atexit.unregister(self._at_exit)
        return was_open

    def _begin(self, query: StreamingQuery, run_id: str, *, already_runs: bool = False) -> None:
        """Start the flush of a query, unless it is of another format, refused, or this handle is closed."""
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
            _compare_plans(store, already_runs=already_runs)
            configuration.refuse_bucket(self._spark.conf.get(FILE_MANAGER, None))
        except WrongOwner as error:
            # If the query's own log is flushed here, this one is of a copy.
            if self.find(started.query_id) is None:
                # By its first commit: it may end without one.
                self.refused[started.query_id] = error
            raise
        except (CorruptLog, OptionError) as error:
            self._refuse(query, error)
            return
        flush = QueryFlush(
            started.query_id,
            run_id,
            checkpoint,
            store,
            self._loops(query, Query(started.query_id, checkpoint, store), configuration),
        )
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
        """Start a flush, and stop an earlier one of its query; return False when this handle is closed."""
        with self._lock:
            if self.closed:
                return False
            # Exit handlers run last first: this one before that of the driver, which `_loop` has loaded.
            atexit.unregister(self._at_exit)
            atexit.register(self._at_exit)
            earlier = self._flushes.get(flush.query_id)
            self._flushes[flush.query_id] = flush
            self.refused.pop(flush.query_id, None)
            flush.for_each_loop(FlushLoop.start)
        if earlier is not None:  # its options may be old; two that overlap do no harm
            earlier.for_each_loop(FlushLoop.stop)
        return True

    def _refuse(self, query: StreamingQuery, error: WalSinkError) -> None:
        """Stop a query, and remember why; also inside `onQueryStarted`."""
        logger.error("query %s is refused: %s", query.id, error.one_line)
        self.refused[str(query.id)] = error
        streaming_query.stop(query)

    def _loops(
        self, query: StreamingQuery, place: Query, configuration: Configuration
    ) -> list[FlushLoop]:
        """Make a loop for each target; none if another process flushes."""
        sink, run_id = configuration.sink, str(query.runId)

        def stopping() -> str:
            return run_id if streaming_query.is_active(query) is False else ""

        def loop(destination: Destination) -> FlushLoop:
            pipeline = place.pipeline(configuration, destination)
            metrics = None
            if self._exposition is not None:
                metrics = self._exposition.watch(
                    *(place.query_id, place.checkpoint, place.store, destination.name),
                    destination.target.writes_to,
                    several=configuration.several,
                )
            by_job = WriteByJob(self._spark, sink.distributed_above_bytes, sink.max_rows_per_second)
            reporter = Reporter(place.store, destination.name, metrics=metrics, stopping=stopping)
            return FlushLoop(Flusher(pipeline, reporter, write_rows=by_job))

        return [loop(to) for to in configuration.destinations] if self.flushes_here else []


def _compare_plans(store: LogStore, *, already_runs: bool) -> None:
    """Let a run that starts compare the plans with the tables.

    :param already_runs: tasks and `commit` of a micro-batch in flight go by one plan, which stays.
    """
    if not already_runs:
        compare_again(store)
