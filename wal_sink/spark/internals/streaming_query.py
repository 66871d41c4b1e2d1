"""Undocumented names of StreamingQuery, and of the DataStreamWriter that starts it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import listener as pyspark_listener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from wal_sink.model.manifest import Execution
from wal_sink.spark.internals import spark_session
from wal_sink.spark.internals.spark_session import find_class, folder, is_stopped, java, without_jvm
from wal_sink.spark.query_errors import refuse_layout, refuse_mode

_SOCKET = "TextSocketMicroBatchStream"
"""The class of Spark's only source that cannot return a row a second time."""


class StartedQuery(NamedTuple):
    """The settings of a started query, as plain values."""

    query_id: str
    options: dict[str, str]
    """The options of the sink. `checkpointLocation` is as Spark has resolved it."""
    folder: str
    """Current folder of the JVM and of its Python workers. The driver's Python may have changed its own."""
    sockets: list[str]
    """Descriptions of the sources that cannot return a row a second time. Sources of other packages are not
    detected."""


def started_query(
    query: StreamingQuery,
    format_name: str,
    options_at: Callable[[str], Mapping[str, str] | None],
) -> StartedQuery | None:
    """Return the settings of a query; None if the query does not write to this sink.

    A thread other than the query's own waits here until Spark has planned the query.

    :param options_at: returns the options of a `BatchWriter` by its checkpoint, since Spark does not have
        them; None if the checkpoint has no `BatchWriter`.
    :raises OptionError: the query has a mode that the sink does not support.
    """
    execution = query._jsq.streamingQuery()
    root, sink = str(execution.resolvedCheckpointRoot()), execution.sink()
    kind = sink.getClass().getName()
    writer_options = options_at(root) if kind == spark_session.FOREACH_BATCH_SINK else None
    is_format = kind == spark_session.PYTHON_TABLE and sink.name().lower() == format_name.lower()
    if writer_options is None and not is_format:
        return None
    trigger = execution.trigger().getClass().getSimpleName()
    # This comes before the plan is read, since the plan of a refused mode may have no options.
    refuse_mode(str(query.id), execution.getClass().getName(), trigger)
    options = writer_options or _format_options(execution)
    options = {name: text for name, text in options.items() if name.lower() != "checkpointlocation"}
    options["checkpointLocation"] = root
    sources = [execution.sources().apply(i) for i in range(execution.sources().length())]
    sockets = {str(s.toString()) for s in sources if s.getClass().getSimpleName() == _SOCKET}
    return StartedQuery(str(query.id), options, folder(), sorted(sockets))


def _format_options(execution: Any) -> Mapping[str, str]:
    """Return the options of a query. The argument of `toTable` becomes option `path`, which gets no row."""
    plan = execution.logicalPlan()
    entries = plan.writeOptions().toSeq()
    options = {entries.apply(i)._1(): entries.apply(i)._2() for i in range(entries.length())}
    with contextlib.suppress(Py4JError):  # a Spark with other names
        if plan.relation().catalog().isDefined():
            options.setdefault("path", str(plan.relation().name()))
    return options


_LAYOUTS = {"partitionBy": "partitioningColumns", "clusterBy": "clusteringColumns"}
"""Fields of Spark's DataStreamWriter, by the method that sets the field."""
_checked: set[str] = set()
"""The methods of DataStreamWriter that `refuse_layouts` has replaced."""


def refuse_layouts(format_name: str) -> None:
    """Let each later start of a query of the sink refuse `partitionBy` and `clusterBy`.

    A started query has no trace of them (Spark 4.1 and 4.3). So this function replaces the methods of
    DataStreamWriter that start a query, once in a process. A query that Scala or Java starts is not checked.
    """
    for name in {"start", "toTable"} - _checked:
        setattr(DataStreamWriter, name, _refusing(getattr(DataStreamWriter, name), format_name))
        _checked.add(name)


def _refusing(
    start: Callable[..., StreamingQuery], format_name: str
) -> Callable[..., StreamingQuery]:
    @functools.wraps(start)
    def checked(writer: DataStreamWriter, *args: Any, **kwargs: Any) -> StreamingQuery:
        arguments = inspect.signature(start).bind(writer, *args, **kwargs).arguments
        for name in ("format", "partitionBy"):
            if arguments.get(name) is not None:
                getattr(writer, name)(arguments[name])  # `start` does the same
        if str(_field(writer, "source")).lower() == format_name:
            refuse_layout({name: _columns(writer, field) for name, field in _LAYOUTS.items()})
        return start(writer, *args, **kwargs)

    return checked


def _columns(writer: DataStreamWriter, name: str) -> str:
    columns = _field(writer, name)
    return str(columns.get().mkString(", ")) if columns is not None and columns.isDefined() else ""


def _field(writer: DataStreamWriter, name: str) -> Any:
    """Return a private field of the writer in the JVM; None in a version of Spark that lacks the field."""
    with contextlib.suppress(Py4JError):
        field = writer._jwrite.getClass().getDeclaredField(name)
        field.setAccessible(True)
        return field.get(writer._jwrite)
    return None


@without_jvm(())
def running_queries(spark: SparkSession) -> Sequence[StreamingQuery]:
    """Return the active queries of a session; none if the session is stopped or its JVM is gone."""
    return [] if is_stopped(spark) else list(spark.streams.active)


@without_jvm(None)
def active_query(spark: SparkSession, query_id: str) -> StreamingQuery | None:
    """Return a running query of a session; None if there is no such query."""
    return spark.streams.get(query_id)


@without_jvm(None)
def is_active(query: StreamingQuery) -> bool | None:
    """Return False if a query has failed or was told to stop; None if the JVM does not answer."""
    return bool(query.isActive)


def checkpoint_root(query: StreamingQuery) -> str:
    """Return the location of a query's checkpoint, as Spark has resolved it."""
    return str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def output_mode(query: StreamingQuery) -> str:
    """Return the output mode of a query: append, update or complete."""
    return str(query._jsq.streamingQuery().outputMode().toString()).lower()


def stop(query: StreamingQuery) -> None:
    """Stop a query. Inside `onQueryStarted`, the query then never begins, and writes no offsets.

    Inside `onQueryStarted`, `query.stop()` would deadlock: it waits for the query's thread, which waits for
    `onQueryStarted`. In another thread, `query.stop()` would interrupt the delivery of the event, and Spark
    would remove the listener (4.3.0). So a query that has not begun only gets the state TERMINATED, which
    `query.stop()` also sets first. The query's thread reads the state, and ends.
    """
    initializing, terminated = (
        find_class(classes).getField("MODULE$").get(None)
        for classes in (spark_session.INITIALIZING, spark_session.TERMINATED)
    )
    terminated_first = query._jsq.streamingQuery().state().compareAndSet(initializing, terminated)
    if not terminated_first and is_active(query):
        query.stop()


class QueryListener(StreamingQueryListener):
    """Calls a function for each event of Spark, with the ids of query and run.

    pyspark's own listener copies each field of a progress event. That takes some hundred calls to the JVM
    for each micro-batch, and 0.1 s of CPU while the next micro-batch runs. This class reads only the id.

    :param started: called with query and run while `start()` of the query waits.
    :param checkpointed: called with the query after it has checkpointed an epoch.
    :param ended: called with query, run, and the text of the query's exception; empty for none.
    """

    def __init__(
        self,
        started: Callable[[str, str], None],
        checkpointed: Callable[[str], None],
        ended: Callable[[str, str, str], None],
    ) -> None:
        super().__init__()
        self._started, self._checkpointed, self._ended = started, checkpointed, ended
        self._connections: dict[str, Any] = {}
        """By run id: the connection over which the thread of the query calls Python."""

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: D102, N802
        self._connections[str(event.runId)] = java()._gateway_client.get_thread_connection()
        self._started(str(event.id), str(event.runId))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Do nothing, since `_jlistener` replaces this method."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing, since no epoch was checkpointed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: D102, N802
        self._ended(str(event.id), str(event.runId), event.exception or "")
        connection: Any = self._connections.pop(str(event.runId), None)
        # py4j keeps a connection, and its thread in Python, after the thread of Java has ended. `close()`
        # would wait for a read that never ends.
        with contextlib.suppress(AttributeError, OSError):
            connection.socket.shutdown(socket.SHUT_RDWR)

    @functools.cached_property
    def _jlistener(self) -> Any:
        """The Java listener that pyspark adds to Spark. It sends events to Python."""
        events: Any = pyspark_listener.JStreamingQueryListener(self)
        events.onQueryProgress = lambda event: self._checkpointed(
            str(event.progress().id().toString())
        )
        return java().PythonStreamingQueryListenerWrapper(events)


@without_jvm(None)
def remove_listener(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove a listener. Do nothing if the session is stopped, or its JVM gone."""
    if not is_stopped(spark):
        spark.streams.removeListener(listener)


_QUERY, _RUN, _EPOCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""Names of local properties, which the thread that runs a query has, and its tasks."""


def current_execution(spark: SparkSession) -> Execution | None:
    """Return the micro-batch that runs in this thread of the driver; None outside of `foreachBatch`."""
    return execution_of(spark.sparkContext.getLocalProperty)


def execution_of(local_property: Callable[[str], str | None]) -> Execution | None:
    """Return the query, run and epoch that local properties name; None if one of the three is missing."""
    query_id, run_id, epoch = map(local_property, (_QUERY, _RUN, _EPOCH))
    if query_id is None or run_id is None or epoch is None:
        return None
    return Execution(query_id, run_id, int(epoch))
