"""The handle that `register` returns: the sink inside one Spark session.

Closing it flushes what is checkpointed, stops in order, and reports which epochs are pending. What handles of
classic and Connect sessions share is in `Sink`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import LogUnavailable, NotDrained, OptionError, WalSinkError, WrongOwner
from wal_sink.flush.loop import FlushLoop
from wal_sink.metrics.server import Exposition
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.spark.errors import failure_in
from wal_sink.spark.internals import spark_session, streaming_query
from wal_sink.spark.messages import log_flushing, log_pending
from wal_sink.spark.queries import Queries
from wal_sink.spark.query import locate
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
"""How long `close` waits for all threads together: they have nothing left to do, or are in a request."""

_JOIN_INTERRUPTED_S = 1.0
"""The same after a second Ctrl-C."""


_INTERRUPTS = (KeyboardInterrupt, SystemExit)

Place = tuple[Checkpoint, LogStore]


class Flushing(NamedTuple):
    """A query that a handle flushes, as `close` waits for it."""

    name: str
    """By which an error calls it."""
    open: Callable[[], Place]
    """Opens its checkpoint and log; may raise a `WalSinkError`."""
    has_tried: Callable[[str], bool] = lambda _target: True
    """See `wait_until_flushed`."""


class Sink:
    """The sink in one session; made by `wal_sink.register`.

    :param exposition: shows metrics, and is closed with the handle; None: no metrics.
    :param flushes_here: False if another process flushes.
    """

    def __init__(
        self,
        spark: SparkSession,
        drain_timeout: float,
        exposition: Exposition | None = None,
        *,
        flushes_here: bool = True,
    ) -> None:
        self.drain_timeout = drain_timeout
        self.metrics_port = exposition.port if exposition else None
        """Where Prometheus can ask; None: without metrics."""
        self.metrics_host = exposition.host if exposition else None
        """The address that the port listens on; None: without metrics."""
        self.flush = flushes_here
        self._spark = spark
        self._exposition = exposition

    def await_flushed(
        self, query: StreamingQuery, timeout: float | None = None, *, target: str = ""
    ) -> Flushed:
        """Wait until every epoch of `query` that is checkpointed now is flushed.

        Arguments and errors as for `wal_sink.await_flushed`.

        :raises OptionError: the query is not of this sink, or was refused as it started.
        """
        return wait_until_flushed(*self._place_of(query), timeout, target=target)

    def follow(
        self,
        checkpoint: str,
        wal: str | None = None,  # noqa: ARG002 - of a Connect session's
        *,
        options: Mapping[str, object] | None = None,  # noqa: ARG002 - the same
    ) -> None:
        """Flush a query in this process, from now until `close`; for a Connect session.

        This process has to reach checkpoint, log and target. The query may begin later, and may be another
        client's. Leaving the block then waits until what is checkpointed is flushed.

        :param checkpoint: the query's checkpointLocation.
        :param wal: its `wal.location`, if the checkpoint does not name it.
        :param options: those that the log does not hold, such as a password, or that an error tells you to
            confirm.
        :raises OptionError: the session is not a Connect session: it flushes its own queries.
        """
        raise OptionError(
            f"A classic session flushes its own queries, and not {checkpoint}.",
            "Leave out follow(); for the query of another process run:\n"
            f"wal-sink flush {checkpoint} --follow",
        )

    def status(self, query: StreamingQuery, *, target: str = "") -> Status:
        """Read how far the flush of `query` is; see `wal_sink.status`.

        :raises OptionError: the query is not of this sink, or was refused as it started.
        """
        return read_status(*self._place_of(query), target)

    def failure(self, query: StreamingQuery) -> WalSinkError | None:
        """Return the error of this sink with which `query` has failed; None: it has not, or by another error.

        A `with` block that a failed query ends raises this error, in place of Spark's.
        """
        exception = query.exception()
        return failure_in(str(exception)) if exception is not None else None

    def close(self) -> None:
        """Wait until everything checkpointed is flushed, then end flushing in this session.

        Works after `spark.stop()`. A query that still runs goes on, and its epochs wait in the log. An
        interrupt ends the waiting, and one line for each query says what then waits. With `flush=False` it
        waits for nothing, and says what is left to the process that flushes.

        :raises NotDrained: naming each query that could not be flushed within `drain_timeout`, or whose
            flush an error has stopped.
        :raises WalSinkError: naming each query that was refused as it started, and did not start again since:
            `OptionError`, `LogUnavailable` or `WrongOwner`.
        """
        failures: list[str] = []
        try:  # around every line: an interrupt at any of them still ends all threads below
            if not self._begin_close():
                return
            failures = self._drain()
            self._end(_JOIN_S)
            if not self.flush:
                self._log_pending()
        except BaseException:
            self._begin_close()
            self._end(_JOIN_INTERRUPTED_S)
            self._log_pending()
            raise
        refused = self._refused()
        if failures:
            failures += [f"- {error.summary}" for error in refused]
            raise NotDrained(
                "The flush did not finish:\n" + "\n".join(failures),
                "The log keeps what it has. Repair each cause, then start the query again under"
                " wal_sink.register(spark), or run:\nwal-sink flush CHECKPOINT",
            )
        if refused:
            raise type(refused[0])("\n".join(error.what for error in refused), refused[0].remedy)

    def has_seen(self, query_id: str) -> bool:
        """Return True if this handle has seen the query, and still has it."""
        raise NotImplementedError

    def is_finished(self) -> bool:
        """Return True if nothing more can come from this handle, so that the session may get a new one."""
        raise NotImplementedError

    def adopt_running(self) -> None:
        """Flush the queries that run already, as far as their checkpoints are known."""

    def retire(self) -> None:
        """Give way to the handle of a new session; what is checkpointed is still flushed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = isinstance(exc, _INTERRUPTS)
        # Spark is not asked: an interrupted call leaves its connection busy.
        if interrupted and not self._is_closed():
            log_flushing((flushing.open for flushing in self._flushing()), self.drain_timeout)
        try:
            self.close()
        except (NotDrained, OptionError, LogUnavailable, WrongOwner) as error:
            if exc is None:
                raise
            logger.error("the block failed, and then its end failed, too: %s", error.one_line)  # noqa: TRY400
        except _INTERRUPTS:
            if not interrupted:
                raise  # else the first one goes on from here
        if isinstance(exc, PySparkException) and (failure := failure_in(str(exc))) is not None:
            raise failure from None  # some hundred lines of frames and plans would hide it

    def _at_exit(self) -> None:
        """At interpreter exit: start no work, end in order, and report pending epochs."""
        if self._begin_close():
            self._end(_JOIN_S, say=False)
            self._log_pending()

    def _drain(self) -> list[str]:
        """Wait for every query that is flushed here; return a line for each that failed."""
        deadline_s = time.monotonic() + self.drain_timeout
        failures = []
        for flushing in list(self._flushing()):
            remaining_s = max(0.0, deadline_s - time.monotonic())
            try:
                wait_until_flushed(*flushing.open(), remaining_s, has_tried=flushing.has_tried)
            except Exception as error:  # noqa: BLE001 - the others are waited for all the same
                failures.append(f"- {flushing.name}: {type(error).__name__}: {error}")
        return failures

    def _place_of(self, query: StreamingQuery) -> Place:
        """Open checkpoint and log of a query.

        :raises OptionError: it is not of this sink, or its checkpoint is not known here.
        """
        raise NotImplementedError

    def _flushing(self) -> Iterator[Flushing]:
        """Yield what is flushed here, and let each flush try now."""
        raise NotImplementedError

    def _is_closed(self) -> bool:
        """Return True if `close` has begun."""
        raise NotImplementedError

    def _begin_close(self) -> bool:
        """Start nothing any more; return False if that was so already."""
        raise NotImplementedError

    def _end(self, join_s: float, *, say: bool = True) -> None:
        """End every thread; wait for `join_s` seconds at most, however many queries there are."""
        raise NotImplementedError

    def _log_pending(self) -> None:
        """Log how many epochs of each query are pending, and how they get flushed."""
        raise NotImplementedError

    def _refused(self) -> list[WalSinkError]:
        """Return why queries were refused as they started."""
        return []


class ClassicSink(Sink):
    """The handle of a classic session, whose JVM says which queries start, go on and end."""

    def __init__(
        self,
        spark: SparkSession,
        drain_timeout: float,
        exposition: Exposition | None = None,
        *,
        flushes_here: bool = True,
    ) -> None:
        super().__init__(spark, drain_timeout, exposition, flushes_here=flushes_here)
        self._queries = Queries(spark, self._at_exit, exposition, flushes_here=flushes_here)
        spark.streams.addListener(self._queries)

    def await_flushed(
        self, query: StreamingQuery, timeout: float | None = None, *, target: str = ""
    ) -> Flushed:
        """See `Sink.await_flushed`; an error that was repaired since is found to be over."""
        place = self._place_of(query)
        flush = self._queries.find(str(query.id))
        if flush is None:
            return wait_until_flushed(*place, timeout, target=target)
        flush.for_each_loop(FlushLoop.hurry)
        return wait_until_flushed(*place, timeout, target=target, has_tried=flush.has_tried)

    def has_seen(self, query_id: str) -> bool:
        """See `Sink.has_seen`."""
        return query_id in self._queries.refused or self._queries.find(query_id) is not None

    def is_finished(self) -> bool:
        """See `Sink.is_finished`."""
        return self._is_closed() or spark_session.is_stopped(self._spark)

    def adopt_running(self) -> None:
        """See `Sink.adopt_running`."""
        self._queries.adopt_running()

    def retire(self) -> None:
        """See `Sink.retire`. Two flushers of a query that starts again do no harm; the first one ends."""
        streaming_query.remove_listener(self._spark, self._queries)
        for flush in self._queries.flushes():
            flush.for_each_loop(FlushLoop.end)

    def _place_of(self, query: StreamingQuery) -> Place:
        if refusal := self._queries.refused.get(str(query.id)):
            raise type(refusal)(*refusal.args)
        flush = self._queries.find(str(query.id))
        return locate(query) if flush is None else flush.place()

    def _flushing(self) -> Iterator[Flushing]:
        flushes = self._queries.flushes() if self.flush else []
        for flush in flushes:
            flush.for_each_loop(FlushLoop.hurry)
        for flush in flushes:
            yield Flushing(f"query {flush.query_id}", flush.place, flush.has_tried)

    def _is_closed(self) -> bool:
        return self._queries.closed

    def _begin_close(self) -> bool:
        was_open = self._queries.close()
        spark_session.drop_interrupted_call(self._spark)
        return was_open

    def _end(self, join_s: float, *, say: bool = True) -> None:
        flushes = self._queries.flushes()
        for flush in flushes:
            flush.for_each_loop(FlushLoop.stop)
        running = {str(query.id) for query in streaming_query.running_queries(self._spark)}
        if not say:  # else it goes on to warn of queries that start, until `retire`
            streaming_query.remove_listener(self._spark, self._queries)
        deadline_s = time.monotonic() + join_s
        for flush in flushes:
            flush.for_each_loop(lambda loop: loop.join(max(0.0, deadline_s - time.monotonic())))
            if say and flush.is_alive:
                logger.warning(
                    "the flush of query %s still waits for an answer to a request. It ends after"
                    " that",
                    flush.query_id,
                )
            if say and self.flush and flush.query_id in running:
                logger.warning(
                    "query %s still runs, and nothing flushes it now. Its epochs stay in the log. To keep"
                    " the block open, wait for the query in it: query.awaitTermination()",
                    flush.query_id,
                )
        if self._exposition is not None:
            self._exposition.close()

    def _log_pending(self) -> None:
        for flush in self._queries.flushes():
            log_pending(flush.query_id, *flush.place(), flushes_here=self.flush)

    def _refused(self) -> list[WalSinkError]:
        return list(self._queries.refused.values())
