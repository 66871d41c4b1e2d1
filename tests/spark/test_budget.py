"""The budget of the log, and what a start logs."""

from __future__ import annotations

import logging
import socket
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.gate import GATED_TARGET, Gate
from tests.spark.tables import Table, options, start, state_of, stream
from tests.support.waiting import until
from wal_sink.demo.crash import Driver
from wal_sink.errors import FlushTimeout, OptionError
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(600)]

EPOCHS = 3
ALL = list(range(EPOCHS * ROWS_PER_FILE))
SMALL = {"wal.maxBytes": 1}
"""A budget that any epoch exceeds."""
FAIL = {**SMALL, "wal.onFull": "fail"}


def waits(checkpoint: str, epoch: int) -> bool:
    """Return True if an epoch is planned and not published, and the one before is checkpointed."""
    opened = locate(checkpoint).open_checkpoint()
    if opened.last_commit() != epoch - 1 or opened.offsets(epoch) is None:
        return False
    return state_of(checkpoint).last.epoch < epoch


def failure(query: StreamingQuery) -> str:
    """Wait until a query has failed; return its error text."""
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    return str(caught.value)


def test_epoch_without_space_waits_or_fails_the_query(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path, gate: Gate
) -> None:
    """A query that waits can be stopped. It continues when the target accepts rows again."""
    gate.close()
    rows = stream(spark, write_source(tmp_path / "source", EPOCHS))
    with wal_sink.register(spark) as sink:
        query = start(rows, table, checkpoint, target=GATED_TARGET, **SMALL)
        until(lambda: gate.writers() != {} and waits(checkpoint, 1), 200)
        time.sleep(2)
        assert waits(checkpoint, 1), "epoch 0 passes, though it is larger than the budget"
        start_s = time.monotonic()
        query.stop()
        assert time.monotonic() - start_s < 60, "stop() lasted as long as the wait"
        assert state_of(checkpoint).last.epoch == 0, "the waiting epoch was published"

        message = failure(start(rows, table, checkpoint, target=GATED_TARGET, **FAIL))
        for words in ("LogFull", "Epoch 1 is not published", "wal.maxBytes is 1", "What to do"):
            assert words in message
        assert state_of(checkpoint).last.epoch == 0

        query = start(rows, table, checkpoint, target=GATED_TARGET, **SMALL)
        until(lambda: waits(checkpoint, 1), 200)
        gate.open()
        query.awaitTermination()
        sink.await_flushed(query, timeout=60)
    assert table.ids() == ALL


def test_another_process_flushes_a_query_that_waits(
    spark: SparkSession,
    table: Table,
    checkpoint: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With `flush=False` and a full log, `status` and the error say that no process flushes."""
    rows = stream(spark, write_source(tmp_path / "source", EPOCHS))
    with wal_sink.register(spark, flush=False) as sink:
        with pytest.raises(OptionError, match="flush=False"):
            wal_sink.register(spark)
        message = failure(start(rows, table, f"{checkpoint}-2", **FAIL))
        assert "LogFull" in message
        assert "No process has flushed this query yet" in message
        query = start(rows, table, checkpoint, **SMALL)
        until(lambda: waits(checkpoint, 1), 200)
        assert f"wal-sink flush file://{checkpoint}" in str(sink.status(query).remedy)
        with pytest.raises(FlushTimeout):
            sink.await_flushed(query, timeout=0)
        assert table.ids() == []
        command = [str(Path(sys.executable).with_name("wal-sink")), "flush", checkpoint, "--follow"]
        with Driver(command, tmp_path / "flush", folder=Path(__file__).parents[2]) as other:
            query.awaitTermination()
            wal_sink.await_flushed(checkpoint, timeout=60)
            other.process.terminate()
            other.finish()
    assert table.ids() == ALL
    assert "for a process that flushes: there is none now" in caplog.text, "of the first query"


def test_place_that_is_ignored_is_warned_of(
    spark: SparkSession,
    table: Table,
    checkpoint: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Rows do not go to the path of `start`, or the table of `toTable`. Without them there is no warning."""
    source = write_source(tmp_path / "source", 1)
    writer = stream(spark, source).writeStream.format("wal_sink").options(**options(table))
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    spark.sql("CREATE DATABASE shop_of_spark")
    try:
        with wal_sink.register(spark):
            writer.toTable("shop_of_spark.orders").awaitTermination()
            start(stream(spark, source), table, f"{checkpoint}-2").awaitTermination()
            writer = writer.option("checkpointLocation", f"{checkpoint}-3")
            writer.start("a/path").awaitTermination()
    finally:
        spark.sql("DROP DATABASE shop_of_spark CASCADE")
    warnings = [text for text in caplog.messages if "nothing is written to the path" in text]
    for warning, place in zip(warnings, ["shop_of_spark.orders", "a/path"], strict=True):
        assert f"{place}: its rows go to" in warning
        assert table.name in warning
    assert table.ids() == sorted(3 * list(range(ROWS_PER_FILE)))


def test_start_logs_what_is_in_force(
    spark: SparkSession,
    table: Table,
    checkpoint: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A warning names a socket once, since it cannot replay. Files and rates can."""
    caplog.set_level(logging.INFO, "wal_sink")
    rate = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    with socket.create_server(("127.0.0.1", 0)) as server, wal_sink.register(spark):
        lines = spark.readStream.format("socket").option("host", "127.0.0.1")
        lines = lines.option("port", server.getsockname()[1])
        both = lines.load().union(rate).selectExpr("uuid() AS key", "1L AS id", "value AS text")
        writer = both.writeStream.format("wal_sink").options(**options(table))
        query = writer.option("checkpointLocation", checkpoint).start()
        with_socket = [*caplog.messages]
        caplog.clear()
        files = stream(spark, write_source(tmp_path / "source", 1))
        start(files, table, f"{checkpoint}-2").awaitTermination()
        query.stop()
        without = [*caplog.messages]
    (warning,) = [text for text in with_socket if "cannot give out a row again" in text]
    assert f"query {query.id}: it reads from TextSocketV2[host: 127.0.0.1" in warning
    assert "Rate" not in warning
    (block,) = [text for text in with_socket if "guarantee" in text]
    assert "at-most-once from TextSocketV2" in block
    assert f"file://{checkpoint}/wal_sink/{query.id}" in block
    assert f"{table.keyspace}.events" in block
    (block,) = [text for text in without if "guarantee" in text]
    assert "exactly-once" in block
    assert "at-most-once" not in "".join(without)
