"""The handle that `wal_sink.register` returns.

`close` flushes what is checkpointed, ends the threads, and logs which epochs are pending. `Queries` has what
is special to a classic session, and `ConnectQueries` what is special to a Connect session.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.errors import LogUnavailable, NotDrained, OptionError, WalSinkError, WrongOwner
from wal_sink.metrics.server import Exposition
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.spark.connect_queries import ConnectQueries
from wal_sink.spark.internals import connect_client
from wal_sink.spark.messages import log_flushing
from wal_sink.spark.queries import Queries
from wal_sink.spark.query_errors import failure_in

logger = logging.getLogger(__name__)

_JOIN_S = 5.0
"""How long `close` waits for all threads together. A thread that does not end by then is in a request."""

_JOIN_INTERRUPTED_S = 1.0
"""How long it waits for them after a second Ctrl-C."""

_INTERRUPTS = (KeyboardInterrupt, SystemExit)


class Sink:
    """The sink in one session; made by `wal_sink.register`.

    :param exposition: serves the metrics, and is closed with the handle; None: no metrics.
    :param flushes_here: False if another process flushes; a Connect session ignores it.
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
        """The port that Prometheus can scrape; None: no metrics."""
        self.metrics_host = exposition.host if exposition else None
        """The address that the port listens on; None: no metrics."""
        self._exposition = exposition
        self.queries: Queries | ConnectQueries = (
            ConnectQueries(spark, self._at_exit, exposition)
            if connect_client.is_connect(spark)
            else Queries(spark, self._at_exit, exposition, flushes_here=flushes_here)
        )

    @property
    def flush(self) -> bool:
        """True if this handle flushes the queries of its session."""
        return self.queries.flushes_here

    def await_flushed(
        self, query: StreamingQuery, timeout: float | None = None, *, target: str = ""
    ) -> Flushed:
        """Wait until every epoch of `query` that is checkpointed now is flushed.

        Arguments and errors are those of `wal_sink.await_flushed`.

        :raises OptionError: the query is not of this sink, or was refused as it started.
        """
        place = self.queries.place_of(query)
        has_tried = self.queries.hurry(str(query.id))
        return wait_until_flushed(*place, timeout, target=target, has_tried=has_tried)

    def follow(
        self,
        checkpoint: str,
        wal: str | None = None,
        *,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """Flush a query in this process, from now until `close`; for a Connect session.

        This process must reach checkpoint, log and target. The query may start later, and may be another
        client's. `close` waits until what is checkpointed is flushed. A second call for the same checkpoint
        changes nothing.

        :param checkpoint: the query's checkpointLocation.
        :param wal: the query's `wal.location`, if the checkpoint does not name the log.
        :param options: options that the log does not hold, such as a password, or that an error asks you to
            confirm.
        :raises OptionError: the handle is closed, or the session is classic: it flushes its own queries.
        """
        if isinstance(self.queries, Queries):
            raise OptionError(
                f"A classic session flushes its own queries, and not {checkpoint}.",
                "Leave out follow(); for the query of another process run:\n"
                f"wal-sink flush {checkpoint} --follow",
            )
        self.queries.follow(checkpoint, wal, options or {})

    def status(self, query: StreamingQuery, *, target: str = "") -> Status:
        """Read how far the flush of `query` is; see `wal_sink.status`.

        :raises OptionError: the query is not of this sink, or was refused as it started.
        """
        return read_status(*self.queries.place_of(query), target)

    def failure(self, query: StreamingQuery) -> WalSinkError | None:
        """Return the error of this sink with which `query` failed; None if it has not, or with another error.

        A `with` block that a failed query ends raises this error in place of Spark's.
        """
        exception = query.exception()
        return failure_in(str(exception)) if exception is not None else None

    def close(self) -> None:
        """Wait until everything checkpointed is flushed, then end flushing in this session.

        Works after `spark.stop()`. A query that is running continues, and its epochs stay in the log. An
        interrupt ends the wait, and a line for each query reports its pending epochs. With `flush=False`,
        `close` waits for nothing, and reports what the process that flushes has left to do.

        :raises NotDrained: names each query that could not be flushed within `drain_timeout`, or whose flush
            an error stopped.
        :raises WalSinkError: names each query that was refused as it started, and has not started again:
            `OptionError`, `LogUnavailable` or `WrongOwner`.
        """
        failures: list[str] = []
        try:  # an interrupt at any of these lines still ends all threads below
            if not self.queries.close():
                return
            failures = self._drain()
            self._end(_JOIN_S)
            if not self.flush:
                self.queries.log_pending()
        except BaseException:
            self.queries.close()
            self._end(_JOIN_INTERRUPTED_S)
            self.queries.log_pending()
            raise
        refused = list(self.queries.refused.values())
        if failures:
            failures += [f"- {error.summary}" for error in refused]
            raise NotDrained(
                "The flush did not finish:\n" + "\n".join(failures),
                "The log keeps what it has. Repair each cause, then start the query again under"
                " wal_sink.register(spark), or run:\nwal-sink flush CHECKPOINT",
            )
        if refused:
            raise type(refused[0])("\n".join(error.what for error in refused), refused[0].remedy)

    def hand_over_port(self, port: int, host: str) -> Exposition | None:
        """Return the open metrics port for the handle of a new session, which then closes it.

        :return: None if this handle is closed, or has another port or address.
        """
        if self.queries.closed or (port, host) != (self.metrics_port, self.metrics_host):
            return None
        exposition, self._exposition = self._exposition, None
        return exposition

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = isinstance(exc, _INTERRUPTS)
        # No call to Spark: an interrupted call leaves its connection busy.
        if interrupted and not self.queries.closed:
            places = (flush.place for flush in self.queries.flushing())
            log_flushing(places, self.drain_timeout)
        try:
            self.close()
        except (NotDrained, OptionError, LogUnavailable, WrongOwner) as error:
            if exc is None:
                raise
            logger.error("the block failed, and then its end failed, too: %s", error.one_line)  # noqa: TRY400
        except _INTERRUPTS:
            if not interrupted:
                raise  # else the first interrupt is raised
        if isinstance(exc, PySparkException) and (failure := failure_in(str(exc))) is not None:
            raise failure from None  # a hundred lines of frames and plans would hide it

    def _at_exit(self) -> None:
        """Handle the interpreter's exit: start no work, end the threads, and log pending epochs."""
        if self.queries.close():
            self._end(_JOIN_S, exiting=True)
            self.queries.log_pending()

    def _drain(self) -> list[str]:
        """Wait for every query that is flushed here; return a line for each that failed."""
        deadline_s = time.monotonic() + self.drain_timeout
        failures = []
        for flush in self.queries.flushing():
            remaining_s = max(0.0, deadline_s - time.monotonic())
            try:
                wait_until_flushed(*flush.place(), remaining_s, has_tried=flush.has_tried)
            except Exception as error:  # noqa: BLE001 - the other queries are waited for all the same
                failures.append(f"- {flush.name}: {type(error).__name__}: {error}")
        return failures

    def _end(self, join_s: float, *, exiting: bool = False) -> None:
        self.queries.end(join_s, exiting=exiting)
        if self._exposition is not None:
            self._exposition.close()
