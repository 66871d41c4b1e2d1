"""The continuous trigger, in which Spark gives a Python sink no rows and tells no error: it is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.live_query import live_query
from tests.spark.tables import Table
from tests.support.waiting import until
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import OptionError

pytestmark = pytest.mark.spark

REMEDY = r"continuous(.|\n)*trigger\(processingTime=…\) or trigger\(availableNow=True\)"


@contextmanager
def continuous(
    spark: SparkSession, checkpoint: str, table: Table | None = None
) -> Iterator[StreamingQuery]:
    """Start a query with the continuous trigger.

    :param table: where its rows fit; None where the target is never asked for anything.
    """
    rows = spark.readStream.format("rate").option("numPartitions", 1).load()
    rows = rows.selectExpr("uuid() AS key", "value AS id", "'x' AS text")
    writer = rows.writeStream.format("wal_sink").option("checkpointLocation", checkpoint)
    options: dict[str, str | int] = {
        "cassandra.contactPoints": "127.0.0.1",
        "cassandra.port": table.cassandra.port if table else 9042,
        "keyspace": table.keyspace if table else "none",
        "table": table.name if table else "none",
    }
    writer = writer.options(**options)
    query = writer.trigger(continuous="1 second").start()
    try:
        yield query
    finally:
        query.stop()


def written(checkpoint: str) -> list[str]:
    """Return what is in a checkpoint beside its metadata, log included; without checksums."""
    files = (path for path in Path(checkpoint).rglob("*") if path.is_file())
    names = [str(path.relative_to(checkpoint)) for path in files if path.suffix != ".crc"]
    return sorted(name for name in names if name != "metadata")


@pytest.mark.parametrize("flush", [True, False])
def test_the_continuous_trigger_is_refused(
    spark: SparkSession, checkpoint: str, caplog: pytest.LogCaptureFixture, *, flush: bool
) -> None:
    """The query never begins: no offsets, no log. The block raises, and so does all that asks for rows."""
    sink = wal_sink.register(spark, flush=flush)
    with continuous(spark, checkpoint) as query:
        assert not query.isActive, "start() returns a query that is stopped"
        for ask in (sink.await_flushed, sink.status, wal_sink.await_flushed, wal_sink.status):
            with pytest.raises(OptionError, match=rf"{query.id}(.|\n)*{REMEDY}"):
                ask(query)
        with pytest.raises(OptionError, match=rf"{query.id}(.|\n)*{REMEDY}"), sink:
            query.awaitTermination()
        assert query.exception() is None
        assert query.id not in {other.id for other in spark.streams.active}
    sink.close()  # a second time: nothing
    assert written(checkpoint) == []
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert str(query.id) in error.getMessage()
    assert "What to do: Start it with trigger(processingTime=…)" in error.getMessage()


def test_an_exception_of_the_block_goes_through(
    spark: SparkSession, checkpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """And one line says what the block would have raised."""
    with pytest.raises(KeyError, match="mine"):
        fail_in_the_block(spark, checkpoint)
    (message,) = [
        r for r in caplog.records if "the block failed, and then its end failed" in r.getMessage()
    ]
    assert "trigger(continuous=…)" in message.getMessage()


@pytest.mark.cassandra
def test_query_without_a_handle_is_refused_by_the_planner(
    spark: SparkSession, cassandra: Node, keyspace: str, checkpoint: str
) -> None:
    """It had no handle to stop it as it started; the handle that comes then has nothing to stop."""
    table = Table(cassandra, keyspace)
    wal_sink.register(spark).close()  # the session has the format from now on
    with continuous(spark, checkpoint, table) as query:
        with pytest.raises(StreamingQueryException, match=REMEDY):
            query.awaitTermination(60)
        wal_sink.register(spark).close()
    assert written(checkpoint) == []


def fail_in_the_block(spark: SparkSession, checkpoint: str) -> None:
    """Leave a block by an exception, with a query that was refused."""
    with wal_sink.register(spark), continuous(spark, checkpoint):
        raise KeyError("mine")


@pytest.mark.cassandra
def test_the_remedy_works_with_the_same_checkpoint(
    spark: SparkSession, cassandra: Node, keyspace: str, checkpoint: str
) -> None:
    """In micro-batches the query delivers from its first row on, and what was refused is forgotten."""
    table = Table(cassandra, keyspace)
    with wal_sink.register(spark) as sink:
        with continuous(spark, checkpoint) as refused:
            assert not refused.isActive
        with live_query(spark, table, checkpoint) as query:
            assert query.id == refused.id
            until(lambda: sink.status(query).flushed >= 1)
    ids = table.ids()
    assert ids
    assert ids == list(range(len(ids)))
