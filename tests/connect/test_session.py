"""The handle of a Connect session: what it does, refuses and reports. The server is another process."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.streaming.query import StreamingQuery

import wal_sink
from tests.connect.app import KIND, SCHEMA, Shop, environment, session, writer
from tests.support.waiting import until
from wal_sink.demo.local_spark import ConnectServer
from wal_sink.errors import (
    CheckpointNotVisible,
    NotDrained,
    OptionError,
    TargetUnavailable,
    UnsupportedSpark,
)

pytestmark = [pytest.mark.spark, pytest.mark.connect]


def test_followed_query_writes_each_row_once(remote: Any, shop: Shop) -> None:
    """`follow` begins before the query, and the end of the block waits for the flush."""
    with wal_sink.register(remote) as sink:
        assert wal_sink.register(remote) is sink
        sink.follow(shop.checkpoint, options={"target": KIND})
        query = writer(remote, shop.source, shop.options).trigger(availableNow=True).start()
        query.awaitTermination()
    assert shop.ids() == list(range(shop.rows))
    status = wal_sink.status(shop.checkpoint)
    assert (status.query_id, status.checkpointed, status.flushed) == (str(query.id), 1, 1)


def test_status_and_log_show_pending_rows_without_follow(
    remote: Any, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Without `follow` nothing is flushed. The handle reads the status, and a log line has the command."""
    with wal_sink.register(remote) as sink:
        (line,) = [record.getMessage() for record in caplog.records]
        assert "wal-sink flush --follow CHECKPOINT" in line
        query = writer(remote, shop.source, shop.options).trigger(availableNow=True).start("a/path")
        assert "no row goes to a/path, which start() was given" in caplog.text
        query.awaitTermination()
        assert sink.status(query).pending_rows == shop.rows
        assert wal_sink.status(query).pending_rows == shop.rows
    assert shop.ids() == []
    assert f"wal-sink flush file://{shop.checkpoint}" in caplog.records[-1].getMessage()
    assert caplog.records[-1].levelno == logging.WARNING
    unknown = StreamingQuery(remote, "00000000-0000-0000-0000-000000000000", str(query.runId))
    with pytest.raises(OptionError, match="was not started by this Connect client"):
        wal_sink.status(unknown)  # type: ignore[arg-type]


CALLS: dict[str, Callable[[Any], Any]] = {
    "outputMode.*append": lambda w: w.outputMode("complete").start(),
    "output mode update": lambda w: w.outputMode("update").start(),
    r"trigger\(continuous": lambda w: w.trigger(continuous="1 second").start(),
    r"trigger\(realTime": lambda w: w.trigger(realTime="5 minutes").start(),
    "asyncProgressTrackingEnabled": lambda w: w.option(
        "asyncProgressTrackingEnabled", "true"
    ).start(),
    r"partitionBy\(id\)": lambda w: w.partitionBy("id").start(),
    r"clusterBy\(id, text\)": lambda w: w.clusterBy("id", "text").start(),
    r"toTable\('shop_orders'\)": lambda w: w.toTable("shop_orders"),
}
"""Calls that are refused, by a part of the error text."""


@pytest.mark.parametrize("named", CALLS)
def test_unsupported_call_is_refused_before_it_is_sent(remote: Any, shop: Shop, named: str) -> None:
    with wal_sink.register(remote), pytest.raises(OptionError, match=named):
        CALLS[named](writer(remote, shop.source, shop.options))
    assert not Path(shop.checkpoint).exists()
    assert not remote.catalog.tableExists("shop_orders")


def test_query_of_another_format_may_use_every_mode(remote: Any, shop: Shop) -> None:
    with wal_sink.register(remote):
        rows = remote.readStream.schema(SCHEMA).parquet(shop.source).groupBy("text").count()
        query = rows.writeStream.format("noop").outputMode("complete").trigger(availableNow=True)
        query = query.option("checkpointLocation", shop.checkpoint).start()
        query.awaitTermination()


def test_error_of_the_sink_replaces_the_error_of_spark(remote: Any, shop: Shop) -> None:
    options = {**shop.options, "table": "no_such_table"}
    with pytest.raises(wal_sink.WalSinkError, match="no_such_table"), wal_sink.register(remote):
        writer(remote, shop.source, options).trigger(availableNow=True).start().awaitTermination()


def test_foreach_batch_is_refused(remote: Any, shop: Shop) -> None:
    with pytest.raises(UnsupportedSpark, match="only format wal_sink works"):
        wal_sink.batch_writer(remote, **shop.options)


def test_check_works_from_the_client(remote: Any, shop: Shop) -> None:
    rows = remote.read.parquet(shop.source).selectExpr("uuid() AS key", "id", "text")
    checked = wal_sink.check(rows, **shop.options)
    assert [column.name for column in checked.columns] == ["key", "id", "text"]


def test_client_that_cannot_read_the_checkpoint_gets_an_error(
    remote: Any, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder is renamed here, so that the client does not reach it, as on another host."""
    with wal_sink.register(remote) as sink:
        query = writer(remote, shop.source, shop.options).trigger(availableNow=True).start()
        query.awaitTermination()
        Path(shop.checkpoint).rename(shop.folder / "elsewhere")
        with pytest.raises(CheckpointNotVisible, match=r"wal-sink status /") as refused:
            sink.status(query)
        assert "reads its own file systems" in refused.value.what


def test_close_raises_if_a_followed_query_is_unflushed(
    remote: Any, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The process does not import a target class that only the log names. A warning has this reason."""
    sink = wal_sink.register(remote, drain_timeout=2)
    writer(remote, shop.source, shop.options).trigger(availableNow=True).start().awaitTermination()
    sink.follow(shop.checkpoint)
    with pytest.raises(NotDrained, match=f"{shop.checkpoint}: FlushTimeout"):
        sink.close()
    assert f"was not flushed: Only the log names target={KIND}" in caplog.text
    assert f"follow(…, options={{'target': '{KIND}'}})" in caplog.text


def test_two_clients_of_one_checkpoint_write_rows_once(remote: Any, other: Any, shop: Shop) -> None:
    """The second run ends the first run, since both are in one server."""
    with wal_sink.register(remote) as sink, wal_sink.register(other) as handle:
        sink.follow(shop.checkpoint, options={"target": KIND})
        first = writer(remote, shop.source, shop.options).start()
        # At the same moment Spark may refuse one of two starts: "Multiple streaming queries are concurrently
        # using metadata".
        until(lambda: sink.status(first).checkpointed >= 0, 200)
        second = writer(other, shop.source, shop.options).start()
        until(lambda: handle.status(second).checkpointed == 1, 200, "two batches of a busy server")
        assert not first.isActive
        assert sink.await_flushed(first, 60).epoch == 1
        second.stop()
    assert shop.ids() == list(range(shop.rows))


def test_option_with_a_secret_logs_a_warning(
    remote: Any, shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """Spark's event log has what a client sends. The warning names the options, without values."""
    options = {
        "checkpointLocation": shop.checkpoint,
        "target": "postgresql",
        "postgresql.uri": "postgresql://ann:Geheimnis-1@127.0.0.1:1/shop",
        "postgresql.password": "Geheimnis-2",
        "table": "orders",
    }
    with wal_sink.register(remote):
        writer(remote, shop.source, options).start().stop()
    (line,) = [line for line in caplog.messages if "environment variables" in line]
    assert "has sent postgresql.password and postgresql.uri" in line
    assert "Geheimnis" not in caplog.text


@pytest.mark.test_all
@pytest.mark.timeout(600)
def test_secret_of_the_server_is_left_nowhere(shop: Shop) -> None:
    """A secret of the server's environment is not in its log, in Spark's events, or in the checkpoint."""
    events = shop.folder / "events"
    events.mkdir()
    settings = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": str(events),
        "spark.sql.ui.explainMode": "extended",
    }
    variables = {**environment(), "WAL_SINK_POSTGRESQL_PASSWORD": "Geheimnis-3"}
    options = {
        "checkpointLocation": shop.checkpoint,
        "target": "postgresql",
        "postgresql.uri": "postgresql://ann@127.0.0.1:1/shop",
        "table": "orders",
    }
    with ConnectServer(shop.folder, settings=settings, environment=variables) as server:
        spark = session(server.url)
        with pytest.raises(TargetUnavailable), wal_sink.register(spark):
            writer(spark, shop.source, options).start().awaitTermination()
        spark.stop()
    files = [path for path in shop.folder.rglob("*") if path.is_file()]
    texts = {path: path.read_text(errors="replace") for path in files}
    assert any("postgresql.uri" in text for text in texts.values())
    assert [path for path, text in texts.items() if "Geheimnis-3" in text] == []
