"""Puts together what flushes one query of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from wal_sink.clock import now_us
from wal_sink.configuration import Configuration
from wal_sink.flush_loop import FlushLoop, Reporter
from wal_sink.flusher import Flusher
from wal_sink.glimpse import Glimpse
from wal_sink.log import Log
from wal_sink.meter import Meter
from wal_sink.spark_flush import SparkFlush


def flush_loop(
    spark: SparkSession,
    query_id: str,
    log: Log,
    configuration: Configuration,
    meter: Meter | None = None,
) -> FlushLoop:
    """Make the thread that flushes a query; it is not started.

    :param meter: counts; None: nobody does.
    """
    configuration.target.load()

    reporter = Reporter(log, now_us, meter=meter)
    reporter.forget_error()  # of an earlier process; this one has not tried yet
    checkpoint = configuration.location.open_checkpoint()
    sink = configuration.sink
    flusher = Flusher(
        log,
        checkpoint,
        configuration.target,
        query_id=query_id,
        clock_us=now_us,
        say=reporter.say,
        write_rows=SparkFlush(spark, sink.distributed_above_bytes, sink.max_rows_per_second),
        meter=meter,
        trim_delay_s=sink.trim_delay,
    )
    return FlushLoop(flusher, reporter, query_id, Glimpse(checkpoint.url))
