"""Undocumented names of Spark Connect: what a client sends, and the accumulators of a Python worker.

No JVM is reached from here: a Connect client may have none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark import accumulators
from pyspark.sql import SparkSession


class StreamStart(NamedTuple):
    """What a client asks the server to start, as its message says."""

    name: str
    """Of the query; empty for none."""
    format: str
    options: Mapping[str, str]
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]
    path: str
    """Of `start(path)`; empty for none."""
    table: str
    """Of `toTable`; empty for none."""
    output_mode: str
    """Append, update or complete; empty for Spark's default, which is append."""
    trigger: str
    """Name of the message's field; empty for Spark's default."""


def is_connect(spark: object) -> bool:
    """Return True if a session is a Connect client's."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_query(value: object) -> bool:
    """Return True for a query of a Connect client."""
    return type(value).__module__ == "pyspark.sql.connect.streaming.query"


def session_id(spark: SparkSession) -> str:
    """Return the id under which the server knows a client's session."""
    session: Any = spark
    return str(session.session_id)


def is_stopped(spark: SparkSession) -> bool:
    """Return True if a client has stopped its session."""
    session: Any = spark
    return bool(session.is_stopped)


def watch_starts(
    spark: SparkSession,
    check: Callable[[StreamStart], None],
    started: Callable[[StreamStart, str], None],
) -> Callable[[], None]:
    """Show each query that a session starts from now on, before it is sent and after; return what ends that.

    :param check: may raise, and then nothing is sent.
    :param started: gets the query's id.
    """
    session: Any = spark
    client = session.client
    execute = client.execute_command

    def execute_command(command: Any, *args: Any, **kwargs: Any) -> Any:
        start = _stream_start(command)
        if start is None:
            return execute(command, *args, **kwargs)
        check(start)
        answer = execute(command, *args, **kwargs)
        started(start, answer[1]["write_stream_operation_start_result"].query_id.id)
        return answer

    client.execute_command = execute_command

    def end() -> None:
        if client.__dict__.get("execute_command") is execute_command:
            del client.execute_command

    return end


def _stream_start(command: Any) -> StreamStart | None:
    """Return what a command starts; None for another command."""
    if not command.HasField("write_stream_operation_start"):
        return None
    start = command.write_stream_operation_start
    if start.HasField("foreach_batch") or start.HasField("foreach_writer"):
        return None
    return StreamStart(
        name=start.query_name,
        format=start.format,
        options=dict(start.options),
        partition_by=tuple(start.partitioning_column_names),
        cluster_by=tuple(start.clustering_column_names),
        path=start.path,
        table=start.table_name,
        output_mode=start.output_mode.lower(),
        trigger=start.WhichOneof("trigger") or "",
    )


def drop_empty_accumulators() -> None:
    """Let a Python worker send no accumulator in which there is nothing.

    Each worker sends two, for a profiler, and the server passes them on to the client. The client of a
    pipeline takes them for an unknown answer: `spark-pipelines run` ends with an error after a run that
    completed (4.3.0). A worker that is profiled keeps them.
    """
    if sys.getprofile() is not None or sys.gettrace() is not None:
        return
    registry = accumulators._accumulatorRegistry
    for key in [key for key, one in registry.items() if key < 0 and not one._value]:
        del registry[key]
