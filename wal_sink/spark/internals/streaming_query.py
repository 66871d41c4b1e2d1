"""Undocumented names of StreamingQuery: its task, its listener, what it was given, and its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming import listener as pyspark_listener
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from wal_sink.model.manifest import Execution, Task
from wal_sink.spark.internals import spark_session
from wal_sink.spark.internals.spark_session import (
    find_class,
    folder_of,
    is_stopped,
    untested,
    without_jvm,
)
from wal_sink.spark.internals.stream_writer import layout_asked
from wal_sink.spark.modes import refuse_layout, refuse_mode

_QUERY, _RUN, _EPOCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""Local properties of the thread that runs a query, and of its tasks."""


def current_task() -> Task:
    """Return the query, run, epoch and partition that the current task works for, as Spark tells it."""
    context = TaskContext.get()
    assert context is not None
    execution = _execution(context.getLocalProperty)
    if execution is None:
        raise untested("does not tell a task its query id, run id and batch id")
    return Task(
        **execution._asdict(),
        partition=context.partitionId(),
        task_attempt=context.attemptNumber(),
    )


def current_execution(spark: SparkSession) -> Execution | None:
    """Return the micro-batch that runs in this thread of the driver; None outside of `foreachBatch`."""
    return _execution(spark.sparkContext.getLocalProperty)


def _execution(local_property: Callable[[str], str | None]) -> Execution | None:
    query_id, run_id, epoch = map(local_property, (_QUERY, _RUN, _EPOCH))
    if query_id is None or run_id is None or epoch is None:
        return None
    return Execution(query_id, run_id, int(epoch))


class CheckpointListener(StreamingQueryListener):
    """A listener for the epochs that are checkpointed, without Spark's figures on their progress.

    To copy an event pyspark asks the JVM for every field, durations and metrics of all sources included:
    some hundred calls, 0.1 s of CPU on both sides for each micro-batch, while the next one runs.
    """

    def checkpointed(self, query_id: str) -> None:
        """Handle that a run of a query has written a file of `commits/`."""
        raise NotImplementedError

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Do nothing: `checkpointed` is called in its place."""

    @functools.cached_property
    def _jlistener(self) -> Any:
        """What pyspark gives to Spark: Java's listener, which passes events on to Python."""
        events: Any = pyspark_listener.JStreamingQueryListener(self)
        events.onQueryProgress = self._on_progress
        jvm: Any = SparkContext._jvm
        return jvm.PythonStreamingQueryListenerWrapper(events)

    def _on_progress(self, event: Any) -> None:
        """Ask Java's `QueryProgressEvent` for one field."""
        self.checkpointed(str(event.progress().id().toString()))


@without_jvm(None)
def remove_listener(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove a listener; does nothing where the session is stopped, or its JVM gone."""
    if not is_stopped(spark):
        spark.streams.removeListener(listener)


class Source(NamedTuple):
    """A source of a query, as Spark has it."""

    kind: str
    """Its class, without the package."""
    description: str
    """As in Spark's progress events."""


class StartedQuery(NamedTuple):
    """What a started query was given, as plain values, so that nothing asks Spark later."""

    query_id: str
    options: dict[str, str]
    """As given, but `checkpointLocation` as Spark resolved it."""
    folder: str
    """Current folder of the JVM, and so of its Python workers; the driver's Python may have left it."""
    sources: tuple[Source, ...] = ()


def started_query(
    query: StreamingQuery,
    format_name: str,
    options_at: Callable[[str], Mapping[str, str] | None],
) -> StartedQuery | None:
    """Copy what the sink needs to know of a query; None when it writes to another format.

    Another thread than the query's waits here until Spark has planned the query.

    :param options_at: the options of a `foreachBatch` query, which Spark does not have, by its checkpoint;
        None for one of another function.

    :raises OptionError: it does not run in plain micro-batches, see `refuse_mode`; or its writer was asked
        for a layout, see `refuse_layout`.
    """
    execution = query._jsq.streamingQuery()
    root, sink = str(execution.resolvedCheckpointRoot()), execution.sink()
    kind = sink.getClass().getName()
    written = options_at(root) if kind == spark_session.FOREACH_BATCH_SINK else None
    is_format = kind == spark_session.PYTHON_TABLE and sink.name().lower() == format_name.lower()
    if written is None and not is_format:
        return None
    trigger = execution.trigger().getClass().getSimpleName()
    # Before its options are read: the plan of a refused mode may have none.
    refuse_mode(str(query.id), execution.getClass().getName(), trigger)
    refuse_layout(str(query.id), layout_asked(root))
    if written is None:
        table = _table(execution)  # in which as little is written as in a path
        written = {**({"path": table} if table else {}), **_write_options(execution)}
    options = {key: value for key, value in written.items() if key.lower() != "checkpointlocation"}
    options["checkpointLocation"] = root
    java_sources = execution.sources()  # known as soon as the plan is
    sources = [java_sources.apply(i) for i in range(java_sources.length())]
    return StartedQuery(
        str(query.id),
        options,
        folder_of(SparkContext._jvm),
        tuple(Source(s.getClass().getSimpleName(), str(s.toString())) for s in sources),
    )


def _table(execution: Any) -> str:
    """Return the table of Spark's catalog that `toTable` has named; empty for none.

    If a version of Spark names it otherwise, the result is empty, and a warning is lost.
    """
    try:
        relation = execution.logicalPlan().relation()
        return str(relation.name()) if relation.catalog().isDefined() else ""
    except Py4JError:
        return ""


def _write_options(execution: Any) -> Mapping[str, str]:
    entries = execution.logicalPlan().writeOptions().toSeq()
    return {entries.apply(i)._1(): entries.apply(i)._2() for i in range(entries.length())}


@without_jvm(None)
def active_query(spark: SparkSession, query_id: str) -> StreamingQuery | None:
    """Return a query that runs in a session; None when it has no such query."""
    return spark.streams.get(query_id)


def checkpoint_root(query: StreamingQuery) -> str:
    """Return where a query's checkpoint is, as Spark has resolved it."""
    return str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def output_mode(query: StreamingQuery) -> str:
    """Return a query's output mode: append, update or complete."""
    return str(query._jsq.streamingQuery().outputMode().toString()).lower()


def stop(query: StreamingQuery) -> None:
    """Stop a query, also inside `onQueryStarted`: there it never begins, and writes no offsets.

    `query.stop()` inside `onQueryStarted` would wait for the thread that waits for it. In another thread it
    would interrupt the delivery of the event, and Spark then removes the listener (4.3.0). So a query that
    has not begun is only marked as stopped, as `stop()` does first; its thread sees the mark, and ends.
    """
    jvm: Any = SparkContext._jvm
    initializing, terminated = (
        find_class(jvm, classes).getField("MODULE$").get(None)
        for classes in (spark_session.INITIALIZING, spark_session.TERMINATED)
    )
    marked = query._jsq.streamingQuery().state().compareAndSet(initializing, terminated)
    if not marked and is_active(query):
        query.stop()


@without_jvm(())
def running_queries(spark: SparkSession) -> Sequence[StreamingQuery]:
    """Return the session's active queries; none when the session is stopped or its JVM is gone."""
    if is_stopped(spark):
        return []
    return list(spark.streams.active)


@without_jvm(None)
def is_active(query: StreamingQuery) -> bool | None:
    """Return True if a query was neither told to stop nor has failed; None when the JVM no longer answers."""
    return bool(query.isActive)
