"""Runs the application of the failover's demo: `python -m wal_sink.demo.failover_app FOLDER ADDRESSES`.

Two queries in one session write the same flights, by the sink and by `foreachBatch`. The one with
`foreachBatch` fails while the database is away. It is started again, as a supervisor does.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from wal_sink.demo.app import writer
from wal_sink.demo.failover_queries import OVER, QUERIES
from wal_sink.demo.local_spark import local_session
from wal_sink.demo.queries import Query
from wal_sink.demo.stores import Stores

_CHECK_S = 0.5


def main(folder: Path, stores: Stores) -> None:
    """Run the queries until the file `OVER` is there, then flush everything."""
    slots = len(QUERIES) + 2
    spark = local_session(
        **{"spark.master": f"local[{slots}]", "spark.sql.session.timeZone": "UTC"}
    )
    with wal_sink.register(spark, drain_timeout=300):
        running = {query: start(spark, query, folder, stores) for query in QUERIES}
        while not (folder / OVER).exists():
            for query, run in running.items():
                if not run.isActive:
                    running[query] = start(spark, query, folder, stores)
            time.sleep(_CHECK_S)
        for run in running.values():
            run.stop()


def start(spark: SparkSession, query: Query, folder: Path, stores: Stores) -> StreamingQuery:
    """Start one of the queries; it goes on until it is stopped, or fails."""
    return writer(spark, query, folder, stores).trigger(processingTime="500 milliseconds").start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Stores.at(sys.argv[2]))
