"""A query with an outage of its target, scraped by Prometheus with the shipped alert rules."""

from __future__ import annotations

import threading
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import wal_sink
from tests.metrics.server import Prometheus, promtool  # noqa: F401 - a fixture
from tests.spark.tables import Table, options
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.prometheus]


def scraped(port: int | None) -> dict[str, float]:
    """Return the samples of the only query, without the histograms' buckets."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    samples = [s for family in text_string_to_metric_families(text) for s in family.samples]
    return {s.name: s.value for s in samples if "le" not in s.labels and "kind" not in s.labels}


def test_alert_fires_while_cassandra_stalls(
    spark: SparkSession,
    table: Table,
    promtool: str,  # noqa: F811 - the fixture
    checkpoint: str,
    tmp_path: Path,
) -> None:
    cassandra = table.cassandra
    with wal_sink.register(spark, metrics_port=0) as sink:
        assert sink.metrics_port
        query = (
            spark.readStream.format("rate")
            .option("rowsPerSecond", 20)
            .load()
            .selectExpr("uuid() AS key", "value AS id", "'text' AS text")
            .writeStream.format("wal_sink")
            .options(checkpointLocation=checkpoint, **options(table))
            .option("cassandra.requestTimeout", 2)
            .trigger(processingTime="500 milliseconds")
            .start()
        )
        with Prometheus(tmp_path / "prometheus", sink.metrics_port).running() as prometheus:
            prometheus.until(lambda: len(prometheus.targets()) == 1, 30)
            until(lambda: scraped(sink.metrics_port)["wal_sink_flushed_rows_total"] > 0, 180)
            prometheus.until(lambda: "WalSinkFlushLags" not in prometheus.firing(), 60)
            cassandra.pause()
            try:
                prometheus.until(lambda: "WalSinkFlushLags" in prometheus.firing(), 90)
                (alert,) = prometheus.rules()["WalSinkFlushLags"]["alerts"]
                assert alert["labels"]["checkpoint"].endswith(checkpoint)
                assert alert["labels"]["table"] == f"{table.keyspace}.events"
                assert alert["labels"]["query_id"] == str(query.id)
                stuck = scraped(sink.metrics_port)
                assert stuck["wal_sink_pending_rows"] > 0
                assert stuck["wal_sink_oldest_pending_seconds"] > 3
                assert query.isActive
            finally:
                cassandra.resume()
            sink.await_flushed(query, 60)  # tries at once; the flusher's next try may be 10 s later
            prometheus.until(lambda: "WalSinkFlushLags" not in prometheus.firing(), 60)
            unhealthy = {
                n: r["lastError"] for n, r in prometheus.rules().items() if r.get("lastError")
            }
            assert unhealthy == {}
        query.stop()
        sink.await_flushed(query, 60)
        until(lambda: scraped(sink.metrics_port)["wal_sink_pending_epochs"] == 0)
        done = scraped(sink.metrics_port)
        assert done["wal_sink_oldest_pending_seconds"] == 0
        assert done["wal_sink_flushed_rows_total"] == len(table.ids()) > 20
        assert done["wal_sink_commit_to_visible_seconds_sum"] > 3, "the outage is in it"
    with pytest.raises(OSError, match="refused"):
        scraped(sink.metrics_port)
    assert [t.name for t in threading.enumerate() if "wal_sink" in t.name] == []
