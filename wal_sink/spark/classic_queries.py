"""The queries of a classic session. Their flushes start, wake and end as Spark's events report.

Events are only hints, since one thread delivers all events, late, and a crash loses events. So each flusher
also reads `commits/` every second, or every 15 s in a bucket.

Spark ignores an error that `onQueryStarted` raises. So a query whose mode is refused is stopped as it starts.
The next call of `await_flushed`, `status` or `close` raises the error.

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

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.admin.query import Query
from wal_sink.errors import OptionError, WalSinkError
from wal_sink.flush.loop import FlushLoop
from wal_sink.metrics.server import Exposition
from wal_sink.spark.internals import spark_session, streaming_query
from wal_sink.spark.log_messages import another_process, log_pending, log_start, nobody, this_run
from wal_sink.spark.query_errors import failure_in
from wal_sink.spark.query_flush import QueryFlush, flush_loops
from wal_sink.spark.query_start import QueryStart, open_place, query_start
from wal_sink.wal.location import store_errors

logger = logging.getLogger(__name__)

_CHECKED = 4
"""How many ended queries a start checks. If another process flushes, each check costs two listings."""


class Queries:
    """The queries of a session that use this sink.

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
        """The error of each query that is refused or cannot be flushed, by query id."""
        self._refused_runs: dict[str, str] = {}
        """The run of each error, by query id. A query of a copied checkpoint has the id of the original."""
        self.closed = False
        """True if no further flush starts."""
        self._spark = spark
        self._at_exit = at_exit
        self._watch = exposition.watch if exposition else None
        self._lock = threading.Lock()
        self._flushes: dict[str, QueryFlush] = {}
        self.listener = streaming_query.QueryListener(self._started, self._wake, self._ended)
        spark.streams.addListener(self.listener)
        for query in streaming_query.running_queries(spark):
            if streaming_query.is_active(
                query
            ):  # else it is stopping, for example since it was refused
                self._begin(query, str(query.runId), already_runs=True)

    # --- Spark's events ---------------------------------------------------------------------------

    def _started(self, query_id: str, run_id: str) -> None:
        """Start the flush while `start()` of the query waits."""
        self._drop_done()
        if query := streaming_query.active_query(self._spark, query_id):
            self._begin(query, run_id)

    def _wake(self, query_id: str) -> None:
        """Let the flush of a query read `commits/` now."""
        if flush := self._flush(query_id):
            flush.for_each_loop(FlushLoop.wake)

    def _ended(self, query_id: str, run_id: str, exception: str) -> None:
        """Let the flush finish, and log the error of this sink with which the query failed."""
        failure, refusal = failure_in(exception), self.refused.get(query_id)
        is_logged = failure and refusal and failure.one_line == refusal.one_line  # as it started
        if failure is not None and not is_logged:
            logger.error("query %s failed: %s", query_id, failure.one_line)
        flush = self._flush(query_id)
        if flush is not None and flush.run_id == run_id:  # else the event is of an earlier run
            flush.run_has_ended = True
            flush.for_each_loop(FlushLoop.end)

    # --- what the handle calls --------------------------------------------------------------------

    def has_seen(self, query_id: str) -> bool:
        """Return True if a query was refused, or has a flush."""
        return query_id in self.refused or self._flush(query_id) is not None

    def is_finished(self) -> bool:
        """Return True if the handle is closed, or its session stopped."""
        return self.closed or spark_session.is_stopped(self._spark)

    def stop_listening(self) -> None:
        """Leave the next queries to a new handle. The flushes of this handle finish, then end."""
        streaming_query.remove_listener(self._spark, self.listener)
        for flush in self._kept():
            flush.for_each_loop(FlushLoop.end)

    def flush_of(self, query: StreamingQuery) -> QueryFlush:
        """Return the flush of a query; without threads if this process does not flush the query.

        :raises WalSinkError: this run of the query was refused, by an error that does not pass by itself.
        :raises OptionError: the query is not of this sink, or Spark does not answer.
        """
        query_id, run_id = str(query.id), str(query.runId)
        refusal = self.refused.get(query_id)
        is_of_run = self._refused_runs.get(query_id) == run_id
        if refusal is not None and is_of_run and not refusal.transient:
            raise type(refusal)(*refusal.args)
        if flush := self._flush(query_id):
            return flush
        place = open_place(query)
        return QueryFlush(query_id, run_id, lambda: place)

    def flushes(self) -> Sequence[QueryFlush]:
        """Return the flushes of this process, which `close` waits for."""
        return self._kept() if self.flushes_here else []

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
        flushes = self._kept()
        for flush in flushes:
            flush.for_each_loop(FlushLoop.stop)
        running = {str(query.id) for query in streaming_query.running_queries(self._spark)}
        if exiting:
            streaming_query.remove_listener(self._spark, self.listener)
        deadline_s = time.monotonic() + join_s
        for flush in flushes:
            flush.for_each_loop(lambda loop: loop.join(max(0.0, deadline_s - time.monotonic())))
            if self.flushes_here and flush.name in running and not exiting:
                logger.warning(
                    "query %s still runs, and nothing flushes it now. Its epochs stay in the log. If"
                    " the block ended too early, wait for the query in it: query.awaitTermination()",
                    flush.name,
                )

    def log_pending(self) -> None:
        """Log how many epochs of each query are pending, and how to flush them."""
        who_flushes = nobody if self.flushes_here else another_process
        for flush in self._kept():
            log_pending(flush.name, *flush.place(), who_flushes)

    # --- the start of a flush ---------------------------------------------------------------------

    def _begin(self, query: StreamingQuery, run_id: str, *, already_runs: bool = False) -> None:
        """Check a query, and start its flush. Spark ignores an error of this method."""
        query_id = str(query.id)
        try:
            self._check_and_flush(query, run_id, already_runs=already_runs)
        except ImportError as error:  # Spark's workers may be able to import the package
            refusal = OptionError(
                f"Query {query_id} cannot be flushed by this process: {error}.",
                "A package was installed or changed while this process ran. Start the process again.",
            )
            self._refuse(query, refusal)
        except (
            WalSinkError
        ) as error:  # the first commit of the run fails, unless the run has no data
            logger.error("query %s is not flushed by this process: %s", query_id, error.one_line)  # noqa: TRY400
            self._keep_refusal(query, error)
        except Exception:
            logger.exception("query %s is not flushed by this process", query_id)

    @store_errors()
    def _check_and_flush(self, query: StreamingQuery, run_id: str, *, already_runs: bool) -> None:
        query_id = str(query.id)
        start = self._checked(query)
        if start is None:
            return
        start.check_log(query_id, already_runs=already_runs)
        configuration, checkpoint, store, sockets = start
        flush = QueryFlush(query_id, run_id, lambda: (checkpoint, store))
        if self.flushes_here:
            if self._flush(query_id) is None:
                log_pending(query_id, checkpoint, store, this_run)
            logged = Query(query_id, checkpoint, store)
            flush.loops = flush_loops(self._spark, query, logged, configuration, self._watch)
        if self._start_threads(flush):
            logger.info("query %s starts with %s", query_id, configuration.public)
            log_start(
                *(query_id, configuration, store, sockets),
                lambda name: self._spark.conf.get(name, None),
                flushes_here=self.flushes_here,
            )

    def _checked(self, query: StreamingQuery) -> QueryStart | None:
        """Return the settings of a query; None if the query is of another format, or must not be flushed.

        :raises OptionError: an option is wrong for this process.
        """
        try:
            start = query_start(self._spark, query)
        except OptionError as error:
            if (
                not self.closed
            ):  # otherwise Spark's planner refuses the query, and its own error reaches the user
                self._refuse(query, error)
            return None
        if self.closed and self.flushes_here and start is not None:
            logger.warning(
                "query %s has started after the end of its block, so nothing flushes it. Its epochs stay in"
                " the log. Call wal_sink.register(spark), which flushes it, too",
                query.id,
            )
        if self.closed:
            return None
        if isinstance(start, OptionError):
            if self.flushes_here:  # otherwise only the other process needs the target's package
                raise start
            return None
        return start

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
            former = self._flushes.get(flush.name)
            self._flushes[flush.name] = flush
            self.refused.pop(flush.name, None)
            flush.for_each_loop(FlushLoop.start)
        if former is not None:  # The former flush may have old options. Both may run for a moment.
            former.for_each_loop(FlushLoop.stop)
        return True

    def _refuse(self, query: StreamingQuery, error: WalSinkError) -> None:
        """Stop a query, also inside `onQueryStarted`, and keep the error for the handle."""
        logger.error("query %s is refused: %s", query.id, error.one_line)
        self._keep_refusal(query, error)
        streaming_query.stop(query)

    def _keep_refusal(self, query: StreamingQuery, error: WalSinkError) -> None:
        self.refused[str(query.id)] = error
        self._refused_runs[str(query.id)] = str(query.runId)

    # --- the registry -----------------------------------------------------------------------------

    def _flush(self, query_id: str) -> QueryFlush | None:
        with self._lock:
            return self._flushes.get(query_id)

    def _kept(self) -> list[QueryFlush]:
        with self._lock:
            return list(self._flushes.values())

    def _drop_done(self) -> None:
        """Drop some of the flushes that are done, since an application may start thousands of queries."""
        ended = [flush for flush in self._kept() if flush.run_has_ended]
        for flush in random.sample(ended, min(len(ended), _CHECKED)):
            if flush.is_done():
                with self._lock:
                    if self._flushes.get(flush.name) is flush:  # else the query has started again
                        del self._flushes[flush.name]
