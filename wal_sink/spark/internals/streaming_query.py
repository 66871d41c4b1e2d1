"""Undocumented names of StreamingQuery, and of the DataStreamWriter that starts it.

A started query has no trace of `partitionBy` and `clusterBy` (Spark 4.1 and 4.3). `_layout_asked` reads both
from the writer while `start()` runs, and finds the writer in the frames of the Python threads. So a layout of
a query that Scala or Java starts is not detected.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import listener as pyspark_listener
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from wal_sink.model.manifest import Execution
from wal_sink.spark.internals import spark_session
from wal_sink.spark.internals.spark_session import find_class, folder, is_stopped, java, without_jvm
from wal_sink.spark.query_errors import refuse_layout, refuse_mode


class Source(NamedTuple):
    """A source of a query."""

    kind: str
    """Name of its class, without the package."""
    description: str
    """Its text in Spark's progress events."""


class StartedQuery(NamedTuple):
    """The settings of a started query, as plain values."""

    query_id: str
    options: dict[str, str]
    """The options of the sink. `checkpointLocation` is as Spark has resolved it."""
    folder: str
    """Current folder of the JVM and of its Python workers. The driver's Python may have changed its own."""
    sources: tuple[Source, ...] = ()


def started_query(
    query: StreamingQuery,
    format_name: str,
    options_at: Callable[[str], Mapping[str, str] | None],
) -> StartedQuery | None:
    """Return the settings of a query; None if the query does not write to this sink.

    A thread other than the query's own waits here until Spark has planned the query.

    :param options_at: returns the options of a `BatchWriter` by its checkpoint, since Spark does not have
        them; None if the checkpoint has no `BatchWriter`.
    :raises OptionError: the query has a mode or a layout that the sink does not support.
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
    refuse_layout(str(query.id), _layout_asked(root))
    options = writer_options or _format_options(execution)
    options = {name: text for name, text in options.items() if name.lower() != "checkpointlocation"}
    options["checkpointLocation"] = root
    java_sources = execution.sources()
    sources = [java_sources.apply(i) for i in range(java_sources.length())]
    return StartedQuery(
        str(query.id),
        options,
        folder(),
        tuple(Source(s.getClass().getSimpleName(), str(s.toString())) for s in sources),
    )


def _format_options(execution: Any) -> Mapping[str, str]:
    """Return the options of a query. The argument of `toTable` becomes option `path`, which gets no row."""
    plan = execution.logicalPlan()
    entries = plan.writeOptions().toSeq()
    options = {entries.apply(i)._1(): entries.apply(i)._2() for i in range(entries.length())}
    with contextlib.suppress(Py4JError):  # a Spark with other names
        if plan.relation().catalog().isDefined():
            options.setdefault("path", str(plan.relation().name()))
    return options


_FIELDS = {"partitionBy": "partitioningColumns", "clusterBy": "clusteringColumns"}
_STARTS = {"start", "toTable"}


def _layout_asked(checkpoint: str) -> Mapping[str, str]:
    """Return the arguments of `partitionBy` and `clusterBy`.

    :param checkpoint: checkpoint of the query that starts. Other threads may start other queries.
    :return: columns by method; empty for a Spark whose writer has other fields.
    """
    writers = [writer._jwrite for writer in _starting()]
    # A writer without the option uses the session's setting. Such a writer is of this query only if no
    # other query starts.
    expected = {checkpoint, ""} if len(writers) == 1 else {checkpoint}
    try:
        writers = [writer for writer in writers if _checkpoint(writer) in expected]
        asked = {
            method: _field(writer, name) for writer in writers for method, name in _FIELDS.items()
        }
        return {
            method: str(columns.get().mkString(", "))
            for method, columns in asked.items()
            if columns.isDefined()
        }
    except Py4JError:
        return {}


def _starting() -> Iterator[DataStreamWriter]:
    """Yield the writers that are starting a query, in any thread."""
    for innermost in _frames():
        frame: FrameType | None = innermost
        while frame is not None:
            if frame.f_code.co_name in _STARTS:
                writer = frame.f_locals.get("self")
                if isinstance(writer, DataStreamWriter):
                    yield writer
            frame = frame.f_back


def _frames() -> list[FrameType]:
    """Return the innermost frame of each thread, and keep the garbage collector from running meanwhile.

    CPython 3.11 holds the lock of its list of threads here. A finalizer that the collector runs may wait for
    a thread that waits for this lock, which is a deadlock (python/cpython#106883).
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        return list(sys._current_frames().values())
    finally:
        if is_enabled:
            gc.enable()


def _checkpoint(writer: Any) -> str:
    """Return the checkpoint of a writer, as Spark resolves it; empty if only the session has one."""
    place = _field(writer, "extraOptions").get("checkpointLocation")
    if place.isEmpty():
        return ""
    path = java().org.apache.hadoop.fs.Path(place.get())
    conf = _field(writer, "ds").sparkSession().sessionState().newHadoopConf()
    return str(path.getFileSystem(conf).makeQualified(path).toString())


def _field(writer: Any, name: str) -> Any:
    field = writer.getClass().getDeclaredField(name)
    field.setAccessible(True)
    return field.get(writer)


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


class CheckpointListener(StreamingQueryListener):
    """A listener that gets the query of a progress event, and nothing else of the event.

    pyspark's own listener copies each field of an event. That takes some hundred calls to the JVM for each
    micro-batch, and 0.1 s of CPU while the next micro-batch runs.
    """

    def checkpointed(self, query_id: str) -> None:
        """Handle the event that a query has checkpointed an epoch."""
        raise NotImplementedError

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Do nothing, since `_jlistener` calls `checkpointed` in place of this method."""

    @functools.cached_property
    def _jlistener(self) -> Any:
        """The Java listener that pyspark adds to Spark. It sends events to Python."""
        events: Any = pyspark_listener.JStreamingQueryListener(self)
        events.onQueryProgress = self._on_progress
        return java().PythonStreamingQueryListenerWrapper(events)

    def _on_progress(self, event: Any) -> None:
        self.checkpointed(str(event.progress().id().toString()))


@without_jvm(None)
def remove_listener(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove a listener. Do nothing if the session is stopped, or its JVM gone."""
    if not is_stopped(spark):
        spark.streams.removeListener(listener)


_QUERY, _RUN, _EPOCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""Local properties of the thread that runs a query, and of its tasks."""


def current_execution(spark: SparkSession) -> Execution | None:
    """Return the micro-batch that runs in this thread of the driver; None outside of `foreachBatch`."""
    return execution_of(spark.sparkContext.getLocalProperty)


def execution_of(local_property: Callable[[str], str | None]) -> Execution | None:
    """Return the query, run and epoch that local properties name; None if one of the three is missing."""
    query_id, run_id, epoch = map(local_property, (_QUERY, _RUN, _EPOCH))
    if query_id is None or run_id is None or epoch is None:
        return None
    return Execution(query_id, run_id, int(epoch))
