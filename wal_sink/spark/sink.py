"""The handle that `register` returns: the sink inside one Spark session."""

from __future__ import annotations

import logging
from types import TracebackType
from typing import Self

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import LogUnavailable, NotDrained, OptionError, WalSinkError, WrongOwner
from wal_sink.metrics.server import Exposition
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.spark import internals
from wal_sink.spark.failure import failure_in
from wal_sink.spark.listener import Listener
from wal_sink.spark.queries import Queries
from wal_sink.spark.query_flush import locate
from wal_sink.spark.shutdown import Shutdown
from wal_sink.spark.waiting_message import say_flushing
from wal_sink.wal.attached import view_of
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)

_INTERRUPTS = (KeyboardInterrupt, SystemExit)


class Sink:
    """The sink in one session; made by `wal_sink.register`.

    :param exposition: shows metrics, and is closed with the handle; None: no metrics.
    :param flush: whether this process flushes; another one does otherwise.
    :param tune_hand_over: whether to set how Spark hands rows over, see `HandOver`.
    """

    def __init__(
        self,
        spark: SparkSession,
        drain_timeout: float,
        exposition: Exposition | None = None,
        *,
        flush: bool = True,
        tune_hand_over: bool = True,
    ) -> None:
        self.drain_timeout = drain_timeout
        self.metrics_port = exposition.port if exposition else None
        """Where Prometheus can ask; None: without metrics."""
        self.metrics_host = exposition.host if exposition else None
        """The address that the port listens on; None: without metrics."""
        self.flush = flush
        self._spark = spark
        self._queries = Queries(
            spark, self._at_exit, exposition, flush=flush, tune_hand_over=tune_hand_over
        )
        self._listener = Listener(self._queries)
        self._shutdown = Shutdown(spark, self._queries, self._listener, exposition)
        internals.add_listener(spark, self._listener)

    def await_flushed(
        self, query: StreamingQuery, timeout: float | None = None, *, target: str = ""
    ) -> Flushed:
        """Wait until every epoch of `query` that is checkpointed now is flushed.

        Arguments and errors as for `wal_sink.await_flushed`.

        :raises OptionError: the query is not of this sink, or was refused as it started.
        """
        checkpoint, log = self._place_of(query)
        if flush := self._queries.find(str(query.id)):
            flush.loop.hurry()  # an error that was repaired since is found to be over
        return wait_until_flushed(checkpoint, view_of(log, target), timeout)

    def status(self, query: StreamingQuery, *, target: str = "") -> Status:
        """Read how far the flush of `query` is; see `wal_sink.status`.

        :raises OptionError: the query is not of this sink, or was refused as it started.
        """
        checkpoint, log = self._place_of(query)
        return read_status(checkpoint, view_of(log, target))

    def failure(self, query: StreamingQuery) -> WalSinkError | None:
        """Return the error of this sink with which `query` has failed; None: it has not, or by another error.

        A `with` block that a failed query ends raises this error, in place of Spark's.
        """
        said = query.exception()
        return failure_in(str(said)) if said is not None else None

    def close(self) -> None:
        """Wait until everything checkpointed is flushed, then end flushing in this session.

        Works after `spark.stop()`. A query that still runs goes on, and its epochs wait in the log. An
        interrupt ends the waiting, and one line for each query says what then waits. With `flush=False` it
        waits for nothing, and says what is left to the process that flushes.

        :raises NotDrained: naming each query that could not be flushed within `drain_timeout`.
        :raises OptionError, LogUnavailable, WrongOwner: naming each query that was refused as it started,
            and did not start again since.
        """
        self._shutdown.close(self.drain_timeout)

    def knows(self, query_id: str) -> bool:
        """Whether this handle has seen the query, and has not let go of it."""
        refused = self._queries.refusals.find(query_id) is not None
        return refused or self._queries.place(query_id) is not None

    def forgotten(self) -> bool:
        """Whether nothing more can come from this handle, so that the session may get a new one."""
        return self._queries.closed or internals.is_stopped(self._spark)

    def adopt_running(self) -> None:
        """Flush the queries that run already."""
        self._queries.adopt_running()

    def retire(self) -> None:
        """Give way to the handle of a new session; what waits is flushed until that one flushes it."""
        self._shutdown.retire()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = isinstance(exc, _INTERRUPTS)
        if interrupted and self.flush and not self._queries.closed:
            say_flushing(self._queries.flushes(), self.drain_timeout)
        try:
            self.close()
        except (NotDrained, OptionError, LogUnavailable, WrongOwner) as error:
            if exc is None:
                raise
            logger.error("after the block had failed: %s", error.one_line)  # noqa: TRY400
        except _INTERRUPTS:
            if not interrupted:
                raise  # else the first one goes on from here
        if isinstance(exc, PySparkException) and (failure := failure_in(str(exc))) is not None:
            raise failure from None  # some hundred lines of frames and plans would hide it

    def _at_exit(self) -> None:
        self._shutdown.at_exit()

    def _place_of(self, query: StreamingQuery) -> tuple[Checkpoint, Log]:
        if refusal := self._queries.refusals.find(str(query.id)):
            raise type(refusal)(*refusal.args)
        return self._queries.place(str(query.id)) or locate(query)
