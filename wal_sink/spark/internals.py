"""Wraps every undocumented name of Spark that the sink uses; no other module uses one.

`check_session` is the canary: it tries each of them before the first query, so that `register` refuses a
Spark that has changed, and no query fails for it later. Tested with the versions in `TESTED`.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial, reduce
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import RDD, SparkContext, TaskContext
from pyspark import __version__ as spark_version
from pyspark.errors import PySparkTypeError
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming import listener as pyspark_listener
from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from wal_sink.errors import OptionError, SchemaMismatch, UnsupportedSpark
from wal_sink.model.manifest import Execution, Task
from wal_sink.spark.modes import of_spark_alone, refuse_mode

TESTED = ("4.1.4", "4.3.0")

STREAM_EXECUTION = (  # moved between minor versions
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution",
    "org.apache.spark.sql.execution.streaming.StreamExecution",
)
STREAM_EXECUTION_METHODS = {
    *("resolvedCheckpointRoot", "sink", "logicalPlan", "sources", "state", "trigger"),
    *("lastProgress", "queryExecutionThread", "outputMode"),
}
MICRO_BATCH_EXECUTION, INITIALIZING, TERMINATED = (
    tuple(name.replace("StreamExecution", beside) for name in STREAM_EXECUTION)
    for beside in ("MicroBatchExecution", "INITIALIZING$", "TERMINATED$")
)
LISTENER_WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"
DATASET = ("org.apache.spark.sql.classic.Dataset",)
PYTHON_TABLE = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
FOREACH_BATCH_SINK = "org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink"


def find_class(jvm: Any, names: tuple[str, ...]) -> Any:
    """Return the first class that this version has; None when it has none of them."""
    for name in names:
        with contextlib.suppress(Py4JError):
            return jvm.java.lang.Class.forName(name)
    return None


def java(spark: SparkSession) -> Any:
    """Return the entrance to the JVM's classes."""
    return spark.sparkContext._jvm


_SPARK_CONTEXT = "org.apache.spark.SparkContext"
_SPARK_CONTEXT_METHODS = {"maxNumConcurrentTasks", "resourceProfileManager"}
_METHOD = re.compile(r"[ .]([\w$]+)\(")
"""The name in what Java prints of a method: `public abstract boolean org.example.Some.isActive()`."""
_JAVA_CLIENT = {"deque", "get_thread_connection"}


def check_session(spark: SparkSession) -> None:
    """Refuse a session in which one of the names below is missing.

    :raises OptionError: it is no session.
    :raises UnsupportedSpark: naming what is missing and the tested versions.
    """
    given: object = spark
    if given is None or isinstance(given, type):
        raise OptionError(
            f"The session is {spark!r}, and no SparkSession.",
            "Pass what SparkSession.builder.getOrCreate() returns. SparkSession.getActiveSession() is None"
            " in a thread that has made no session.",
        )
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
    for classes, wanted in (
        (STREAM_EXECUTION, STREAM_EXECUTION_METHODS),
        ((_SPARK_CONTEXT,), _SPARK_CONTEXT_METHODS),
        (DATASET, {"mapInArrow"}),
    ):
        lacks = wanted - _methods(spark, classes)
        missing += [f"{classes[0].rpartition('.')[2]}.{name}" for name in sorted(lacks)]
    for either in (
        (PYTHON_TABLE,),
        (FOREACH_BATCH_SINK,),
        MICRO_BATCH_EXECUTION,
        INITIALIZING,
        TERMINATED,
    ):
        if find_class(java(spark), either) is None:
            missing.append(either[0])
    try:
        session_id(spark)
    except (Py4JError, AttributeError):
        missing.append("SparkSession.sessionUUID")
    return missing


def _methods(spark: SparkSession, classes: tuple[str, ...]) -> set[str]:
    """Return the methods of the first class that this version has; none when it has none of them.

    Scala lists them in one text: to ask for each name takes three calls, and a class has hundreds.
    """
    jvm = java(spark)
    found = find_class(jvm, classes)
    if found is None:
        return set()
    return set(_METHOD.findall(str(jvm.scala.runtime.ScalaRunTime.stringOf(found.getMethods()))))


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


def put_on_workers_path(spark: SparkSession, folder: Path) -> None:
    """Put a folder on the path of Python workers, before what the application has put there.

    It holds for functions and data sources that are sent to workers from now on. Spark starts a daemon for
    each environment, so what was sent before keeps its own.
    """
    environment = getattr(spark.sparkContext, "environment", None)
    if not isinstance(environment, dict):
        return  # another Spark, whose workers start as they do
    there = [each for each in environment.get("PYTHONPATH", "").split(os.pathsep) if each]
    if str(folder) not in there:
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *there])


def include_wheels(spark: SparkSession) -> None:
    """Put the wheels that `--py-files` ships on the path of Python workers.

    pyspark ships them to every worker, and puts only .zip, .egg and .jar on the path (4.3.0). It holds for
    what is sent to workers from now on.
    """
    includes = getattr(spark.sparkContext, "_python_includes", None)
    if not isinstance(includes, list):
        return  # another Spark: the first micro-batch says what its workers cannot import
    shipped = spark.sparkContext.getConf().get("spark.submit.pyFiles", "") or ""
    for name in (Path(each).name for each in shipped.split(",") if each.endswith(".whl")):
        if name not in includes:
            includes.append(name)


def shipped_archives(spark: SparkSession) -> list[str]:
    """Return what `--archives` names: URLs, each perhaps with `#folder`."""
    given = spark.sparkContext.getConf().get("spark.archives", "") or ""
    return [each.strip() for each in given.split(",") if each.strip()]


def worker_python(spark: SparkSession) -> str:
    """Return the interpreter that Spark starts for its Python workers."""
    return str(spark.sparkContext.pythonExec)


_QUERY, _RUN, _EPOCH = "sql.streaming.queryId", "spark.jobGroup.id", "streaming.sql.batchId"
"""Local properties of the thread that runs a query, and of its tasks."""


def current_task() -> Task:
    """Return the query, run, epoch and partition that the current task works for, as Spark tells it."""
    context = TaskContext.get()
    assert context is not None
    execution = _execution(context.getLocalProperty)
    if execution is None:
        raise UnsupportedSpark(
            f"Spark {spark_version} does not tell a task its query id, run id and batch id",
            f"Use a tested version of pyspark: {', '.join(TESTED)}.",
        )
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
        gateway = java(spark)
        # Else py4j takes the name for a package.
        gateway.java.lang.Class.forName(LISTENER_WRAPPER)
        listener._jlistenerobj = reduce(getattr, LISTENER_WRAPPER.split("."), gateway)(events)
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

    Reliable only inside `onQueryStarted`: in another thread the plan may not be there yet.

    :param options_at: the options of a `foreachBatch` query, which Spark does not have, by its checkpoint;
        None for one of another function.

    :raises OptionError: it does not run in plain micro-batches, see `refuse_mode`.
    """
    execution = query._jsq.streamingQuery()
    root, sink = str(execution.resolvedCheckpointRoot()), execution.sink()
    kind = sink.getClass().getName()
    given = options_at(root) if kind == FOREACH_BATCH_SINK else None
    is_format = kind == PYTHON_TABLE and sink.name().lower() == format_name.lower()
    if given is None and not is_format:
        return None
    trigger = execution.trigger().getClass().getSimpleName()
    # Before its options are read: the plan of a refused mode may have none.
    refuse_mode(str(query.id), execution.getClass().getName(), trigger)
    if given is None:
        table = _table(execution)  # in which as little is written as in a path
        given = {**({"path": table} if table else {}), **_write_options(execution)}
    options = {key: value for key, value in given.items() if key.lower() != "checkpointlocation"}
    options["checkpointLocation"] = root
    found = execution.sources()  # known as soon as the plan is
    sources = [found.apply(i) for i in range(found.length())]
    return StartedQuery(
        str(query.id),
        options,
        _folder(SparkContext._jvm),
        tuple(Source(s.getClass().getSimpleName(), str(s.toString())) for s in sources),
    )


def _table(execution: Any) -> str:
    """Return the table of Spark's catalog that `toTable` has named; empty for none.

    A Spark that says it otherwise names none: that costs a warning.
    """
    try:
        relation = execution.logicalPlan().relation()
        return str(relation.name()) if relation.catalog().isDefined() else ""
    except Py4JError:
        return ""


def _write_options(execution: Any) -> Mapping[str, str]:
    entries = execution.logicalPlan().writeOptions().toSeq()
    return {entries.apply(i)._1(): entries.apply(i)._2() for i in range(entries.length())}


def folder(spark: SparkSession) -> str:
    """Return the current folder of the JVM, against which Spark resolves relative locations."""
    return _folder(java(spark))


def _folder(java: Any) -> str:
    return str(java.java.lang.System.getProperty("user.dir"))


def active_query(spark: SparkSession, query_id: str) -> StreamingQuery | None:
    """Return a query that runs in a session; None when it has no such query."""
    try:
        return spark.streams.get(query_id)
    except (Py4JError, OSError):
        return None


def checkpoint_root(query: StreamingQuery) -> str:
    """Return where a query's checkpoint is, as Spark has resolved it."""
    return str(query._jsq.streamingQuery().resolvedCheckpointRoot())


def output_mode(query: StreamingQuery) -> str:
    """Return a query's output mode: append, update or complete."""
    return str(query._jsq.streamingQuery().outputMode().toString()).lower()


class OwnSession:
    """The configuration of the session that a query has for itself: its copy of the application's.

    :param conf: Java's.
    """

    def __init__(self, conf: Any) -> None:
        self._conf = conf

    def contains(self, key: str) -> bool:
        """Whether the application has set a key, in the session or before it was made; True if unknown."""
        try:
            return bool(self._conf.contains(key))
        except (Py4JError, OSError):
            return True

    def get(self, key: str) -> str:
        """Return a value, the default where none is set."""
        return str(self._conf.get(key))

    def set(self, key: str, value: object) -> bool:
        """Set a value for the micro-batches that are planned from now on; whether that could be done."""
        try:
            self._conf.set(key, str(value))
        except (Py4JError, OSError):
            return False
        return True


def own_session(query: StreamingQuery) -> OwnSession | None:
    """Return a query's own session; None for a Spark that does not tell which that is."""
    try:
        return OwnSession(query._jsq.streamingQuery().sparkSessionForStream().conf())
    except (Py4JError, OSError):
        return None


def stop(query: StreamingQuery) -> None:
    """Stop a query, also inside `onQueryStarted`: there it never begins, and writes no offsets.

    `query.stop()` inside `onQueryStarted` would wait for the thread that waits for it. In another thread it
    would interrupt the delivery of the event, and Spark then removes the listener (4.3.0). So a query that
    has not begun is only marked as stopped, as `stop()` does first; its thread sees the mark, and ends.
    """
    jvm: Any = SparkContext._jvm
    initializing, terminated = (
        find_class(jvm, classes).getField("MODULE$").get(None)
        for classes in (INITIALIZING, TERMINATED)
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


Answer = Callable[[Iterator[pa.RecordBatch]], bytes]
"""Makes one answer of the batches of a partition."""


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema in which tasks get rows of `schema`, timestamps in UTC.

    :raises SchemaMismatch: Spark hands a type to no task, or as bytes that only Spark reads.
    """
    known = signature(to_arrow_schema).parameters
    in_utc: dict[str, Any] = {"timezone": "UTC"} if "timezone" in known else {"timestamp_utc": True}
    fields = []
    for column in schema:
        try:
            (field,) = to_arrow_schema(
                StructType([column]), **in_utc
            )  # pyspark 4.1 has the second form
        except PySparkTypeError:
            field = None
        if field is None or of_spark_alone(field):
            raise SchemaMismatch(
                f"Column {column.name} is {column.dataType.simpleString()}, which Spark does not hand to"
                " Python as it is.",
                "Make a text of it in the query, a variant by F.to_json, others by .cast; or leave it out.",
            )
        fields.append(field)
    return pa.schema(fields)


def session_of(rows: DataFrame) -> OwnSession:
    """Return the configuration by which rows are planned: in `foreachBatch`, that of the query."""
    return OwnSession(rows._jdf.sparkSession().conf())


def expected_bytes(rows: DataFrame) -> int:
    """Return how many bytes rows have, as Spark expects: of files, those on the disk.

    Where Spark does not know, it is `spark.sql.defaultSizeInBytes`: by default, more than any rows have.
    """
    return int(str(rows._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


def answers_of(
    rows: DataFrame, answer: Answer, schema: pa.Schema, most_rows: int | None
) -> list[bytes]:
    """Run a Spark job in which each task makes an answer; return the answers in the partitions' order.

    :param schema: `arrow_schema` of the rows; where their bytes are bounded, times may come in another zone.
    :param most_rows: the only bound of a batch: then Spark neither plans nor compiles a query for the Python
        function, which takes it a second of CPU in a fresh session. None: its bytes are bounded as Spark is
        set (`mapInArrow`), as they are by a Spark that takes no such number.
    """
    encoded = None if most_rows is None else _encoded(rows, most_rows)
    if encoded is None:
        found = map_in_arrow(rows, partial(_in_batch, answer), "answer binary").collect()
        return [bytes(row.answer) for row in found]
    return encoded.mapPartitions(partial(_of_encoded, answer, schema)).collect()


def _encoded(rows: DataFrame, most_rows: int) -> RDD[bytes] | None:
    """Return the rows as Arrow's messages, without their schema, times in UTC; None where Spark cannot."""
    try:
        java = rows._jdf.toArrowBatchRdd(most_rows, "UTC", True, False).toJavaRDD()
    except Py4JJavaError:
        raise
    except Py4JError:
        return None
    return RDD(java, rows.sparkSession.sparkContext, NoOpSerializer())


def _in_batch(answer: Answer, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"answer": [answer(batches)]})


def _of_encoded(answer: Answer, schema: pa.Schema, encoded: Iterator[bytes]) -> Iterator[bytes]:
    yield answer(pa.ipc.read_record_batch(pa.py_buffer(each), schema) for each in encoded)


def map_in_arrow(
    rows: DataFrame,
    function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: str,
) -> DataFrame:
    """Return what a function makes of each partition's batches, as `rows.mapInArrow(function, schema)`.

    That one wants pandas installed on the driver, and does not use it (4.3.0).
    """
    udf = UserDefinedFunction(
        function, returnType=schema, evalType=PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    )
    quoted = [name.replace("`", "``") for name in rows.columns]
    column: Any = udf(*(rows[f"`{name}`"] for name in quoted))
    mapped = rows._jdf.mapInArrow(column._jc, False, None)
    return DataFrame(mapped, rows.sparkSession)
