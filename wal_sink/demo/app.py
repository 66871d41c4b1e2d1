"""Runs the application that the demo kills: `python -m wal_sink.demo.app FOLDER ADDRESSES`.

It has three queries in one session, so that each SIGKILL hits all of them. `wal_sink.testing.crash`
says where they stand still to be killed; without its variable in the environment they run to their end.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from wal_sink.demo.control import write_batch
from wal_sink.demo.databases import Clients
from wal_sink.demo.queries import QUERIES, Query
from wal_sink.testing import flights
from wal_sink.testing.crash import PausingDataSource
from wal_sink.testing.local_spark import local_session


def main(folder: Path, clients: Clients) -> None:
    """Run the queries until their sources are read and everything is flushed."""
    slots = len(QUERIES) + 1  # a task that stands still keeps its slot
    spark = local_session(
        **{"spark.master": f"local[{slots}]", "spark.sql.session.timeZone": "UTC"}
    )
    with wal_sink.register(spark, drain_timeout=300):
        spark.dataSource.register(PausingDataSource)
        for query in [start(spark, query, folder, clients) for query in QUERIES]:
            query.awaitTermination()


def start(spark: SparkSession, query: Query, folder: Path, clients: Clients) -> StreamingQuery:
    """Start one of the queries."""
    source = spark.readStream.schema(flights.SCHEMA).option("maxFilesPerTrigger", 1)
    rows = source.parquet(str(folder / query.source)).selectExpr(*query.select)
    if query.sink == "wal_sink":
        writer = rows.writeStream.format("wal_sink").options(**clients.options(query.table))
    else:
        write = partial(write_batch, table=query.table, client=clients.first)
        writer = rows.writeStream.foreachBatch(write)
    return (
        writer.option("checkpointLocation", str(folder / query.checkpoint))
        .trigger(availableNow=True)
        .start()
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Clients(sys.argv[2]))
