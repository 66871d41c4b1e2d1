"""Asks a session what Spark does not document; refuses one that lacks a name which the sink uses."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from py4j.clientserver import ClientServer
from py4j.protocol import Py4JError
from pyspark import __version__ as spark_version
from pyspark.sql import SparkSession

from wal_sink.errors import OptionError, UnsupportedSpark
from wal_sink.spark.internals import names

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
            f"Use a tested version of pyspark: {', '.join(names.TESTED)}.",
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
        (names.STREAM_EXECUTION, names.STREAM_EXECUTION_METHODS),
        ((_SPARK_CONTEXT,), _SPARK_CONTEXT_METHODS),
        (names.DATASET, {"mapInArrow"}),
    ):
        lacks = wanted - _methods(spark, classes)
        missing += [f"{classes[0].rpartition('.')[2]}.{name}" for name in sorted(lacks)]
    for either in (
        (names.PYTHON_TABLE,),
        (names.FOREACH_BATCH_SINK,),
        names.MICRO_BATCH_EXECUTION,
        names.INITIALIZING,
        names.TERMINATED,
    ):
        if names.find_class(names.java(spark), either) is None:
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
    jvm = names.java(spark)
    found = names.find_class(jvm, classes)
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


def worker_python(spark: SparkSession) -> str:
    """Return the interpreter that Spark starts for its Python workers."""
    return str(spark.sparkContext.pythonExec)
