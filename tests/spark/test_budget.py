"""The budget of the log, and what a start logs."""

from __future__ import annotations

import logging
import socket
import sys
import time
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, Shop
from tests.spark.gate import GATED_TARGET, Gate
from tests.spark.tables import state_of
from tests.support.waiting import until
from wal_sink.demo.local_spark import Driver
from wal_sink.errors import FlushTimeout, OptionError
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(600)]

EPOCHS = 3
ALL = list(range(EPOCHS * ROWS_PER_FILE))
SMALL = {"wal.maxBytes": 1}
"""A budget that any epoch exceeds."""
FAIL = {**SMALL, "wal.onFull": "fail"}


def waits(checkpoint: str, epoch: int) -> bool:
    """Return True if an epoch is planned and not published, and the epoch before it is checkpointed."""
    opened = locate(checkpoint).open_checkpoint()
    if opened.last_commit() != epoch - 1 or opened.offsets(epoch) is None:
        return False
    return state_of(checkpoint).last.epoch < epoch


def failure(query: StreamingQuery) -> str:
    """Wait until a query has failed; return its error text."""
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    return str(caught.value)


def test_epoch_without_space_waits_or_fails_the_query(shop: Shop, gate: Gate) -> None:
    """A query that waits can be stopped. It continues when the target accepts rows again."""
    gate.close()
    shop.add_files(EPOCHS)
    with wal_sink.register(shop.spark) as sink:
        query = shop.start(target=GATED_TARGET, **SMALL)
        until(lambda: gate.writers() and waits(shop.checkpoint, 1), 200)
        time.sleep(2)
        assert waits(shop.checkpoint, 1), "epoch 0 passes, though it is larger than the budget"
        start_s = time.monotonic()
        query.stop()
        assert time.monotonic() - start_s < 60, "stop() lasted as long as the wait"
        assert state_of(shop.checkpoint).last.epoch == 0, "the waiting epoch was published"

        message = failure(shop.start(target=GATED_TARGET, **FAIL))
        for words in ("LogFull", "Epoch 1 is not published", "wal.maxBytes is 1", "What to do"):
            assert words in message
        assert state_of(shop.checkpoint).last.epoch == 0

        query = shop.start(target=GATED_TARGET, **SMALL)
        until(lambda: waits(shop.checkpoint, 1), 200)
        gate.open()
        query.awaitTermination()
        sink.await_flushed(query, timeout=60)
    assert shop.table.ids() == ALL


def test_another_process_flushes_a_query_that_waits(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """With `flush=False` and a full log, `status` and the error say that no process flushes."""
    shop.add_files(EPOCHS)
    with wal_sink.register(shop.spark, flush=False) as sink:
        with pytest.raises(OptionError, match="flush=False"):
            wal_sink.register(shop.spark)
        message = failure(shop.start(checkpointLocation=f"{shop.checkpoint}-2", **FAIL))
        assert "LogFull" in message
        assert "No process has flushed this query yet" in message
        query = shop.start(**SMALL)
        until(lambda: waits(shop.checkpoint, 1), 200)
        assert f"wal-sink flush file://{shop.checkpoint}" in str(sink.status(query).remedy)
        with pytest.raises(FlushTimeout):
            sink.await_flushed(query, timeout=0)
        assert shop.table.ids() == []
        program = str(Path(sys.executable).with_name("wal-sink"))
        command = [program, "flush", shop.checkpoint, "--follow"]
        folder = Path(__file__).parents[2]
        with Driver(command, shop.folder / "flush", folder=folder) as other:
            query.awaitTermination()
            wal_sink.await_flushed(shop.checkpoint, timeout=60)
            other.process.terminate()
            other.finish()
    assert shop.table.ids() == ALL
    assert "for a process that flushes: there is none now" in caplog.text, "of the first query"


def test_path_that_the_sink_ignores_logs_a_warning(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Such paths are the argument of `start` and the table of `toTable`. The second query has neither."""
    shop.add_files()
    shop.spark.sql("CREATE DATABASE shop_of_spark")
    job = shop.writer().trigger(availableNow=True)
    try:
        with wal_sink.register(shop.spark):
            job.toTable("shop_of_spark.orders").awaitTermination()
            shop.run(checkpointLocation=f"{shop.checkpoint}-2")
            job = job.option("checkpointLocation", f"{shop.checkpoint}-3")
            job.start("a/path").awaitTermination()
    finally:
        shop.spark.sql("DROP DATABASE shop_of_spark CASCADE")
    warnings = [text for text in caplog.messages if "nothing is written to the path" in text]
    for warning, place in zip(warnings, ["shop_of_spark.orders", "a/path"], strict=True):
        assert f"{place}: its rows go to" in warning
        assert shop.table.name in warning
    assert shop.table.ids() == sorted(3 * list(range(ROWS_PER_FILE)))


def test_source_that_cannot_replay_is_named_at_the_start(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """A warning, and the settings in force, name the socket, and not the rate."""
    caplog.set_level(logging.INFO, "wal_sink")
    rate = shop.spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    with socket.create_server(("127.0.0.1", 0)) as server, wal_sink.register(shop.spark):
        lines = shop.spark.readStream.format("socket").option("host", "127.0.0.1")
        both = lines.option("port", server.getsockname()[1]).load().union(rate)
        query = shop.writer(both.selectExpr("uuid() AS key", "1L AS id", "value AS text")).start()
        query.stop()
    (warning,) = [text for text in caplog.messages if "cannot give out a row again" in text]
    assert f"query {query.id}: it reads from TextSocketV2[host: 127.0.0.1" in warning
    assert "Rate" not in warning
    (block,) = [text for text in caplog.messages if "guarantee" in text]
    assert "at-most-once from TextSocketV2" in block
    assert f"file://{shop.checkpoint}/wal_sink/{query.id}" in block
    assert f"{shop.table.keyspace}.events" in block
