"""What the handle finds out without Spark's events: they may be missed, and end with the query."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.tables import Table, options, start, stream
from tests.support.waiting import until
from wal_sink.errors import OptionError
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.run_history import RUN_HISTORY
from wal_sink.testing.servers.cassandra import Node

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


def test_a_run_is_asked_when_its_event_was_missed(
    spark: SparkSession, cassandra: Node, keyspace: str, checkpoint: str, tmp_path: Path
) -> None:
    """Two runs published epoch 1, and the source is idle: no next epoch tells which was kept (rule 11)."""
    table = Table(cassandra, keyspace)
    source = write_source(tmp_path / "source", 2)
    with wal_sink.register(spark, flush=False):
        first = start(stream(spark, source), table, checkpoint)
        first.awaitTermination()
    for name in ("1", ".1.crc"):
        Path(checkpoint, "commits", name).unlink()  # as if it had died before it wrote that
    RUN_HISTORY.unwatch(str(first.id))
    with wal_sink.register(spark) as sink:
        writer = stream(spark, source).writeStream.format("wal_sink").options(**options(table))
        query = writer.option("checkpointLocation", checkpoint).start()
        try:
            spark.streams.removeListener(sink._listener)
            waits = "published by 2 runs"
            until(lambda: waits in (sink.status(query).doing or ""))
            assert sink.status(query).flushed == 0
            until(lambda: sink.status(query).flushed == 1)
        finally:
            query.stop()
    assert table.ids() == list(range(2 * ROWS_PER_FILE))


def test_an_end_of_which_no_event_tells_is_found(
    spark: SparkSession, cassandra: Node, keyspace: str, checkpoint: str, tmp_path: Path
) -> None:
    """Else the flush would look at a query that is gone, and wait for proofs of its run, for ever."""
    table = Table(cassandra, keyspace)
    with wal_sink.register(spark) as sink:
        rows = stream(spark, write_source(tmp_path / "source", 2))
        query = start(rows, table, checkpoint)
        run = str(query.runId)
        spark.streams.removeListener(sink._listener)
        query.awaitTermination()
        assert RUN_HISTORY.running(str(query.id)) == run
        flush = sink._queries.find(str(query.id))
        assert flush is not None
        until(lambda: not flush.is_alive, seconds=60)
        assert RUN_HISTORY.running(str(query.id)) is None
        assert sink.status(query).flushed == 1


def test_a_query_that_goes_on_under_a_new_handle_is_known_to_run(
    spark: SparkSession, cassandra: Node, keyspace: str, checkpoint: str, tmp_path: Path
) -> None:
    """No event tells the second handle that it has started."""
    table = Table(cassandra, keyspace)
    source = write_source(tmp_path / "source", 1)
    writer = stream(spark, source).writeStream.format("wal_sink").options(**options(table))
    sink = wal_sink.register(spark)
    query = writer.option("checkpointLocation", checkpoint).start()
    try:
        until(lambda: sink.status(query).flushed == 0)
        sink.close()
        RUN_HISTORY.unwatch(str(query.id))
        with wal_sink.register(spark):
            assert RUN_HISTORY.running(str(query.id)) == str(query.runId)
    finally:
        query.stop()


def test_a_handle_lets_go_of_queries_that_are_done(
    spark: SparkSession,
    cassandra: Node,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An application starts one after the other: the handle does not grow, and still knows each of them."""
    monkeypatch.setattr("wal_sink.spark.queries._DONE_KEPT", 1)
    source = write_source(tmp_path / "source", 1)
    with wal_sink.register(spark) as sink:
        queries = []
        for number in range(3):
            table = Table(cassandra, keyspace, f"table_{number}")
            checkpoint = str(tmp_path / f"checkpoint-{number}")
            queries.append(start(stream(spark, source), table, checkpoint))
            queries[-1].awaitTermination()
        until(lambda: sink._queries.flushes() == [], seconds=60)
        ids = {str(query.id) for query in queries}
        gc.collect()
        flushers = [each for each in gc.get_objects() if isinstance(each, Flusher)]
        assert not ids & {flusher.pipeline.query_id for flusher in flushers}
        assert {RUN_HISTORY.running(query_id) for query_id in ids} == {None}
        assert ids.isdisjoint(RUN_HISTORY._queries)
        assert [sink._queries.place(str(query.id)) is None for query in queries].count(True) == 2
        for query in queries:
            assert sink.status(query).flushed == 0
            assert sink.await_flushed(query).epoch == 0
            assert wal_sink.status(query).flushed == 0
        shutil.copy(Path(source) / "0000.parquet", Path(source) / "0001.parquet")
        again = start(stream(spark, source), table, checkpoint)
        again.awaitTermination()
        assert sink.await_flushed(again, timeout=60).epoch == 1
    assert table.ids() == sorted(2 * list(range(ROWS_PER_FILE)))


def test_what_waits_for_another_process_is_not_let_go(
    spark: SparkSession,
    cassandra: Node,
    keyspace: str,
    checkpoint: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`close` says how much it is; when that process has flushed it, the query is done here, too."""
    table = Table(cassandra, keyspace)
    rows = stream(spark, write_source(tmp_path / "source", 1))
    sink = wal_sink.register(spark, flush=False)
    query = start(rows, table, checkpoint)
    query.awaitTermination()
    until(lambda: sink._queries.flushes()[0].terminated)
    sink._queries.drop_done()
    assert len(sink._queries.flushes()) == 1
    sink.close()
    assert f"1 epoch of query {query.id} waits" in caplog.text
    with (
        wal_sink.register(spark) as flushing,
        pytest.raises(OptionError, match="writes neither to format"),
    ):
        flushing.status(start_noop(spark, tmp_path))
    sink._queries.drop_done()
    assert len(sink._queries.flushes()) == 1, "nothing has flushed it"


def start_noop(spark: SparkSession, tmp_path: Path) -> StreamingQuery:
    """Run a query of another format to its end."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    writer = rows.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "noop"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query
