"""Undocumented names of SparkSession and its JVM, and the check that a version of Spark has all of them.

`register` calls `check_session`. So a Spark that lacks a name is refused before a query starts.
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
from pyspark import SparkContext
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from wal_sink.errors import OptionError, UnsupportedSpark

TESTED = ("4.1.4", "4.3.0")
"""The versions with which the tests run."""

STREAM_EXECUTION = (  # minor versions of Spark have the class in different packages
    "org.apache.spark.sql.execution.streaming.runtime.StreamExecution",
    "org.apache.spark.sql.execution.streaming.StreamExecution",
)
MICRO_BATCH_EXECUTION, INITIALIZING, TERMINATED = (
    tuple(name.replace("StreamExecution", beside) for name in STREAM_EXECUTION)
    for beside in ("MicroBatchExecution", "INITIALIZING$", "TERMINATED$")
)
PYTHON_TABLE = "org.apache.spark.sql.execution.datasources.v2.python.PythonTable"
FOREACH_BATCH_SINK = "org.apache.spark.sql.execution.streaming.sources.ForeachBatchSink"

NEEDED: list[tuple[tuple[str, ...], set[str]]] = [
    (
        STREAM_EXECUTION,
        {
            *("resolvedCheckpointRoot", "sink", "logicalPlan", "sources", "state", "trigger"),
            "outputMode",
        },
    ),
    (("org.apache.spark.SparkContext",), {"maxNumConcurrentTasks", "resourceProfileManager"}),
    (("org.apache.spark.sql.classic.Dataset",), {"mapInArrow"}),
    (("org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper",), set()),
    ((PYTHON_TABLE,), set()),
    ((FOREACH_BATCH_SINK,), set()),
    (MICRO_BATCH_EXECUTION, set()),
    (INITIALIZING, set()),
    (TERMINATED, set()),
]
"""Classes of the JVM, each by its names in different versions, and the methods that the sink calls."""


P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")


def without_jvm(value: V, *also: type[Exception]) -> Callable[[Callable[P, T]], Callable[P, T | V]]:
    """Decorate a function to return `value` if the session is stopped, or its JVM does not answer.

    The decorated function raises KeyboardInterrupt even if py4j has replaced it by an OSError (0.10.9.9).
    The reason is Spark's handler of SIGINT, which uses the connection that the signal interrupts.

    :param also: further exceptions that a stopped context raises.
    """

    def decorated(call: Callable[P, T]) -> Callable[P, T | V]:
        @functools.wraps(call)
        def answered(*args: P.args, **kwargs: P.kwargs) -> T | V:
            # The caller may already handle an earlier interrupt, which did not interrupt this call.
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


def find_class(names: tuple[str, ...]) -> Any:
    """Return the first of the classes that this version of Spark has; None if it has none of them."""
    for name in names:
        with contextlib.suppress(Py4JError):
            return java().java.lang.Class.forName(name)
    return None


def java() -> Any:
    """Return the object by which Python reaches the JVM's classes. A process has one JVM."""
    return SparkContext._jvm


_METHOD = re.compile(r"[ .]([\w$]+)\(")
"""Matches the name of a method in Java's text: `public abstract boolean org.example.Some.isActive()`."""
_JAVA_CLIENT = {"deque", "get_thread_connection"}
"""The names of py4j's JavaClient that the sink uses."""


def check_session(spark: SparkSession) -> None:
    """Refuse a session without a name that this package uses.

    :raises OptionError: the argument is not a session.
    :raises UnsupportedSpark: a name is missing, or the session is a Spark Connect session.
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
            " foreachBatch would not run on the driver.",
            'Use df.writeStream.format("wal_sink") in output mode append; or run the query in a classic'
            " session, on the driver (for example with spark-submit).",
        )
    if missing := _missing(spark):
        raise untested(f"lacks {', '.join(missing)}, which the sink relies on")


def untested(problem: str) -> UnsupportedSpark:
    """Return the error for a version of Spark that lacks what the sink needs."""
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
    for classes, methods in NEEDED:
        java_class = find_class(classes)
        if java_class is None:
            missing.append(classes[0])
        elif methods:
            # One text has all methods. A call for each of some hundred methods would take long.
            text = str(java().scala.runtime.ScalaRunTime.stringOf(java_class.getMethods()))
            lacks = methods - set(_METHOD.findall(text))
            missing += [f"{classes[0].rpartition('.')[2]}.{name}" for name in sorted(lacks)]
    try:
        session_id(spark)
    except (Py4JError, AttributeError):
        missing.append("SparkSession.sessionUUID")
    return missing


def session_id(spark: SparkSession) -> str:
    """Return the id of the JVM session. Several Python objects may have one JVM session."""
    return str(spark._jsparkSession.sessionUUID())


@without_jvm(True)
def is_stopped(spark: SparkSession) -> bool:
    """Return True if the session's context is stopped, or its JVM gone."""
    context = spark.sparkContext._jsc
    return context is None or bool(context.sc().isStopped())


@without_jvm(0, AttributeError)
def slots(spark: SparkSession) -> int:
    """Return how many tasks the executors can run at the same time; 0 if the context is stopped."""
    context = spark.sparkContext._jsc.sc()
    profile = context.resourceProfileManager().defaultResourceProfile()
    return int(context.maxNumConcurrentTasks(profile))


@without_jvm(None, AttributeError)
def cancel_jobs(spark: SparkSession, group: str) -> None:
    """Cancel the running jobs of a group. Do nothing if the session is stopped or stopping."""
    spark.sparkContext.cancelJobGroup(group)


def drop_interrupted_call(spark: SparkSession) -> None:
    """Close this thread's connection to the JVM if a call on it was interrupted.

    If a signal handler raises SystemExit inside `awaitTermination`, every later call in this thread would
    first wait for the answer to the interrupted call. After this function the next call opens a new
    connection. After KeyboardInterrupt py4j itself closes the connection.
    """
    gateway = spark.sparkContext._gateway
    assert isinstance(gateway, ClientServer)
    client = gateway._gateway_client
    connection = client.get_thread_connection()
    given_back = connection is None or connection in client.deque
    # A connection that Java initiated is for calls from Java to Python.
    if not given_back and connection.initiated_from_client:
        connection.close()


def put_on_workers_path(spark: SparkSession, folder: Path) -> None:
    """Put a folder first on the path of the Python workers that start after this call."""
    environment = getattr(spark.sparkContext, "environment", None)
    if not isinstance(environment, dict):
        return  # a Spark with other names: its workers start a little slower
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if str(folder) not in entries:
        environment["PYTHONPATH"] = os.pathsep.join([str(folder), *entries])


def worker_python(spark: SparkSession) -> str:
    """Return the interpreter that Spark starts for its Python workers."""
    return str(spark.sparkContext.pythonExec)


def folder() -> str:
    """Return the current folder of the JVM; Spark resolves relative locations against it."""
    return str(java().java.lang.System.getProperty("user.dir"))
