"""The handle that `register` returns: the sink's life inside one Spark session."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.configuration import configure
from wal_sink.errors import NotDrained, OptionError
from wal_sink.flush.elsewhere import Elsewhere
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.run_history import RUN_HISTORY
from wal_sink.metrics.server import Exposition
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.publish.fencing import take_ticket
from wal_sink.spark import internals, waiting_message
from wal_sink.spark.data_source import FORMAT, add_format
from wal_sink.spark.listener import Listener
from wal_sink.spark.spark_loop import flush_loop
from wal_sink.spark.start_message import say_in_force
from wal_sink.spark.stop_watcher import StopWatcher
from wal_sink.wal.log import Log
from wal_sink.wal.ownership import owned

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
"""How long `close` waits for a thread that has nothing left to do, or is in the middle of a write."""

_JOIN_INTERRUPTED_S = 0.5
"""The same when somebody has pressed Ctrl-C twice."""

_INTERRUPTS = (KeyboardInterrupt, SystemExit)


class _Query(NamedTuple):
    checkpoint: Checkpoint
    log: Log
    loop: FlushLoop | Elsewhere
    run_id: str


class Sink:
    """The sink in one session; made by `wal_sink.register`.

    :param flush: whether this process flushes; another one does otherwise.
    :param take_over: ends what handles of stopped sessions still do for a query; whether one did.
    :param exposition: shows metrics, and is closed with the handle; None: no metrics.
    """

    def __init__(
        self,
        spark: SparkSession,
        drain_timeout: float,
        take_over: Callable[[str], bool],
        exposition: Exposition | None = None,
        *,
        flush: bool = True,
    ) -> None:
        self.drain_timeout = drain_timeout
        self.metrics_port = exposition.port if exposition else None
        """Where Prometheus can ask; None: without metrics."""
        self.flush = flush
        self._exposition = exposition
        self._spark = spark
        self._take_over = take_over
        self._queries: dict[str, _Query] = {}
        self._given_up: set[str] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._stops = StopWatcher()
        self._listener = Listener(self)
        add_format(spark)
        internals.add_listener(spark, self._listener)

    def await_flushed(self, query: StreamingQuery, timeout: float | None = None) -> Flushed:
        """Wait until every epoch of `query` that is checkpointed now is flushed; see `ask`."""
        known = self._known(query)
        known.loop.hurry()  # an error that was repaired since is found to be over
        return wait_until_flushed(known.checkpoint, known.log, timeout)

    def status(self, query: StreamingQuery) -> Status:
        """Read how far the flush of `query` is; see `ask`."""
        known = self._known(query)
        return read_status(known.checkpoint, known.log)

    def close(self) -> None:
        """Wait until everything checkpointed is flushed, then end flushing in this session.

        Works after `spark.stop()`. A query that still runs goes on and its epochs wait in the log. An
        interrupt while it waits ends the waiting; what waits is said then. With `flush=False` nothing is
        waited for: what is left to the process that flushes is said.

        :raises NotDrained: naming each query that could not be flushed within `drain_timeout`.
        """
        try:  # before anything is given up: an interrupt at any point finds somebody who ends the rest
            with self._lock:
                if self._closed:
                    return
                self._closed = True
                queries = dict(self._queries)
            internals.drop_interrupted_call(self._spark)
            self._end_runs(queries)
            failures = self._drain(queries) if self.flush else []
            self._end(queries, _JOIN_S)
            if not self.flush:
                self._say_waiting(queries)
        except BaseException:
            self._closed = True
            queries = dict(self._queries)
            internals.drop_interrupted_call(self._spark)
            self._end(queries, _JOIN_INTERRUPTED_S)
            self._say_waiting(queries)
            raise
        finally:
            atexit.unregister(self.leave)
        if failures:
            raise NotDrained(
                "Not everything checkpointed is flushed:\n" + "\n".join(failures),
                "Nothing is lost: the log keeps it. See to the cause, then start the query again"
                " under wal_sink.register(spark).",
            )

    def leave(self) -> None:
        """At interpreter exit: start no work, end in order, and say what waits in the log."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            queries = dict(self._queries)
        internals.drop_interrupted_call(self._spark)
        self._end(queries, _JOIN_S, say=False)
        self._say_waiting(queries)

    def forgotten(self) -> bool:
        """Whether nothing more can come from this handle, so that the session may get a new one."""
        return self._closed or internals.is_stopped(self._spark)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = isinstance(exc, _INTERRUPTS)
        if interrupted and self.flush and not self._closed:
            with self._lock:
                queries = dict(self._queries)
            waiting_message.say_flushing(
                {query_id: (query.checkpoint, query.log) for query_id, query in queries.items()},
                self.drain_timeout,
            )
        try:
            self.close()
        except NotDrained as error:
            if exc is None:
                raise
            logger.error("after the block had failed: %s", " ".join(str(error).split()))  # noqa: TRY400
        except _INTERRUPTS:
            if not interrupted:
                raise  # else the first one goes on from here

    def retire(self) -> bool:
        """Flush what is there, then end, the session being stopped; False when it is closed anyway."""
        with self._lock:
            queries = dict(self._queries)
        self._end_runs(queries)
        self._stops.end(_JOIN_S)
        for query in queries.values():
            query.loop.end()
        return not self._closed

    def _end_runs(self, queries: dict[str, _Query]) -> None:
        """Of a stopped session no event comes any more: nobody waits for one (rule 11)."""
        if internals.is_stopped(self._spark):
            for query_id, query in queries.items():
                RUN_HISTORY.terminated(query_id, query.run_id)

    def give_up(self, query_id: str) -> bool:
        """Leave a query to the handle under which it starts again; whether it was this one's."""
        with self._lock:
            query = self._queries.get(query_id)
            if query is None or query_id in self._given_up:
                return False
            self._given_up.add(query_id)
        query.loop.stop()
        return True

    # --- what the listener calls ------------------------------------------------------------------

    def started(self, query_id: str, run_id: str) -> None:
        """Take the ticket and start flushing; on Spark's thread, inside `start()`."""
        query = self._spark.streams.get(query_id)
        if query is not None and (log := self._flush(query, run_id)) is not None:
            take_ticket(log, run_id)  # last: a ticket that nobody flushes for would fill the log

    def adopt(self, query: StreamingQuery) -> None:
        """Flush a query that runs already; it has the ticket of an earlier handle, or fails."""
        try:
            self._flush(query, str(query.runId))
        except Exception:  # whatever it is, this query's; the handle is there for the others
            logger.warning("query %s runs already and cannot be flushed", query.id, exc_info=True)

    def _flush(self, query: StreamingQuery, run_id: str) -> Log | None:
        """Start flushing a query; None when it is not ours, or this handle is closed."""
        found = internals.started_query(query, FORMAT)
        if found is None:
            return None
        configuration = configure(found.options, found.folder)
        checkpoint = configuration.location.open_checkpoint()
        log = configuration.location.open_log(found.query_id)
        owned(log, checkpoint)  # a copy writes nothing into the log of the original
        observer = None
        if self._exposition is not None:
            writes_to = configuration.target.writes_to
            observer = self._exposition.watch(found.query_id, checkpoint, log, writes_to)
        loop: FlushLoop | Elsewhere = Elsewhere()
        if self.flush:
            loop = flush_loop(self._spark, found.query_id, log, configuration, observer)
        # Exit handlers run last first: this one comes before the driver's, which closes connections.
        atexit.unregister(self.leave)
        atexit.register(self.leave)
        taken_over = self._take_over(found.query_id) or self.knows(found.query_id)
        if self.flush and not taken_over:
            waiting_message.say_left(found.query_id, checkpoint, log)
        with self._lock:
            if self._closed:
                return None
            earlier = self._queries.get(found.query_id)
            self._queries[found.query_id] = _Query(checkpoint, log, loop, run_id)
            loop.start()
        self._stops.watch(run_id, query, log)
        if earlier is not None:
            earlier.loop.stop()  # its options may be old; two that overlap do no harm
        logger.info("query %s starts with %s", found.query_id, configuration.public)
        say_in_force(found.query_id, configuration, log, found.sources, flush=self.flush)
        return log

    def progressed(self, query_id: str) -> None:
        """Wake the query's flusher."""
        with self._lock:
            query = self._queries.get(query_id)
        if query is not None:
            query.loop.wake()

    def terminated(self, query_id: str, run_id: str) -> None:
        """Let the query's flusher finish; an event of an earlier run comes late and is passed over."""
        self._stops.forget(run_id)
        with self._lock:
            query = self._queries.get(query_id)
        if query is not None and query.run_id == run_id:
            query.loop.end()

    # --- closing ----------------------------------------------------------------------------------

    def knows(self, query_id: str) -> bool:
        """Whether this handle has seen the query."""
        with self._lock:
            return query_id in self._queries

    def _known(self, query: StreamingQuery) -> _Query:
        with self._lock:
            found = self._queries.get(str(query.id))
        if found is None:
            raise OptionError(
                f"Query {query.id} does not write to format {FORMAT} in this session.",
                "Pass a query that was started under this handle.",
            )
        return found

    def _drain(self, queries: dict[str, _Query]) -> list[str]:
        """Wait for every query; return a line for each that failed."""
        for query in queries.values():
            query.loop.hurry()
        deadline = time.monotonic() + self.drain_timeout
        failures = []
        for query_id, query in queries.items():
            try:
                wait_until_flushed(
                    query.checkpoint, query.log, max(0.0, deadline - time.monotonic())
                )
            except Exception as error:  # noqa: BLE001 - the others are waited for all the same
                failures.append(f"- query {query_id}: {type(error).__name__}: {error}")
        return failures

    def _say_waiting(self, queries: dict[str, _Query]) -> None:
        for query_id, query in queries.items():
            if query_id not in self._given_up:
                say = (
                    waiting_message.say_waiting
                    if self.flush
                    else waiting_message.say_left_to_others
                )
                say(query_id, query.checkpoint, query.log)

    def _end(self, queries: dict[str, _Query], join_s: float, *, say: bool = True) -> None:
        for query in queries.values():
            query.loop.stop()
        running = {str(query.id) for query in internals.running_queries(self._spark)}
        internals.remove_listener(self._spark, self._listener)
        self._stops.end(join_s)
        for query_id, query in queries.items():
            query.loop.join(join_s)
            if say and query.loop.is_alive():
                logger.warning(
                    "the flush of query %s is still in a request; it ends after it", query_id
                )
            if say and self.flush and query_id in running:
                logger.warning("query %s goes on unflushed; its epochs wait in the log", query_id)
        if self._exposition is not None:
            self._exposition.close()
