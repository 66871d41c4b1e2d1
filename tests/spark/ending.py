"""An application that ends in the way that a test chooses: `python -m tests.spark.ending CONFIG.json`.

It streams the source until the last epoch is checkpointed, writes the marker, and ends. While the file
`barrier` exists, no session connects to the target.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
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
from wal_sink.spark.classic_queries import Queries
from wal_sink.targets.base import IdempotentSession
from wal_sink.targets.cassandra import CassandraTarget

BARRIER = "WAL_SINK_TEST_BARRIER"
"""Environment variable: path of the file `barrier`."""
CLOSED_TARGET = "tests.spark.ending:ClosedTarget"


def main(config: dict[str, Any]) -> None:
    """Run the ending that the configuration names; report the threads and connections that are left."""
    try:
        ENDINGS[config["ending"]](config)
    finally:
        Path(config["report"]).write_text(json.dumps(sorted(remains(config["port"]))))


def block(config: dict[str, Any]) -> None:
    """Wait for the query in a block."""
    with wal_sink.register(local_session()) as sink:
        reach(config, sink).awaitTermination()


def block_exits_on_sigterm(config: dict[str, Any]) -> None:
    """Wait for the query in a block; SIGTERM raises SystemExit."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    spark = local_session()
    try:
        with wal_sink.register(spark) as sink:
            reach(config, sink).awaitTermination()
    finally:
        spark.stop()


def exits(config: dict[str, Any]) -> None:
    """Exit without a block while the query runs."""
    reach(config, wal_sink.register(local_session()))
    sys.exit(7)


def ends(config: dict[str, Any]) -> None:
    """End the script without a block after the query has ended."""
    reach(config, wal_sink.register(local_session()), available_now=True).awaitTermination()


def notebook(config: dict[str, Any]) -> None:
    """Run a cell, stop Spark without closing the handle, and run the cell again in a new session."""
    spark = local_session()
    sink = wal_sink.register(spark)
    reach(config, sink)
    assert isinstance(sink.queries, Queries)
    spark.streams.removeListener(sink.queries.listener)  # the last events are lost
    spark.stop()
    spark = local_session()
    sink = wal_sink.register(spark)
    reach(config, sink)
    Path(config["barrier"]).unlink()
    sink.close()
    until(lambda: not flushers())  # the first handle's flusher ends, too
    spark.stop()


def flushers() -> list[str]:
    """Return the names of the threads that flush."""
    return [t.name for t in threading.enumerate() if t.name.startswith("wal_sink-flush")]


ENDINGS = {
    ending.__name__: ending for ending in (block, block_exits_on_sigterm, exits, ends, notebook)
}


def reach(
    config: dict[str, Any], sink: wal_sink.Sink, *, available_now: bool = False
) -> StreamingQuery:
    """Start the query, wait until its last epoch is checkpointed, and write the marker.

    :param available_now: True lets the query end with its source. Otherwise it runs until it is stopped.
    """
    spark = SparkSession.getActiveSession()
    assert spark is not None
    job = writer(spark, config, target=CLOSED_TARGET)
    query = (job.trigger(availableNow=True) if available_now else job).start()

    def is_reached() -> bool:
        assert query.isActive, query.exception()
        return sink.status(query).checkpointed >= int(config["epoch"])

    if not available_now:
        until(is_reached, 240)
    Path(config["marker"]).write_text("here")
    return query


class ClosedTarget(CassandraTarget):
    """The target, unavailable while the barrier exists."""

    def connect(self, query_id: str) -> IdempotentSession:
        if Path(os.environ[BARRIER]).exists():
            raise TargetUnavailable("The target is closed.", "Delete the file.")
        return super().connect(query_id)


if __name__ == "__main__":
    own = json.loads(Path(sys.argv[1]).read_text())
    os.environ[BARRIER] = own["barrier"]
    main(own)
