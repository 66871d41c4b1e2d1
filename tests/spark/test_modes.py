"""Modes of Spark in which its checkpoint could mean something else: refused, or exactly once all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.gate import GATED_TARGET, Gate
from tests.spark.tables import Table, start, stream
from tests.spark.test_continuous import written
from tests.support.waiting import until
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import OptionError

pytestmark = pytest.mark.spark

RETAIN = "spark.sql.streaming.minBatchesToRetain"
ASYNC = {
    "asyncProgressTrackingEnabled": "true",
    "asyncProgressTrackingCheckpointIntervalMs": "2000",
}
OVERRIDE = {"_asyncProgressTrackingOverrideSinkSupportCheck": "true"}
REAL_TIME = "spark.sql.streaming.realTimeMode"


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Within the block, the session has these settings."""
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in values:
            spark.conf.unset(name)


def unwatched(
    spark: SparkSession, checkpoint: str, mode: str = "append", **options: str
) -> StreamingQuery:
    """Start a query in a mode that is refused before the target is asked for anything."""
    rows = spark.readStream.format("rate").load().selectExpr("uuid() AS key", "value AS id")
    writer = rows.writeStream.format("wal_sink").option("checkpointLocation", checkpoint)
    writer = writer.option("keyspace", "none").option("table", "none").outputMode(mode)
    writer = writer.option("cassandra.contactPoints", "127.0.0.1").options(**options)
    if mode == "update":
        writer = writer.trigger(realTime="5 seconds")  # type: ignore[call-overload]
    return writer.start()


def assert_nothing_written(checkpoint: str) -> None:
    """Assert that nothing is planned, committed or logged; a source may have noted where it begins."""
    assert [name for name in written(checkpoint) if not name.startswith("sources/")] == []


def test_spark_refuses_asynchronous_progress_tracking(spark: SparkSession, checkpoint: str) -> None:
    """Without the option that overrides it, which Spark has for its own tests."""
    with wal_sink.register(spark), pytest.raises(Exception, match="async progress tracking") as met:
        unwatched(spark, checkpoint, **ASYNC)
    assert "does not support" in str(met.value)
    assert_nothing_written(checkpoint)


@pytest.mark.parametrize("flush", [True, False])
def test_with_its_override_it_is_refused(
    spark: SparkSession, checkpoint: str, *, flush: bool
) -> None:
    """There `commits/5` may cover what 3 and 4 were: after a crash their rows would come twice."""
    sink = wal_sink.register(spark, flush=flush)
    query = unwatched(spark, checkpoint, **ASYNC, **OVERRIDE)
    remedy = rf"{query.id}(.|\n)*without asyncProgressTrackingEnabled"
    assert not query.isActive, "start() returns a query that is stopped"
    for ask in (sink.await_flushed, sink.status, wal_sink.await_flushed, wal_sink.status):
        with pytest.raises(OptionError, match=remedy):
            ask(query)
    with pytest.raises(OptionError, match=remedy):
        sink.close()
    assert_nothing_written(checkpoint)


def test_spark_refuses_real_time_mode(spark: SparkSession, checkpoint: str) -> None:
    """A Python sink is not in its list."""
    with wal_sink.register(spark), pytest.raises(Exception, match="not in the sink allowlist"):
        unwatched(spark, checkpoint, mode="update")
    assert_nothing_written(checkpoint)


@pytest.mark.parametrize("tracking", ["true", "false"])
def test_with_its_override_real_time_mode_is_refused(
    spark: SparkSession, checkpoint: str, tracking: str
) -> None:
    """There Spark writes `offsets/N` after `commit()`: nothing tells a replay from another epoch."""
    overrides = {
        f"{REAL_TIME}.allowlistCheck": "false",
        f"{REAL_TIME}.asyncProgressTrackingByDefault.enabled": tracking,
    }
    sink = wal_sink.register(spark)
    with settings(spark, **overrides):
        query = unwatched(spark, checkpoint, mode="update", **OVERRIDE)
    assert not query.isActive
    with pytest.raises(OptionError, match=rf"{query.id}.*realTime(.|\n)*processingTime"):
        sink.close()
    assert_nothing_written(checkpoint)


@pytest.mark.cassandra
def test_purged_batches_of_spark_are_not_needed(
    spark: SparkSession, cassandra: Node, keyspace: str, checkpoint: str, tmp_path: Path
) -> None:
    """One batch is retained while the target is away for all of them: every row comes, once."""
    table, gate = Table(cassandra, keyspace), Gate(keyspace)
    source = write_source(tmp_path / "source", 6)
    gate.close()
    try:
        with wal_sink.register(spark) as sink:
            with settings(spark, **{RETAIN: "1"}):
                query = start(stream(spark, source), table, checkpoint, target=GATED_TARGET)
                query.awaitTermination()
            assert sink.status(query).checkpointed == 5
            assert sink.status(query).flushed <= 0
            for folder in ("offsets", "commits"):
                names = [path.name for path in (Path(checkpoint) / folder).iterdir()]
                epochs = [int(name) for name in names if name.isdecimal()]
                assert min(epochs) >= 4, "the files of what waits are gone"
            gate.open()
            assert sink.await_flushed(query, timeout=60).epoch == 5
    finally:
        gate.open()
        gate.remove()
    assert table.ids() == list(range(6 * ROWS_PER_FILE))


def numbered(spark: SparkSession, table: Table, checkpoint: str) -> StreamingQuery:
    """Start a query that goes on until it is stopped; ids count from 0 without a gap."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    rows = rate.selectExpr("uuid() AS key", "value AS id", "'x' AS text")
    writer = rows.writeStream.format("wal_sink").option("checkpointLocation", checkpoint)
    writer = writer.option("cassandra.contactPoints", "127.0.0.1")
    writer = writer.option("cassandra.port", table.cassandra.port)
    return writer.option("keyspace", table.keyspace).option("table", table.name).start()


@pytest.mark.cassandra
@pytest.mark.parametrize(
    "where", [pytest.param("the same session", marks=pytest.mark.test_all), "another session"]
)
def test_a_query_that_is_started_twice_goes_on_once(
    spark: SparkSession,
    sibling: SparkSession,
    cassandra: Node,
    keyspace: str,
    checkpoint: str,
    where: str,
) -> None:
    """Spark stops the run that goes on, then starts the other one, whose first `commit()` opens."""
    table = Table(cassandra, keyspace)
    other = spark if where == "the same session" else sibling
    with wal_sink.register(spark) as sink, wal_sink.register(other) as other_sink:
        first = numbered(spark, table, checkpoint)
        until(lambda: sink.status(first).flushed >= 1)
        second = numbered(other, table, checkpoint)
        assert (second.id, second.isActive, first.isActive) == (first.id, True, False)
        reached = other_sink.status(second).checkpointed
        until(lambda: other_sink.status(second).flushed > reached + 2)
        second.stop()
        assert first.exception() is None
        assert second.exception() is None
    ids = table.ids()
    assert len(ids) > 10
    assert ids == list(range(len(ids)))


@pytest.mark.cassandra
def test_second_start_refused_by_spark_leaves_the_first_alone(
    spark: SparkSession, cassandra: Node, keyspace: str, checkpoint: str
) -> None:
    """As where Spark is told to refuse it; its error comes out of `start()`."""
    table = Table(cassandra, keyspace)
    refuse = {"spark.sql.streaming.stopActiveRunOnRestart": "false"}
    with wal_sink.register(spark) as sink:
        first = numbered(spark, table, checkpoint)
        until(lambda: sink.status(first).flushed >= 1)
        with (
            settings(spark, **refuse),
            pytest.raises(Exception, match=r"(?i)already active|concurrent"),
        ):
            numbered(spark, table, checkpoint)
        reached = sink.status(first).checkpointed
        until(lambda: sink.status(first).flushed > reached + 1)
        first.stop()
    ids = table.ids()
    assert ids == list(range(len(ids)))
