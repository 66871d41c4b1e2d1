"""`register`: one handle for each Spark session."""

from __future__ import annotations

import threading

from pyspark.sql import SparkSession

from wal_sink import spark_internals
from wal_sink.errors import OptionError
from wal_sink.handle import Sink

_sinks: dict[str, Sink] = {}
_sinks_lock = threading.RLock()


def register(spark: SparkSession, *, drain_timeout: float = 60) -> Sink:
    """Add format `wal_sink` to a session and flush its queries from this process.

    Call it before the first query starts. One handle for each session: a second call returns the same
    one. Use it as a context manager; leaving the block waits until everything checkpointed is in the
    target.

    :param drain_timeout: seconds that `close` waits at most, for all queries together.
    :raises UnsupportedSpark: the session lacks something that the sink relies on.
    :raises OptionError: the session is registered already with another `drain_timeout`.
    """
    if drain_timeout < 0:
        raise OptionError(f"drain_timeout is {drain_timeout}.", "Give seconds, 0 or more.")
    spark_internals.check_session(spark)
    with _sinks_lock:
        for key in [key for key, sink in _sinks.items() if sink.forgotten()]:
            del _sinks[key]
        key = spark_internals.session_id(spark)
        sink = _sinks.get(key)
        if sink is None:
            sink = _sinks[key] = Sink(spark, drain_timeout)
            for query in spark_internals.running_queries(spark):
                sink.adopt(query)
        elif sink.drain_timeout != drain_timeout:
            raise OptionError(
                f"This session is registered with drain_timeout={sink.drain_timeout}.",
                "Pass the same arguments, or close() the first handle before.",
            )
        return sink


def sink_of(query_id: str) -> Sink | None:
    """Return the handle of this process that has seen a query."""
    with _sinks_lock:
        return next((sink for sink in _sinks.values() if sink.knows(query_id)), None)
