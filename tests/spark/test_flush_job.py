"""Large windows are written by a Spark job, beside the query, with real Spark and real Cassandra."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.conftest import write_source
from tests.spark.driver import Driver
from tests.spark.gate import GATED_TARGET, Gate
from tests.spark.tables import Table, options, start, stream
from tests.support.waiting import until
from wal_sink.configuration import configure
from wal_sink.demo.servers.cassandra import Node
from wal_sink.errors import NotDrained
from wal_sink.flush.flusher import Flusher
from wal_sink.flush.pipeline import Pipeline
from wal_sink.targets.cassandra.options import ENVIRONMENT
from wal_sink.testing.micro_batches import until_idle
from wal_sink.wal.location import locate

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(600)]

ROWS = 3_000
ALWAYS = {"flush.distributedAboveBytes": 0}


@pytest.fixture
def gate(keyspace: str) -> Iterator[Gate]:
    """The gate of `GatedTarget`."""
    gate = Gate(keyspace)
    yield gate
    gate.remove()


@pytest.fixture
def gated(gate: Gate) -> dict[str, Any]:
    """Options: every window by a job, whose tasks pass the gate."""
    return {**ALWAYS, "target": GATED_TARGET}


def running(spark: SparkSession) -> list[str]:
    """Return the descriptions of flush jobs under way, as Spark's UI shows them."""
    store = spark.sparkContext._jsc.sc().statusStore()
    described = [
        store.job(job).description().get()
        for job in spark.sparkContext.statusTracker().getActiveJobsIds()
        if store.job(job).description().isDefined()
    ]
    return [description for description in described if description.startswith("wal_sink")]


def test_large_window_is_written_by_a_job(
    spark: SparkSession,
    cassandra: Node,
    keyspace: str,
    tmp_path: Path,
    gate: Gate,
    gated: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two tasks share one segment, a third slot goes on with the query; row i has timestamp base + i.

    The login that the driver found in its environment is that of the tasks: their own is that of the
    session's start.
    """
    for field, value in {"username": "ann", "password": "of now"}.items():
        monkeypatch.setenv(ENVIRONMENT[field], value)
    table = Table(cassandra, keyspace)
    checkpoint = str(tmp_path / "checkpoint")
    gate.close()
    with wal_sink.register(spark) as sink:
        rows = stream(spark, write_source(tmp_path / "source", 4, ROWS))
        query = start(rows, table, checkpoint, **gated)
        until(lambda: len(gate.writers()) == 2)
        (job,) = running(spark)  # of epoch 0, or of those that are checkpointed by then
        assert re.fullmatch(f"wal_sink flushes epochs? 0( to .)? of query {query.id}", job)
        query.awaitTermination()
        assert locate(checkpoint).open_checkpoint().last_commit() == 3
        assert table.ids() == []
        gate.open()
        sink.await_flushed(query, timeout=120)
        assert running(spark) == []
    assert all("java" in parent for parent in gate.writers().values())
    assert len(gate.logins()) in {3, 4}, (
        "of the driver and two workers; a later job may use a third"
    )
    assert set(gate.logins()) == {"('ann', 'of now')"}
    written = cassandra.execute(f"SELECT id, WRITETIME(text) AS us FROM {keyspace}.events")
    by_id = {row.id: row.us for row in written}
    assert sorted(by_id) == table.ids() == list(range(4 * ROWS))
    for epoch in range(4):
        first = epoch * ROWS
        times = [by_id[i] for i in range(first, first + ROWS)]
        assert times == list(range(times[0], times[0] + ROWS))


def held(
    spark: SparkSession, table: Table, folder: Path, gate: Gate, gated: dict[str, Any]
) -> StreamingQuery:
    """Run a query of one epoch to its end; return when both tasks of its flush job wait at the gate."""
    gate.close()
    rows = stream(spark, write_source(folder / "source", 1, ROWS))
    query = start(rows, table, str(folder / "checkpoint"), **gated)
    query.awaitTermination()
    until(lambda: len(gate.writers()) == 2)
    return query


def test_closing_cancels_the_job(
    spark: SparkSession,
    cassandra: Node,
    keyspace: str,
    tmp_path: Path,
    gate: Gate,
    gated: dict[str, Any],
) -> None:
    """Its tasks end, though they hang; the next start finishes what was begun."""
    table = Table(cassandra, keyspace)
    sink = wal_sink.register(spark, drain_timeout=1)
    held(spark, table, tmp_path, gate, gated)
    with pytest.raises(NotDrained):
        sink.close()
    assert running(spark) == []
    until(lambda: not any(Path(f"/proc/{process}").exists() for process in gate.writers()))
    assert table.ids() == []
    gate.open()
    rows = stream(spark, str(tmp_path / "source"))
    with wal_sink.register(spark):
        start(rows, table, str(tmp_path / "checkpoint"), **gated).awaitTermination()
    assert table.ids() == list(range(ROWS))


def test_job_whose_window_another_flusher_finished_doubles_nothing(
    spark: SparkSession,
    cassandra: Node,
    keyspace: str,
    tmp_path: Path,
    gate: Gate,
    gated: dict[str, Any],
) -> None:
    """Its tasks write the same rows with the same timestamps. Then it marks nothing."""
    table = Table(cassandra, keyspace)
    with wal_sink.register(spark) as sink:
        query = held(spark, table, tmp_path, gate, gated)
        another = flusher(query, table, str(tmp_path / "checkpoint"))
        until_idle(another)
        another.close()
        times = write_times(table)
        assert len(times) == ROWS
        gate.open()
        until(lambda: running(spark) == [])
        sink.await_flushed(query, timeout=120)
    assert write_times(table) == times
    assert table.ids() == list(range(ROWS))


def write_times(table: Table) -> dict[Any, int]:
    """Return the write timestamp of each row, by its key."""
    rows = table.cassandra.execute(
        f"SELECT key, WRITETIME(text) AS us FROM {table.keyspace}.{table.name}"
    )
    return {row.key: row.us for row in rows}


def flusher(query: StreamingQuery, table: Table, checkpoint: str) -> Flusher:
    """Return a second flusher of a query, which needs no Spark and passes no gate."""
    configuration = configure({"checkpointLocation": checkpoint, **options(table)})
    (destination,) = configuration.destinations
    return Flusher(
        Pipeline(
            query_id=str(query.id),
            store=configuration.location.open_log(str(query.id)),
            checkpoint=configuration.location.open_checkpoint(),
            target=destination.target,
            target_name=destination.name,
            several=False,
            retention=configuration.retention,
        )
    )


def test_task_error_is_raised_again_at_the_driver(
    spark: SparkSession,
    cassandra: Node,
    keyspace: str,
    tmp_path: Path,
    gate: Gate,
    gated: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Kind and text come back, and a second pass meets the same; when the cause is gone the flush goes on."""
    caplog.set_level(logging.INFO, "wal_sink.flush.flusher")
    table = Table(cassandra, keyspace)
    with wal_sink.register(spark) as sink:
        query = held(spark, table, tmp_path, gate, gated)
        cassandra.execute(f"DROP TABLE {keyspace}.events")
        gate.open()
        until(lambda: sink.status(query).last_error is not None)
        error = sink.status(query).last_error or ""
        assert "SchemaMismatch" in error
        assert "(in a Spark task on" in caplog.text
        table = Table(cassandra, keyspace)
        sink.await_flushed(query, timeout=120)
    assert table.ids() == list(range(ROWS))


def test_table_that_is_made_again_under_a_job(
    spark: SparkSession,
    cassandra: Node,
    keyspace: str,
    tmp_path: Path,
    gate: Gate,
    gated: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A task that comes later sees nothing odd, but others may have written to the old one: once more."""
    table = Table(cassandra, keyspace)
    with wal_sink.register(spark) as sink:
        query = held(spark, table, tmp_path, gate, gated)
        cassandra.execute(f"DROP TABLE {keyspace}.events")
        table = Table(cassandra, keyspace)
        gate.open()
        sink.await_flushed(query, timeout=120)
    assert "was dropped and created again" in caplog.text
    assert table.ids() == list(range(ROWS))


def test_session_that_is_stopped_during_a_job(
    cassandra: Node, keyspace: str, tmp_path: Path, gate: Gate, gated: dict[str, Any]
) -> None:
    """The driver writes the rows: draining works after `spark.stop()`."""
    table = Table(cassandra, keyspace)
    gate.close()
    driver = Driver(
        tmp_path / "stopped",
        sink="wal_sink",
        source=write_source(tmp_path / "source", 2),
        checkpoint=str(tmp_path / "checkpoint"),
        settings={"spark.master": "local[3]"},
        options=gated,
        stop_in_job=True,
        **table.config,
    )
    driver.finish()
    assert "the driver writes the rows" in driver.log()
    assert table.ids() == list(range(2 * 400))
