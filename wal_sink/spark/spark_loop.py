"""Puts together what flushes one query of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from wal_sink.configuration import Configuration
from wal_sink.flush.flusher import Flusher, Pipeline
from wal_sink.flush.loop import FlushLoop
from wal_sink.flush.reporter import Reporter
from wal_sink.observer import Observer
from wal_sink.spark.flush_job import WriteByJob
from wal_sink.wal.log import Log


def flush_loop(
    spark: SparkSession,
    query_id: str,
    log: Log,
    configuration: Configuration,
    observer: Observer | None = None,
) -> FlushLoop:
    """Make the thread that flushes a query; it is not started.

    :param observer: counts; None: nobody does.
    """
    reporter = Reporter(log, observer=observer)
    reporter.forget_error()  # of an earlier process; this one has not tried yet
    checkpoint = configuration.location.open_checkpoint()
    sink = configuration.sink
    pipeline = Pipeline(query_id, log, checkpoint, configuration.target, sink.trim_delay)
    write_rows = WriteByJob(spark, sink.distributed_above_bytes, sink.max_rows_per_second)
    return FlushLoop(Flusher(pipeline, reporter, write_rows=write_rows))
