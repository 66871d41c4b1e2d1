"""An application that ends in the way that a test asks for: `python -m tests.spark.ending CONFIG.json`.

It streams the source until the epochs of the marker are checkpointed, writes the marker, and ends. The
target can be closed: as long as the file `barrier` is there, no session connects to it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.app import writer
from tests.spark.remains import remains
from tests.support.waiting import until
from wal_sink.demo.local_spark import local_session
from wal_sink.errors import TargetUnavailable
from wal_sink.spark.queries import Queries
from wal_sink.targets.base import IdempotentSession
from wal_sink.targets.cassandra import CassandraTarget

BARRIER = "WAL_SINK_TEST_BARRIER"
"""Environment variable: path of the file that keeps the target closed."""
CLOSED_TARGET = "tests.spark.ending:ClosedTarget"


def main(config: dict[str, Any]) -> None:
    """Run the application that the configuration names."""
    try:
        APPLICATIONS[config["ending"]](config)
    finally:
        remaining = sorted(remains(config["port"]))
        Path(config["report"]).write_text(json.dumps(remaining))


def block(config: dict[str, Any]) -> None:
    """Wait for the end of the query in the block; with `exit_on_term` SIGTERM raises SystemExit."""
    if config.get("exit_on_term"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    spark = local_session()
    try:
        with wal_sink.register(spark) as sink:
            reach(config, sink, start(spark, config)).awaitTermination()
    finally:
        if config.get("exit_on_term"):
            spark.stop()


def exits(config: dict[str, Any]) -> None:
    """Exit without `with` while the query runs."""
    spark = local_session()
    reach(config, wal_sink.register(spark), start(spark, config))
    sys.exit(7)


def ends(config: dict[str, Any]) -> None:
    """Come to the end of the script without `with` when the query has ended."""
    spark = local_session()
    sink = wal_sink.register(spark)
    query = start(spark, config, available_now=True)
    query.awaitTermination()
    reach(config, sink, query)


def notebook(config: dict[str, Any]) -> None:
    """Run a cell, stop Spark without closing, run it again in a new session; open the target, close."""
    spark = local_session()
    sink = wal_sink.register(spark)
    reach(config, sink, start(spark, config))
    assert isinstance(sink.queries, Queries)
    spark.streams.removeListener(sink.queries)  # its last events are lost
    spark.stop()
    spark = local_session()
    sink = wal_sink.register(spark)
    reach(config, sink, start(spark, config))
    Path(config["barrier"]).unlink()
    sink.close()
    until(lambda: not flushers())  # that of the first handle ends, too
    spark.stop()


def flushers() -> list[str]:
    """Return the names of the threads that flush."""
    return [t.name for t in threading.enumerate() if t.name.startswith("wal_sink-flush")]


APPLICATIONS = {
    "block": block,
    "exits": exits,
    "ends": ends,
    "notebook": notebook,
}


def start(
    spark: SparkSession, config: dict[str, Any], *, available_now: bool = False
) -> StreamingQuery:
    """Start the query; it goes on until it is stopped, or to the end of its source."""
    barrier = writer(spark, config, target=CLOSED_TARGET)
    return (barrier.trigger(availableNow=True) if available_now else barrier).start()


def reach(config: dict[str, Any], sink: wal_sink.Sink, query: StreamingQuery) -> StreamingQuery:
    """Wait until the epoch is checkpointed; write the marker."""
    while sink.status(query).checkpointed < config["epoch"]:
        assert query.isActive, query.exception()
        time.sleep(0.05)
    Path(config["marker"]).write_text("here")
    return query


class ClosedTarget(CassandraTarget):
    """The target, out of reach while the file is there."""

    def connect(self, query_id: str) -> IdempotentSession:
        if Path(os.environ[BARRIER]).exists():
            raise TargetUnavailable("The target is closed", "Delete the file.")
        return super().connect(query_id)


if __name__ == "__main__":
    own = json.loads(Path(sys.argv[1]).read_text())
    os.environ[BARRIER] = own["barrier"]
    main(own)
