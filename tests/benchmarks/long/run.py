"""The query of the long run, with a sample every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.benchmarks import small_epochs
from tests.benchmarks.contenders import ours
from tests.benchmarks.long import stream
from tests.benchmarks.long.sample import Latencies, Sample, Sampler
from tests.benchmarks.sizes import Long
from tests.benchmarks.table import Table


def run(
    spark: SparkSession,
    table: Table,
    checkpoint: Path,
    sizes: Long,
    server: int,
    say: Callable[[str], None],
) -> list[Sample]:
    """Stream until the number of epochs or the time limit is reached; return the samples.

    :param checkpoint: a folder that does not exist.
    :param server: the process id of the Cassandra node.
    """
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    jvm = gateway.proc.pid
    samples: list[Sample] = []
    writer = ours.writer(stream.rows(spark, sizes.rows), table)
    writer = writer.option("checkpointLocation", str(checkpoint))
    with wal_sink.register(spark, drain_timeout=ours.DRAIN_S) as sink:
        query = writer.start()  # without a trigger, a micro-batch begins when the previous one ends
        small_epochs.await_epoch(query, sizes.warm_up)
        log = checkpoint / "wal_sink" / str(query.id)
        latencies = Latencies(checkpoint, log)
        sampler = Sampler(jvm, server, log, latencies)
        deadline = time.monotonic() + 60 * sizes.minutes
        try:
            with latencies.watching():
                while not samples or samples[-1].epochs < sizes.epochs:
                    if time.monotonic() > deadline:
                        say(f"  {sizes.minutes:g} minutes are over")
                        break
                    time.sleep(sizes.sample_s)
                    _refuse_ended(query)
                    samples.append(sampler.sample(sink.status(query).flushed + 1))
                    if len(samples) % 12 == 0:
                        say(f"  {samples[-1].epochs:,} epochs after {samples[-1].seconds:,.0f} s")
        finally:
            query.stop()
    return samples


def _refuse_ended(query: StreamingQuery) -> None:
    if (error := query.exception()) is not None:
        raise error
    if not query.isActive:
        raise RuntimeError("the query has ended")
