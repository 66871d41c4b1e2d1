"""Wraps every undocumented name of Spark that the sink uses; no other module uses one.

`check_session` is the canary: it looks for each of them before the first query, so that `register` refuses a
Spark that has changed, and no query finds it out at 3 a.m. Tested with the versions in `TESTED`.
"""

from __future__ import annotations

import contextlib
from functools import partial, reduce
from inspect import signature
from typing import Any

import pyarrow as pa
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import listener as pyspark_listener
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from wal_sink.errors import UnsupportedSpark
from wal_sink.model.task import Task
from wal_sink.spark.modes import refuse_mode
from wal_sink.spark.started_query import Source, StartedQuery

TESTED = ("4.1.4", "4.3.0")

_STREAM_EXECUTION = (  # moved between minor versions
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution",
    "org.apache.spark.sql.execution.streaming.StreamExecution",
)
_STREAM_EXECUTION_METHODS = {
    *("resolvedCheckpointRoot", "sink", "logicalPlan", "sources", "state", "trigger"),
    *("lastProgress", "queryExecutionThread"),
}
_MICRO_BATCH_EXECUTION, _INITIALIZING, _TERMINATED = (
    tuple(name.replace("StreamExecution", beside) for name in _STREAM_EXECUTION)
    for beside in ("MicroBatchExecution", "INITIALIZING$", "TERMINATED$")
)
_SPARK_CONTEXT = "org.apache.spark.SparkContext"
_SPARK_CONTEXT_METHODS = {"maxNumConcurrentTasks", "resourceProfileManager"}
_JAVA_CLIENT = {"deque", "get_thread_connection"}
_LISTENER_WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"
_PYTHON_TABLE = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"


def check_session(spark: SparkSession) -> None:
    """Refuse a session in which one of the names below is missing.

    :raises UnsupportedSpark: naming what is missing and the tested versions.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise UnsupportedSpark(
            "This is a Spark Connect session: its listener runs away from the driver",
            "Run the query in a classic session, on the driver (for example with spark-submit).",
        )
    missing = list(_missing(spark))
    if missing:
        raise UnsupportedSpark(
            f"Spark {spark_version} lacks {', '.join(missing)}, which the sink relies on",
            f"Use a tested version of pyspark: {', '.join(TESTED)}.",
        )


def _missing(spark: SparkSession) -> list[str]:
    missing = []
    gateway = spark.sparkContext._gateway
    if isinstance(gateway, ClientServer):
        lacks = _JAVA_CLIENT - set(dir(gateway._gateway_client))
        missing += [f"py4j's JavaClient.{name}" for name in sorted(lacks)]
    else:
        missing.append("pinned threads (do not set PYSPARK_PIN_THREAD=false)")
    for names, wanted in (
        (_STREAM_EXECUTION, _STREAM_EXECUTION_METHODS),
        ((_SPARK_CONTEXT,), _SPARK_CONTEXT_METHODS),
    ):
        lacks = wanted - _methods(spark, names)
        missing += [f"{names[0].rpartition('.')[2]}.{name}" for name in sorted(lacks)]
    for classes in ((_PYTHON_TABLE,), _MICRO_BATCH_EXECUTION, _INITIALIZING, _TERMINATED):
        if _find_class(_jvm(spark), classes) is None:
            missing.append(classes[0])
    try:
        session_id(spark)
    except (Py4JError, AttributeError):
        missing.append("SparkSession.sessionUUID")
    return missing


def _methods(spark: SparkSession, names: tuple[str, ...]) -> set[str]:
    """Return the methods of the first class that this version has; none when it has none of them."""
    found = _find_class(_jvm(spark), names)
    return set() if found is None else {method.getName() for method in found.getMethods()}


def _find_class(jvm: Any, names: tuple[str, ...]) -> Any:
    """Return the first class that this version has; None when it has none of them."""
    for name in names:
        with contextlib.suppress(Py4JError):
            return jvm.java.lang.Class.forName(name)
    return None


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm


def session_id(spark: SparkSession) -> str:
    """Return the id of the JVM session; several Python objects may stand for one."""
    return str(spark._jsparkSession.sessionUUID())


def is_stopped(spark: SparkSession) -> bool:
    """Whether the session's context is stopped, or its JVM gone."""
    context = spark.sparkContext._jsc
    try:
        return context is None or bool(context.sc().isStopped())
    except (Py4JError, OSError):
        return True  # the JVM does not answer


def slots(spark: SparkSession) -> int:
    """Return how many tasks the present executors can run at the same time; 0 without a context."""
    try:
        context = spark.sparkContext._jsc.sc()
        profile = context.resourceProfileManager().defaultResourceProfile()
        return int(context.maxNumConcurrentTasks(profile))
    except (Py4JError, OSError, AttributeError):
        return 0  # stopped, or just being stopped


def cancel_jobs(spark: SparkSession, group: str) -> None:
    """Cancel the jobs that a group has now; does nothing in a session that is stopped or stopping."""
    with contextlib.suppress(Py4JError, OSError, AttributeError):
        spark.sparkContext.cancelJobGroup(group)


def drop_interrupted_call(spark: SparkSession) -> None:
    """Close this thread's connection to the JVM if a call on it was interrupted; the next call opens another.

    A signal handler that raises SystemExit inside `awaitTermination` leaves the connection in that state:
    any further call, of ours or of the application, would wait for the answer to the interrupted one
    first. After KeyboardInterrupt py4j itself does the same.
    """
    gateway = spark.sparkContext._gateway
    assert isinstance(gateway, ClientServer)
    client = gateway._gateway_client
    connection = client.get_thread_connection()
    given_back = connection is None or connection in client.deque
    if not given_back and connection.initiated_from_client:  # else it serves a call from Java
        connection.close()


def worker_python(spark: SparkSession) -> str:
    """Return the interpreter that Spark starts for its Python workers."""
    return str(spark.sparkContext.pythonExec)


def started_query(query: StreamingQuery, format_name: str) -> StartedQuery | None:
    """Copy what the sink needs to know of a query; None when it writes to another format.

    Reliable only inside `onQueryStarted`: in another thread the plan may not be there yet.

    :raises OptionError: it does not run in plain micro-batches, see `refuse_mode`.
    """
    execution = query._jsq.streamingQuery()
    sink = execution.sink()
    if sink.getClass().getName() != _PYTHON_TABLE or sink.name().lower() != format_name.lower():
        return None
    trigger = execution.trigger().getClass().getSimpleName()
    refuse_mode(str(query.id), execution.getClass().getName(), trigger)
    jvm: Any = SparkContext._jvm
    given = execution.logicalPlan().writeOptions()
    entries = given.toSeq()
    options = {entries.apply(i)._1(): entries.apply(i)._2() for i in range(entries.length())}
    given_as = [name for name in options if name.lower() == "checkpointlocation"]
    for name in given_as:
        del options[name]
    options["checkpointLocation"] = str(execution.resolvedCheckpointRoot())
    folder = jvm.java.lang.System.getProperty("user.dir")
    found = execution.sources()  # known as soon as the plan is
    sources = [found.apply(i) for i in range(found.length())]
    return StartedQuery(
        str(query.id),
        options,
        str(folder),
        tuple(Source(s.getClass().getSimpleName(), str(s.toString())) for s in sources),
    )


def stop(query: StreamingQuery) -> None:
    """Stop a query, also inside `onQueryStarted`: there it never begins, and writes no offsets.

    `query.stop()` inside `onQueryStarted` would wait for the thread that waits for it. In another thread it
    would interrupt the delivery of the event, and Spark then removes the listener (4.3.0). So a query that
    has not begun is only marked as stopped, as `stop()` does first; its thread sees the mark, and ends.
    """
    jvm: Any = SparkContext._jvm
    initializing, terminated = (
        _find_class(jvm, names).getField("MODULE$").get(None)
        for names in (_INITIALIZING, _TERMINATED)
    )
    marked = query._jsq.streamingQuery().state().compareAndSet(initializing, terminated)
    if not marked and is_active(query):
        query.stop()


def last_commit(query: StreamingQuery) -> int | None:
    """Return the last epoch that a run has checkpointed, or had found checkpointed; None: Spark tells none.

    Spark keeps the progress of the last trigger; in an idle query it is about the epoch that comes next.
    """
    try:
        progress = query._jsq.lastProgress()
        if progress is None:
            return None
        wrote = progress.durationMs().containsKey("commitOffsets")
        return int(progress.batchId()) - (0 if wrote else 1)
    except (Py4JError, OSError):
        return None


def has_ended(query: StreamingQuery) -> bool:
    """Whether a run can write nothing any more: its thread has ended, or the JVM does not answer."""
    try:
        return not query._jsq.streamingQuery().queryExecutionThread().isAlive()
    except (Py4JError, OSError):
        return True


def running_queries(spark: SparkSession) -> list[StreamingQuery]:
    """Return the session's active queries; none when the session is stopped or its JVM is gone."""
    if is_stopped(spark):
        return []
    try:
        return list(spark.streams.active)
    except (Py4JError, OSError):
        return []


def is_active(query: StreamingQuery) -> bool | None:
    """Whether a query was neither told to stop nor has failed; None when the JVM no longer answers."""
    try:
        return bool(query.isActive)
    except (Py4JError, OSError):
        return None


class CheckpointListener(StreamingQueryListener):
    """Hears of each epoch only that it is checkpointed, without Spark's figures on its progress."""

    def checkpointed(self, query_id: str, run_id: str, epoch: int) -> None:
        """Handle that a run has written `commits/<epoch>`."""
        raise NotImplementedError

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Handle the copy that pyspark has made of an event."""
        progress = event.progress
        self.checkpointed(str(progress.id), str(progress.runId), progress.batchId)


def add_listener(spark: SparkSession, listener: CheckpointListener) -> None:
    """Add a listener to a session, without pyspark's copying of each epoch's progress.

    To copy an event pyspark asks the JVM for every field, durations and metrics of all sources included:
    some hundred calls, 0.1 s of CPU on both sides for each micro-batch, while the next one runs. Where
    pyspark lacks what this relies on, it copies as it always does.
    """
    with contextlib.suppress(AttributeError, TypeError, Py4JError):
        events: Any = pyspark_listener.JStreamingQueryListener(listener)
        events.onQueryProgress = partial(_pass_on, listener)
        jvm = _jvm(spark)
        jvm.java.lang.Class.forName(_LISTENER_WRAPPER)  # else py4j takes the name for a package
        listener._jlistenerobj = reduce(getattr, _LISTENER_WRAPPER.split("."), jvm)(events)
    spark.streams.addListener(listener)


def _pass_on(listener: CheckpointListener, event: Any) -> None:
    """Ask Java's `QueryProgressEvent` for three fields."""
    progress = event.progress()
    listener.checkpointed(progress.id().toString(), progress.runId().toString(), progress.batchId())


def remove_listener(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Remove a listener; does nothing where the session is stopped, or its JVM gone."""
    if not is_stopped(spark):
        with contextlib.suppress(Py4JError, OSError):
            spark.streams.removeListener(listener)


def current_task() -> Task:
    """Return the query, run, epoch and partition that the current task works for, as Spark tells it."""
    context = TaskContext.get()
    assert context is not None
    query_id = context.getLocalProperty("sql.streaming.queryId")
    run_id = context.getLocalProperty("spark.jobGroup.id")
    epoch = context.getLocalProperty("streaming.sql.batchId")
    if query_id is None or run_id is None or epoch is None:
        raise UnsupportedSpark(
            f"Spark {spark_version} does not tell a task its query id, run id and batch id",
            f"Use a tested version of pyspark: {', '.join(TESTED)}.",
        )
    return Task(
        query_id=query_id,
        run_id=run_id,
        epoch=int(epoch),
        partition=context.partitionId(),
        attempt=context.attemptNumber(),
    )


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which tasks get rows of `schema`, timestamps in UTC."""
    known = signature(to_arrow_schema).parameters
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {"timestamp_utc": True}
    return to_arrow_schema(schema, **in_utc)  # the second form is pyspark 4.1's
