"""Runs the application that the demo kills: `python -m wal_sink.demo.app FOLDER ADDRESSES`.

It has three queries in one session, so that each SIGKILL hits all of them. `wal_sink.demo.crash`
says where they stand still to be killed; without its variable in the environment they run to their end.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from wal_sink.demo import flights
from wal_sink.demo.crash import PausingDataSource
from wal_sink.demo.local_spark import local_session
from wal_sink.demo.queries import QUERIES, Query
from wal_sink.demo.stores import Store, Stores
from wal_sink.testing.pauses import pause_at


def main(folder: Path, stores: Stores) -> None:
    """Run the queries until their sources are read and everything is flushed."""
    slots = len(QUERIES) + 1  # a task that stands still keeps its slot
    spark = local_session(
        **{"spark.master": f"local[{slots}]", "spark.sql.session.timeZone": "UTC"}
    )
    with wal_sink.register(spark, drain_timeout=300):
        spark.dataSource.register(PausingDataSource)
        for query in [start(spark, query, folder, stores) for query in QUERIES]:
            query.awaitTermination()


def start(spark: SparkSession, query: Query, folder: Path, stores: Stores) -> StreamingQuery:
    """Start one of the queries; it ends when its source is read."""
    return writer(spark, query, folder, stores).trigger(availableNow=True).start()


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
    main(Path(sys.argv[1]), Stores.at(sys.argv[2]))
