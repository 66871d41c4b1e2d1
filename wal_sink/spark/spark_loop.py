"""Puts together what flushes one query of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from wal_sink.checkpoint.commit_watcher import Glimpse
from wal_sink.clock import now_us
from wal_sink.configuration import Configuration
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop, Reporter
from wal_sink.observer import Meter
from wal_sink.spark.flush_job import SparkFlush
from wal_sink.wal.log import Log


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
