"""Ends the sink in one session: flushes what is checkpointed, stops in order, and says what then waits."""

from __future__ import annotations

import logging
import time

from pyspark.sql import SparkSession

from wal_sink.errors import NotDrained
from wal_sink.metrics.server import Exposition
from wal_sink.progress.wait import wait_until_flushed
from wal_sink.spark import internals, takeover
from wal_sink.spark.listener import Listener
from wal_sink.spark.queries import Queries
from wal_sink.spark.waiting_message import say_waiting

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
"""How long `close` waits for all threads together: they have nothing left to do, or are in a request."""

_JOIN_INTERRUPTED_S = 1.0
"""The same after a second Ctrl-C."""


class Shutdown:
    """Ends the sink of one session in one of three ways; tells every thread to end, also when interrupted."""

    def __init__(
        self,
        spark: SparkSession,
        queries: Queries,
        listener: Listener,
        exposition: Exposition | None,
    ) -> None:
        self._spark = spark
        self._queries = queries
        self._listener = listener
        self._exposition = exposition

    def close(self, drain_timeout: float) -> None:
        """Flush what is checkpointed, then end; see `Sink.close`."""
        failures: list[str] = []
        try:  # around every line: an interrupt at any of them still ends all threads below
            if not self._queries.close():
                return
            internals.drop_interrupted_call(self._spark)
            self._queries.end_dead_runs()
            if self._queries.flush:
                failures = self._drain(drain_timeout)
            self._end(_JOIN_S)
            if not self._queries.flush:
                self._say_waiting()
        except BaseException:
            self._queries.close()
            internals.drop_interrupted_call(self._spark)
            self._end(_JOIN_INTERRUPTED_S)
            self._say_waiting()
            raise
        refused = self._queries.refusals.errors()
        if failures:
            failures += [f"- {error.summary}" for error in refused]
            raise NotDrained(
                "Not everything checkpointed is flushed:\n" + "\n".join(failures),
                "The log keeps what it has. See to each cause, then start the query again under"
                " wal_sink.register(spark).",
            )
        if refused:
            raise type(refused[0])("\n".join(error.what for error in refused), refused[0].remedy)

    def at_exit(self) -> None:
        """At interpreter exit: start no work, end in order, and say what waits in the log."""
        if self._queries.close():
            internals.drop_interrupted_call(self._spark)
            self._end(_JOIN_S, say=False)
            self._say_waiting()

    def retire(self) -> None:
        """When the session is stopped: finish what is checkpointed, or leave it to a new session's handle."""
        self._queries.end_dead_runs()
        if self._queries.closed:
            return
        self._queries.run_watcher.end(_JOIN_S)
        for flush in self._queries.flushes():
            flush.loop.end()
        takeover.offer(self._queries.flushes())

    def _drain(self, timeout: float) -> list[str]:
        """Wait for every query; return a line for each that failed."""
        flushes = self._queries.flushes()
        for flush in flushes:
            flush.loop.hurry()
        deadline = time.monotonic() + timeout
        failures = []
        for flush in flushes:
            left = max(0.0, deadline - time.monotonic())
            try:
                wait_until_flushed(flush.checkpoint, flush.log, left)
            except Exception as error:  # noqa: BLE001 - the others are waited for all the same
                failures.append(f"- query {flush.query_id}: {type(error).__name__}: {error}")
        return failures

    def _end(self, join_s: float, *, say: bool = True) -> None:
        """End every thread; wait for `join_s` seconds at most, however many queries there are."""
        flushes = self._queries.flushes()
        for flush in flushes:
            flush.loop.stop()
        running = {str(query.id) for query in internals.running_queries(self._spark)}
        internals.remove_listener(self._spark, self._listener)
        deadline = time.monotonic() + join_s
        self._queries.run_watcher.end(join_s)
        for flush in flushes:
            flush.loop.join(max(0.0, deadline - time.monotonic()))
            if say and flush.loop.is_alive():
                logger.warning(
                    "the flush of query %s is still in a request; it ends after it", flush.query_id
                )
            if say and self._queries.flush and flush.query_id in running:
                logger.warning(
                    "query %s goes on unflushed; its epochs wait in the log", flush.query_id
                )
        if self._exposition is not None:
            self._exposition.close()

    def _say_waiting(self) -> None:
        for flush in self._queries.flushes():
            if not flush.taken_over:
                say_waiting(flush, flushes_here=self._queries.flush)
