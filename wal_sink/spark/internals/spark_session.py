"""Undocumented names of SparkSession and its JVM, and the check that a Spark has them all.

`check_session` is the canary: it tries each name of this package before the first query, so that `register`
refuses a Spark that has changed, and no query fails for it later. Tested with the versions in `TESTED`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from wal_sink.errors import OptionError, UnsupportedSpark

TESTED = ("4.1.4", "4.3.0")

STREAM_EXECUTION = (  # moved between minor versions
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution",
    "org.apache.spark.sql.execution.streaming.StreamExecution",
)
STREAM_EXECUTION_METHODS = {
    *("resolvedCheckpointRoot", "sink", "logicalPlan", "sources", "state", "trigger"),
    "outputMode",
}
MICRO_BATCH_EXECUTION, INITIALIZING, TERMINATED = (
    tuple(name.replace("StreamExecution", beside) for name in STREAM_EXECUTION)
    for beside in ("MicroBatchExecution", "INITIALIZING$", "TERMINATED$")
)
LISTENER_WRAPPER = "org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper"
DATASET = ("org.apache.spark.sql.classic.Dataset",)
PYTHON_TABLE = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
FOREACH_BATCH_SINK = "org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink"


P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


def without_jvm(value: V, *also: type[Exception]) -> Callable[[Callable[P, T]], Callable[P, T | V]]:
    """Decorate a call that returns `value` where the session is stopped, or its JVM does not answer.

    An interrupt goes on. Spark's handler of SIGINT calls the JVM on the connection that it interrupts; where
    that closes it, py4j, which cleans up after an interrupt, raises an OSError in its place (0.10.9.9).

    :param also: what a stopped context raises, whose Java object is gone.
    """

    def decorated(call: Callable[P, T]) -> Callable[P, T | V]:
        @functools.wraps(call)
        def answered(*args: P.args, **kwargs: P.kwargs) -> T | V:
            # The block ends by it, and is the context of each error below.
            handled = sys.exception()
            try:
                return call(*args, **kwargs)
            except (Py4JError, OSError, *also) as error:
                cause: BaseException | None = error
                while cause is not None and cause is not handled:
                    if isinstance(cause, KeyboardInterrupt):
                        raise KeyboardInterrupt from error
                    cause = cause.__context__
                return value

        return answered

    return decorated


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

    :raises OptionError: it is not a session.
    :raises UnsupportedSpark: naming what is missing and the tested versions.
    """
    session: object = spark
    if session is None or isinstance(session, type):
        raise OptionError(
            f"The session is {spark!r}, and not a SparkSession.",
            "Pass what SparkSession.builder.getOrCreate() returns. SparkSession.getActiveSession() is None"
            " in a thread that has made no session.",
        )
    if not hasattr(spark, "_jsparkSession"):
        raise UnsupportedSpark(
            "This is a Spark Connect session, in which only format wal_sink works: a function for"
            " foreachBatch would run away from the driver.",
            'Use df.writeStream.format("wal_sink") in output mode append; or run the query in a classic'
            " session, on the driver (for example with spark-submit).",
        )
    missing = list(_missing(spark))
    if missing:
        raise untested(f"lacks {', '.join(missing)}, which the sink relies on")


def untested(problem: str) -> UnsupportedSpark:
    """Return the error of a version of Spark that does not have what the sink needs."""
    return UnsupportedSpark(
        f"Spark {spark_version} {problem}.",
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
        (LISTENER_WRAPPER,),
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
    java_class = find_class(jvm, classes)
    if java_class is None:
        return set()
    return set(
        _METHOD.findall(str(jvm.scala.runtime.ScalaRunTime.stringOf(java_class.getMethods())))
    )


def session_id(spark: SparkSession) -> str:
    """Return the id of the JVM session; several Python objects may stand for one."""
    return str(spark._jsparkSession.sessionUUID())


@without_jvm(True)
def is_stopped(spark: SparkSession) -> bool:
    """Return True if the session's context is stopped, or its JVM gone."""
    context = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


@without_jvm(0, AttributeError)
def slots(spark: SparkSession) -> int:
    """Return how many tasks the present executors can run at the same time; 0 without a context."""
    context = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


@without_jvm(None, AttributeError)
def cancel_jobs(spark: SparkSession, group: str) -> None:
    """Cancel the jobs that a group has now; does nothing in a session that is stopped or stopping."""
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
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(folder) not in entries:
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *entries])


def worker_python(spark: SparkSession) -> str:
    """Return the interpreter that Spark starts for its Python workers."""
    return str(spark.sparkContext.pythonExec)


def folder(spark: SparkSession) -> str:
    """Return the current folder of the JVM, against which Spark resolves relative locations."""
    return folder_of(java(spark))


def folder_of(jvm: Any) -> str:
    """Return the current folder of a JVM."""
    return str(jvm.java.lang.System.getProperty("user.dir"))
