"""Runs the application that the demo kills: `python -m wal_sink.demo.app APPLICATION`, as JSON.

It has two or three queries in one session, so that each SIGKILL hits all of them. `wal_sink.demo.crash`
says where they pause to be killed; without its variable in the environment they run to their end.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from pathlib import Path

import msgspec
import tenacity
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from wal_sink.demo import flights
from wal_sink.demo.crash import PausingConnectDataSource, PausingDataSource
from wal_sink.demo.local_spark import local_session
from wal_sink.demo.pauses import pause_at
from wal_sink.demo.queries import OF_FAILOVER, OVER, QUERIES, Query
from wal_sink.demo.stores import Store, Stores

_CHECK_S = 0.5


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """What it runs."""

    folder: str
    addresses: str
    """See `Stores`."""
    remote: str = ""
    """URL of a Spark Connect server, whose client it is then; empty: a session of its own."""
    failover: bool = False
    """True: it runs the queries of the failover until the file `OVER` is there. One that fails while the
    database is away is started again, as by a supervisor."""


def main(application: Application) -> None:
    """Run the queries until their sources are read, or their time is over, and everything is flushed."""
    folder, stores = Path(application.folder), Stores.at(application.addresses)
    queries, endless = (OF_FAILOVER, True) if application.failover else (QUERIES, False)
    slots = len(queries) + 1 + endless  # a task that pauses keeps its slot
    spark = (
        SparkSession.builder.remote(application.remote).getOrCreate()
        if application.remote
        else local_session(
            **{"spark.master": f"local[{slots}]", "spark.sql.session.timeZone": "UTC"}
        )
    )
    with wal_sink.register(spark, drain_timeout=300) as sink:
        pausing = PausingConnectDataSource if application.remote else PausingDataSource
        spark.dataSource.register(pausing)
        for query in queries:
            if application.remote and query.sink == "wal_sink":
                options = stores.options(query.table)
                sink.follow(str(folder / query.checkpoint), options=options)

        def begin(query: Query) -> StreamingQuery:
            return start(spark, query, folder, stores, endless=endless)

        # The control first, while the processors are idle: see `start`.
        running = {query: begin(query) for query in reversed(queries)}
        while endless and not (folder / OVER).exists():
            running |= {query: begin(query) for query, run in running.items() if not run.isActive}
            time.sleep(_CHECK_S)
        for run in running.values():
            if endless:
                run.stop()
            run.awaitTermination()


def start(
    spark: SparkSession, query: Query, folder: Path, stores: Stores, *, endless: bool = False
) -> StreamingQuery:
    """Start one of the queries.

    :param endless: False: it ends when its source is read.
    """
    source = spark.readStream.schema(flights.SCHEMA).option("maxFilesPerTrigger", 1)
    rows = source.parquet(str(folder / query.source)).selectExpr(*query.select)
    rows = stores.first.written(rows)
    if query.sink == "wal_sink":
        to = rows.writeStream.format("wal_sink").options(**stores.options(query.table))
    else:
        write = partial(write_batch, table=query.table, store=stores.first)
        to = rows.writeStream.foreachBatch(write)
    to = to.option("checkpointLocation", str(folder / query.checkpoint))
    to = to.trigger(processingTime="500 milliseconds") if endless else to.trigger(availableNow=True)
    return tenacity.Retrying(
        # A Connect server gives the Python process of foreachBatch ten seconds to come up.
        retry=tenacity.retry_if_exception_message(
            match=r"(?s).*Python worker failed to connect back"
        ),
        stop=tenacity.stop_after_attempt(6),
        reraise=True,
    )(to.start)


def write_batch(batch: DataFrame, epoch: int, *, table: str, store: Store) -> None:
    """Write a micro-batch when it is computed; Spark writes `commits/<epoch>` after that: the control."""
    store.write(batch, table, partial(pause_at, "write", table, epoch))
    pause_at("commit returned", table, epoch)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Application))
