"""The Spark application that the demo kills: `python -m wal_sink.demo.app APPLICATION`.

It runs two or three queries in one session, so that each SIGKILL hits all queries. The queries pause at the
points that an environment variable names (see `wal_sink.demo.pauses`), to be killed there. Without points
they run to the end of their sources.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import tenacity
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from wal_sink.demo.flights import FLIGHTS_SCHEMA
from wal_sink.demo.local_spark import Driver, local_session
from wal_sink.demo.pauses import (
    PAUSES,
    Pause,
    PausingConnectDataSource,
    PausingDataSource,
    pause_at,
    pauses,
)
from wal_sink.demo.queries import FAILOVER_QUERIES, QUERIES, Query
from wal_sink.demo.stores import Store, Stores

STOP_FILE = "stop"
"""Name of a file in the folder of the demo. The queries of the failover end when the file exists."""

_CHECK_S = 0.5


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """The argument of the application, as JSON."""

    folder: str
    addresses: str
    """The value of `Stores.addresses`."""
    remote: str = ""
    """URL of a Spark Connect server; empty for a session in this process."""
    failover: bool = False
    """True to run the queries of the failover until the file `STOP_FILE` exists. The application restarts a
    query that fails while the database is down, as a supervisor does."""


def start_driver(application: Application, name: str, points: Sequence[Pause] = ()) -> Driver:
    """Start the process of the application.

    :param name: name of the file with its output, without `.log`.
    :param points: the points at which the application pauses to be killed.
    """
    folder = Path(application.folder)
    return Driver(
        ["-m", "wal_sink.demo.app", msgspec.json.encode(application).decode()],
        folder / f"{name}.log",
        {"TZ": "UTC", PAUSES: pauses(*points)},
        folder,
        patience_s=900,  # for a busy machine
    )


def main(application: Application) -> None:
    """Run the queries to the end of their sources, or to the stop file, and flush everything."""
    folder, stores = Path(application.folder), Stores.at(application.addresses)
    queries, endless = (FAILOVER_QUERIES, True) if application.failover else (QUERIES, False)
    slots = len(queries) + 1 + endless  # a paused task occupies a slot
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

        # The control starts first, since the start of its Python process has a timeout: see `start`.
        running = {query: begin(query) for query in reversed(queries)}
        while endless and not (folder / STOP_FILE).exists():
            running |= {query: begin(query) for query, run in running.items() if not run.isActive}
            time.sleep(_CHECK_S)
        for run in running.values():
            if endless:
                run.stop()
            run.awaitTermination()


def start(
    spark: SparkSession, query: Query, folder: Path, stores: Stores, *, endless: bool = False
) -> StreamingQuery:
    """Start a query.

    :param endless: True to wait for more files after the last file.
    """
    source = spark.readStream.schema(FLIGHTS_SCHEMA).option("maxFilesPerTrigger", 1)
    rows = source.parquet(str(folder / query.source)).selectExpr(*query.select)
    rows = stores.first.converted(rows)
    if query.sink == "wal_sink":
        writer = rows.writeStream.format("wal_sink").options(**stores.options(query.table))
    else:
        write = partial(write_batch, table=query.table, store=stores.first)
        writer = rows.writeStream.foreachBatch(write)
    trigger: dict[str, Any] = {"availableNow": True}
    if endless:
        trigger = {"processingTime": "500 milliseconds"}
    writer = writer.option("checkpointLocation", str(folder / query.checkpoint)).trigger(**trigger)
    return tenacity.Retrying(
        # In a Connect server the Python process of foreachBatch has ten seconds to start.
        retry=tenacity.retry_if_exception_message(
            match=r"(?s).*Python worker failed to connect back"
        ),
        stop=tenacity.stop_after_attempt(6),
        reraise=True,
    )(writer.start)


def write_batch(batch: DataFrame, epoch: int, *, table: str, store: Store) -> None:
    """Write a micro-batch of the control to the store. Spark then writes `commits/<epoch>`."""
    pause_at("write", table, epoch)
    store.write(batch, table)
    pause_at("commit returned", table, epoch)


if __name__ == "__main__":
    main(msgspec.json.decode(sys.argv[1], type=Application))
