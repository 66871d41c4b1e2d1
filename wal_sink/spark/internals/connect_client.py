"""Reads and watches a Spark Connect client, which sends commands to its server, by undocumented names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pyspark.sql import SparkSession


class StreamStart(NamedTuple):
    """The settings of a query that a client sends to the server. A text that is not set is empty."""

    name: str
    """The query's name."""
    format: str
    options: Mapping[str, str]
    partition_by: tuple[str, ...]
    cluster_by: tuple[str, ...]
    path: str
    """The argument of `start`."""
    table: str
    """The argument of `toTable`."""
    output_mode: str
    """Append, update or complete, in lower case. The default is append."""
    trigger: str
    """Name of the message's field that has the trigger."""


def is_connect(spark: object) -> bool:
    """Return True if a session belongs to a Connect client."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def is_query(value: object) -> bool:
    """Return True if a value is a query of a Connect client."""
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
    """Call `check` before a session sends a query, and `started` after that.

    :param check: raises an error to refuse the query, which is then not sent.
    :param started: gets the settings and the id of the query.
    :return: a function that ends the calls of `check` and `started`.
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
    """Return the query that a command starts; None for another command, or for `foreachBatch`."""
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
