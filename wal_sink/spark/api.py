"""The interface of applications: `register`, its handle `Sink`, `await_flushed`, `status` and `check`."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from wal_sink.configuration import FILE_MANAGER
from wal_sink.errors import NotDrained, OptionError, WalSinkError
from wal_sink.metrics.server import LOOPBACK, Exposition
from wal_sink.options import as_texts
from wal_sink.progress.status import Status, read_status
from wal_sink.progress.wait import Flushed, wait_until_flushed
from wal_sink.publish.preflight import Checked, preflight
from wal_sink.spark.classic_queries import Queries
from wal_sink.spark.connect_queries import ConnectQueries, unknown_place
from wal_sink.spark.data_source import FORMAT, HandledDataSource, WalSinkDataSource, add_format
from wal_sink.spark.internals import connect_client, python_worker, spark_session, streaming_query
from wal_sink.spark.log_messages import log_flushing
from wal_sink.spark.query_errors import failure_in
from wal_sink.spark.query_flush import Place
from wal_sink.spark.query_start import open_place
from wal_sink.wal.location import find_by_checkpoint, refuse_unused, store_errors

logger = logging.getLogger(__name__)

WORKER_PATH = Path(__file__).parent / "worker_path"
"""The folder with `sitecustomize.py`, which a Python worker imports before its other modules."""

_JOIN_S, _JOIN_INTERRUPTED_S = 5.0, 1.0
"""Seconds that `close` waits for the end of all flush threads together; the second number is for the
time after an interrupt. A thread ends later only if it waits for the answer to a request."""

_INTERRUPTS = (KeyboardInterrupt, SystemExit)

_registered: dict[str, tuple[Sink, Mapping[str, object]]] = {}
"""For each session id, the handle and the arguments of `register`, without the port."""
_lock = threading.RLock()


def register(
    spark: SparkSession,
    *,
    flush: bool = True,
    metrics_port: int | None = None,
    metrics_host: str = LOOPBACK,
    drain_timeout: float = 60,
    with_format: bool = True,
) -> Sink:
    """Add format `wal_sink` to a session, and flush its queries in this process.

    Call `register` before the first query starts. Use the handle as a context manager, since the end of its
    block waits until everything checkpointed is in the target. A session has one handle, which a second call
    returns.

    In a Spark Connect session or a pipeline, `register` only adds the format, and logs the command by which
    another process flushes. See also `Sink.follow`.

    :param flush: False if another process flushes, such as `wal-sink flush --follow`. The end of the block
        then waits for nothing, and logs how many epochs are pending. See also `await_flushed`.
    :param metrics_port: the port on which Prometheus can scrape this process; 0 for a free port, which is the
        handle's `metrics_port`. None: no metrics.
    :param metrics_host: the address of this host that the port listens on; 0.0.0.0 lets other hosts scrape,
        without a login.
    :param drain_timeout: how many seconds `close` waits for the flush of all queries together. After that
        `close` waits up to 5 s for requests under way.
    :param with_format: False leaves the format out, for an application that uses only `batch_writer`. Spark
        then starts one Python worker less, the worker that looks for formats.
    :raises UnsupportedSpark: the session lacks something that the sink relies on.
    :raises OptionError: the Python of Spark's workers is missing on this host; the session is registered
        already with other arguments; the port is taken, or is given with `flush=False`; or `metrics_host` is
        given without a port.
    """
    _refuse_arguments(drain_timeout, metrics_port, metrics_host, flush=flush)
    arguments = {
        "drain_timeout": drain_timeout,
        "flush": flush,
        "with_format": with_format,
        "metrics_host": None if metrics_port is None else metrics_host,
    }
    remote = connect_client.is_connect(spark)
    if not remote:
        spark_session.check_session(spark)
    with _lock:
        for key in [key for key, (sink, _) in _registered.items() if sink.queries.is_finished()]:
            _registered.pop(key)[0].retire()
        key = (connect_client if remote else spark_session).session_id(spark)
        if key not in _registered:
            if not remote:
                _refuse_missing_python(spark)
                streaming_query.refuse_layouts(FORMAT)
                spark_session.put_on_workers_path(spark, WORKER_PATH)
            if with_format:
                # No handle gets the events of a Connect server.
                add_format(spark, WalSinkDataSource if remote else HandledDataSource)
            exposition = None if metrics_port is None else Exposition(metrics_port, metrics_host)
            try:
                sink = Sink(spark, drain_timeout, exposition, flushes_here=flush)
            except BaseException:
                if exposition is not None:
                    exposition.close()
                raise
            _registered[key] = sink, arguments
        sink, made_with = _registered[key]
        is_port = metrics_port in (sink.metrics_port, sink.metrics_port and 0)  # 0 means any port
        if arguments != made_with or not is_port:
            made_with = {**made_with, "metrics_port": sink.metrics_port}
            raise OptionError(
                f"This session is registered with {', '.join(f'{k}={v}' for k, v in made_with.items())}.",
                "Pass the same arguments, which return its handle; or close() the handle before.",
            )
        return sink


def await_flushed(
    query_or_checkpoint: StreamingQuery | str,
    timeout: float | None = None,
    *,
    target: str = "",
    wal: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Flushed:
    """Wait until every epoch that is checkpointed now is in the target, and the log's state says so.

    A flusher does the work, in this process or in another. This function connects to no target.

    :param query_or_checkpoint: a query of this process, or the location of its checkpoint.
    :param timeout: seconds; None waits for as long as a flusher is alive.
    :param target: the name of one of several targets; empty: all of them.
    :param wal: the query's `wal.location`; needed only if the checkpoint does not name its log.
    :param storage_options: for the object store of log or checkpoint, if a location is given. A query has its
        own.
    :raises FlushTimeout: an epoch was not flushed within `timeout`.
    :raises NoFlusher: no process flushes.
    :raises OptionError: the query is not of this sink, or was refused as it started.
    :raises LogUnavailable: the store of log or checkpoint does not answer, or refuses the access.
    :raises WalSinkError: the error that stopped the flush, also if nothing is pending.
    """
    if not isinstance(query_or_checkpoint, str) and (sink := _sink_of(query_or_checkpoint)):
        return sink.await_flushed(query_or_checkpoint, timeout, target=target)
    place = _find(query_or_checkpoint, wal, storage_options)
    return wait_until_flushed(*place, timeout, target=target)


def status(
    query_or_checkpoint: StreamingQuery | str,
    *,
    target: str = "",
    wal: str | None = None,
    storage_options: Mapping[str, object] | None = None,
) -> Status:
    """Return how far the flush of a query is. Connects to no target.

    The arguments are those of `await_flushed`.
    """
    return read_status(*_find(query_or_checkpoint, wal, storage_options), target)


def check(df_or_schema: DataFrame | StructType, **options: object) -> Checked:
    """Check what the first micro-batch of a query would check, before it starts; creates nothing.

    Connects to the target and compares the table with the DataFrame. Options whose names have a dot are given
    as `**{"cassandra.contactPoints": "127.0.0.1"}`.

    :param df_or_schema: the DataFrame that would be written, or its schema.
    :param options: the options of `writeStream`, by name.
    :return: the settings in force, and what each column is written to; prints as text.
    :raises OptionError: an option is missing, unknown, or does not fit.
    :raises SchemaMismatch: the DataFrame does not fit the table, or the table cannot be written exactly once.
    :raises TargetUnavailable: the target does not answer.
    :raises TargetRefused: the target refuses a request.
    """
    if isinstance(df_or_schema, StructType):
        schema, spark = df_or_schema, SparkSession.getActiveSession()
    else:
        schema, spark = df_or_schema.schema, df_or_schema.sparkSession
    file_manager = spark.conf.get(FILE_MANAGER, None) if spark is not None else None
    return preflight(as_texts(options), python_worker.arrow_schema(schema), file_manager)


class Sink:
    """The sink in one session, which `wal_sink.register` makes.

    :param exposition: serves the metrics, and is closed with the handle; None: no metrics.
    :param flushes_here: False if another process flushes. A Connect session ignores this parameter.
    """

    def __init__(
        self,
        spark: SparkSession,
        drain_timeout: float,
        exposition: Exposition | None,
        *,
        flushes_here: bool,
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
        """
        flush = self.queries.flush_of(query)
        flush.hurry()
        return wait_until_flushed(*flush.place(), timeout, target=target, has_tried=flush.has_tried)

    def follow(
        self,
        checkpoint: str,
        wal: str | None = None,
        *,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """In a Connect session, flush a query in this process, from now until `close`.

        This process must reach checkpoint, log and target. The query may start later, and
        another client may start it. `close` waits until what is checkpointed is flushed. A second call for
        the same checkpoint changes nothing.

        :param checkpoint: the query's checkpointLocation.
        :param wal: the query's `wal.location`, if the checkpoint does not name the log.
        :param options: options that the log does not hold, such as a password, or that an error asks you to
            confirm.
        :raises OptionError: the handle is closed; or the session is classic, which flushes its own queries.
        """
        if isinstance(self.queries, Queries):
            raise OptionError(
                f"A classic session flushes its own queries, and not {checkpoint}.",
                "Leave out follow(); for the query of another process run:\n"
                f"wal-sink flush {checkpoint} --follow",
            )
        self.queries.follow(checkpoint, wal, options or {})

    def status(self, query: StreamingQuery, *, target: str = "") -> Status:
        """Read how far the flush of `query` is; see `wal_sink.status`."""
        return read_status(*self.queries.flush_of(query).place(), target)

    def failure(self, query: StreamingQuery) -> WalSinkError | None:
        """Return the error of this sink that ended `query`; None if no error of this sink ended it.

        If a failed query ends a `with` block, the block raises this error in place of Spark's.
        """
        exception = query.exception()
        return failure_in(str(exception)) if exception is not None else None

    def close(self) -> None:
        """Wait until everything checkpointed is flushed, then end flushing in this session.

        Works after `spark.stop()`. A query that is running continues, and its epochs stay in the log. An
        interrupt ends the wait, and a line for each query reports its pending epochs. With `flush=False`,
        `close` waits for nothing, and logs how many epochs are pending.

        :raises NotDrained: names each query that could not be flushed within `drain_timeout`, or whose flush
            an error stopped.
        :raises WalSinkError: names each query that was refused as it started, and has not started again:
            `OptionError`, `LogUnavailable`, `CorruptLog` or `WrongOwner`.
        """
        failures: list[str] = []
        try:  # an interrupt at any of these lines still ends all threads below
            if not self.queries.accept_no_more():
                return
            failures = self._drain()
            self._end(_JOIN_S)
            if not self.flush:
                self.queries.log_pending()
        except BaseException:
            self.queries.accept_no_more()
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

    def retire(self) -> None:
        """Leave queries and metrics port to a new handle. The flushes of this handle finish, then end."""
        self.queries.stop_listening()
        if self._exposition is not None:
            self._exposition.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        interrupted = isinstance(exc, _INTERRUPTS)
        # This code does not call Spark, since an interrupted call leaves its connection busy.
        if interrupted and not self.queries.closed:
            log_flushing([flush.place for flush in self.queries.flushes()], self.drain_timeout)
        failure = failure_in(str(exc)) if isinstance(exc, PySparkException) else None
        try:
            self.close()
        except WalSinkError as error:
            if exc is None:
                raise
            if failure is None or failure.one_line != error.one_line:
                logger.error("the block failed, and then its end failed, too: %s", error.one_line)  # noqa: TRY400
        except _INTERRUPTS:
            if not interrupted:
                raise  # the first interrupt is raised in place of a second one
        if failure is not None:
            raise failure from None  # Spark's error has a hundred lines of frames and plans

    def _at_exit(self) -> None:
        """End the threads and log the pending epochs, since an exiting interpreter can start no more work."""
        if self.queries.accept_no_more():
            self._end(_JOIN_S, exiting=True)
            self.queries.log_pending()

    def _drain(self) -> list[str]:
        """Wait for the flush of every query; return an error line for each query that failed."""
        deadline_s = time.monotonic() + self.drain_timeout
        failures, flushes = [], self.queries.flushes()
        for flush in flushes:
            flush.hurry()
        for flush in flushes:
            try:
                waits_in_vain = flush.lacks_a_target()
                remaining_s = 0.0 if waits_in_vain else max(0.0, deadline_s - time.monotonic())
                wait_until_flushed(*flush.place(), remaining_s, has_tried=flush.has_tried)
            except Exception as error:  # noqa: BLE001 - the other queries are waited for all the same
                failures.append(f"- query {flush.name}: {type(error).__name__}: {error}")
        return failures

    def _end(self, join_s: float, *, exiting: bool = False) -> None:
        self.queries.stop_flushes(join_s, exiting=exiting)
        if self._exposition is not None:
            self._exposition.close()


def _refuse_arguments(
    drain_timeout: object, metrics_port: object, metrics_host: str, *, flush: bool
) -> None:
    if not isinstance(drain_timeout, int | float) or not drain_timeout >= 0:
        raise OptionError(
            f"Argument drain_timeout is {drain_timeout!r}.", "Give seconds, 0 or more."
        )
    if metrics_port is not None and not isinstance(metrics_port, int):
        raise OptionError(
            f"Argument metrics_port is {metrics_port!r}.",
            "Give a number, such as int(os.environ[…]).",
        )
    if metrics_port is not None and not flush:
        raise OptionError(
            "Argument metrics_port has no effect with flush=False: the process that flushes has the metrics.",
            "Start the other process with `wal-sink flush CHECKPOINT --follow --metrics-port PORT`.",
        )
    if metrics_port is None and metrics_host != LOOPBACK:
        raise OptionError(
            f"Argument metrics_host is {metrics_host}, and there is no metrics_port.",
            "Give both, or none of them.",
        )


def _refuse_missing_python(spark: SparkSession) -> None:
    """Refuse a session if this host lacks the Python that Spark starts for its workers."""
    python, folder = spark_session.worker_python(spark), spark_session.folder()
    if shutil.which(str(Path(folder, python)) if "/" in python else python) is None:
        raise OptionError(
            f"Spark starts its Python workers with {python!r}, some of them on the driver's host. This host"
            f" has no such program (the current folder is {folder}).",
            "Set PYSPARK_PYTHON, or spark.pyspark.python, to a Python with wal_sink that is at the same path"
            " on every host, also on the driver's. Spark unpacks --archives on executors only: start the"
            " application in a folder in which the same relative path exists.",
        )


def _sink_of(query: Any) -> Sink | None:
    """Return the handle of this process that has seen the query; None if no handle has seen it.

    :raises OptionError: the argument is not a query.
    """
    if not isinstance(query, StreamingQuery) and not connect_client.is_query(query):
        raise OptionError(
            f"{type(query).__name__} is neither a query nor the location of a checkpoint.",
            "Pass what start() has returned, or the query's checkpointLocation as a string.",
        )
    with _lock:
        sinks = [sink for sink, _ in _registered.values()]
    return next((sink for sink in sinks if sink.queries.has_seen(str(query.id))), None)


@store_errors()
def _find(
    query_or_checkpoint: StreamingQuery | str,
    wal: str | None,
    storage_options: Mapping[str, object] | None,
) -> Place:
    if isinstance(query_or_checkpoint, str):
        options = storage_options or {}
        query_id, location = find_by_checkpoint(query_or_checkpoint, wal, "wal=…", options, options)
        refuse_unused(location, options, "storage_options")
        return location.open_checkpoint(), location.open_log(query_id)
    if (sink := _sink_of(query_or_checkpoint)) is not None:
        return sink.queries.flush_of(query_or_checkpoint).place()
    if connect_client.is_query(query_or_checkpoint):
        raise unknown_place(str(query_or_checkpoint.id))
    return open_place(query_or_checkpoint)
