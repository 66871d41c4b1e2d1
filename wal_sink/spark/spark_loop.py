"""Puts together what flushes one query of a session."""

from __future__ import annotations

from pyspark.sql import SparkSession

from wal_sink.checkpoint.commit_watcher import CommitWatcher
from wal_sink.clock import now_us
from wal_sink.configuration import Configuration
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.loop import FlushLoop, Reporter
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
    configuration.target.load()

    reporter = Reporter(log, now_us, observer=observer)
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
        write_rows=WriteByJob(spark, sink.distributed_above_bytes, sink.max_rows_per_second),
        observer=observer,
        trim_delay_s=sink.trim_delay,
    )
    return FlushLoop(flusher, reporter, query_id, CommitWatcher(checkpoint.url))
