"""Runs the application that the demo kills: `python -m wal_sink.demo.app FOLDER ADDRESSES [REMOTE]`.

It has three queries in one session, so that each SIGKILL hits all of them. `wal_sink.demo.crash`
says where they pause to be killed; without its variable in the environment they run to their end.
With REMOTE, the URL of a Spark Connect server, it is a client, which flushes what the server computes.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import tenacity
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from wal_sink.demo import flights
from wal_sink.demo.crash import PausingConnectDataSource, PausingDataSource
from wal_sink.demo.local_spark import local_session
from wal_sink.demo.queries import QUERIES, Query
from wal_sink.demo.stores import Store, Stores
from wal_sink.testing.pauses import pause_at


def main(folder: Path, stores: Stores, remote: str = "") -> None:
    """Run the queries until their sources are read and everything is flushed.

    :param remote: URL of the Connect server; empty for a classic session.
    """
    slots = len(QUERIES) + 1  # a task that pauses keeps its slot
    spark = (
        SparkSession.builder.remote(remote).getOrCreate()
        if remote
        else local_session(
            **{"spark.master": f"local[{slots}]", "spark.sql.session.timeZone": "UTC"}
        )
    )
    with wal_sink.register(spark, drain_timeout=300) as sink:
        spark.dataSource.register(PausingConnectDataSource if remote else PausingDataSource)
        for query in QUERIES:
            if remote and query.sink == "wal_sink":
                options = stores.options(query.table)
                sink.follow(str(folder / query.checkpoint), options=options)
        # The control first, while the processors are idle: see `start`.
        for started in [start(spark, query, folder, stores) for query in reversed(QUERIES)]:
            started.awaitTermination()


def start(spark: SparkSession, query: Query, folder: Path, stores: Stores) -> StreamingQuery:
    """Start one of the queries; it ends when its source is read."""
    starting = writer(spark, query, folder, stores).trigger(availableNow=True)
    return tenacity.Retrying(
        # A Connect server gives the Python process of foreachBatch ten seconds to come up.
        retry=tenacity.retry_if_exception_message(
            match=r"(?s).*Python worker failed to connect back"
        ),
        stop=tenacity.stop_after_attempt(6),
        reraise=True,
    )(starting.start)


def writer(spark: SparkSession, query: Query, folder: Path, stores: Stores) -> DataStreamWriter:
    """Return what starts one of the queries, without a trigger."""
    source = spark.readStream.schema(flights.SCHEMA).option("maxFilesPerTrigger", 1)
    rows = source.parquet(str(folder / query.source)).selectExpr(*query.select)
    rows = stores.first.written(rows)
    if query.sink == "wal_sink":
        to = rows.writeStream.format("wal_sink").options(**stores.options(query.table))
    else:
        write = partial(write_batch, table=query.table, store=stores.first)
        to = rows.writeStream.foreachBatch(write)
    return to.option("checkpointLocation", str(folder / query.checkpoint))


def write_batch(batch: DataFrame, epoch: int, *, table: str, store: Store) -> None:
    """Write a micro-batch when it is computed; Spark writes `commits/<epoch>` after that: the control."""
    store.write(batch, table, partial(pause_at, "write", table, epoch))
    pause_at("commit returned", table, epoch)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Stores.at(sys.argv[2]), *sys.argv[3:])
