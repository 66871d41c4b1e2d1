"""Spark jobs that write large windows, beside the query."""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.application import Application
from tests.spark.conftest import Shop, write_source
from tests.spark.gate import GATED_TARGET, Gate
from tests.spark.tables import Table, last_commit, options
from tests.support.waiting import until
from wal_sink.admin.query import find_query
from wal_sink.configuration import configure
from wal_sink.errors import NotDrained
from wal_sink.flush.flusher import Flusher
from wal_sink.targets.cassandra.options import ENVIRONMENT
from wal_sink.testing.micro_batches import until_idle

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(600)]

ROWS = 3_000
GATED: dict[str, Any] = {"flush.distributedAboveBytes": 0, "target": GATED_TARGET}
"""Options: a job writes every window, and its tasks wait at the gate."""


def running(spark: SparkSession) -> list[str]:
    """Return the descriptions of the running flush jobs, as Spark's UI shows them."""
    store = spark.sparkContext._jsc.sc().statusStore()
    described = [
        store.job(job).description().get()
        for job in spark.sparkContext.statusTracker().getActiveJobsIds()
        if store.job(job).description().isDefined()
    ]
    return [description for description in described if description.startswith("wal_sink")]


def write_times(table: Table) -> dict[int, int]:
    """Return the write timestamp of each row, by its id."""
    rows = table.cassandra.execute(
        f"SELECT id, WRITETIME(text) AS us FROM {table.keyspace}.{table.name}"
    )
    return {row.id: row.us for row in rows}


def held(shop: Shop, gate: Gate, files: int = 1) -> StreamingQuery:
    """Start a query; return when both tasks of its flush job wait at the gate."""
    gate.close()
    shop.add_files(files, ROWS)
    query = shop.start(**GATED)
    until(lambda: len(gate.writers()) == 2)
    return query


def test_tasks_of_a_job_write_a_large_window(
    shop: Shop, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks share one segment, and a third slot runs the query. Row i has timestamp base + i.

    The tasks get the login of the driver's environment. Their own environment is that of the session's start.
    """
    for field, value in {"username": "ann", "password": "of now"}.items():
        monkeypatch.setenv(ENVIRONMENT[field], value)
    with wal_sink.register(shop.spark) as sink:
        query = held(shop, gate, files=4)
        (job,) = running(shop.spark)  # of epoch 0, or of all epochs that are checkpointed by then
        assert re.fullmatch(f"wal_sink flushes epochs? 0( to .)? of query {query.id}", job)
        query.awaitTermination()
        assert last_commit(shop.checkpoint) == 3
        assert shop.table.ids() == []
        gate.open()
        sink.await_flushed(query, timeout=120)
        assert running(shop.spark) == []
    assert os.getpid() not in gate.writers()
    assert len(gate.logins()) in {3, 4}, "the driver's, and those of two or three workers"
    assert set(gate.logins()) == {"('ann', 'of now')"}
    assert shop.table.ids() == list(range(4 * ROWS))
    written = write_times(shop.table)
    for epoch in range(4):
        times = [written[i] for i in range(epoch * ROWS, (epoch + 1) * ROWS)]
        assert times == list(range(times[0], times[0] + ROWS))


def test_close_cancels_a_flush_job(shop: Shop, gate: Gate) -> None:
    """Tasks that hang are ended, too. The next start writes the rows."""
    sink = wal_sink.register(shop.spark, drain_timeout=1)
    held(shop, gate).awaitTermination()
    with pytest.raises(NotDrained):
        sink.close()
    assert running(shop.spark) == []
    until(lambda: not any(Path(f"/proc/{process}").exists() for process in gate.writers()))
    assert shop.table.ids() == []
    gate.open()
    with wal_sink.register(shop.spark):
        shop.run(**GATED)
    assert shop.table.ids() == list(range(ROWS))


def test_job_whose_window_another_flusher_finished_doubles_nothing(shop: Shop, gate: Gate) -> None:
    """The job's tasks write the same rows with the same timestamps."""
    with wal_sink.register(shop.spark) as sink:
        query = held(shop, gate)
        query.awaitTermination()
        # The second flusher needs no Spark, and does not wait at the gate.
        configuration = configure({"checkpointLocation": shop.checkpoint, **options(shop.table)})
        (destination,) = configuration.destinations
        another = Flusher(find_query(shop.checkpoint).pipeline(configuration, destination))
        until_idle(another)
        another.close()
        times = write_times(shop.table)
        assert len(times) == ROWS
        gate.open()
        until(lambda: running(shop.spark) == [])
        sink.await_flushed(query, timeout=120)
    assert write_times(shop.table) == times
    assert shop.table.ids() == list(range(ROWS))


def test_task_error_is_raised_again_at_the_driver(
    shop: Shop, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """The driver reports class and text of the error. When the cause is gone, the flush continues."""
    caplog.set_level(logging.INFO, "wal_sink.flush.flusher")
    with wal_sink.register(shop.spark) as sink:
        query = held(shop, gate)
        query.awaitTermination()
        shop.table.cassandra.execute(f"DROP TABLE {shop.table.keyspace}.events")
        gate.open()
        until(lambda: sink.status(query).last_error is not None)
        assert "SchemaMismatch" in (sink.status(query).last_error or "")
        assert "(in a Spark task on" in caplog.text
        table = Table(shop.table.cassandra, shop.table.keyspace)
        sink.await_flushed(query, timeout=120)
    assert table.ids() == list(range(ROWS))


def test_table_created_again_during_a_job_gets_all_rows(
    shop: Shop, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    """A task that starts later sees only the new table, but others may have written to the old table."""
    with wal_sink.register(shop.spark) as sink:
        query = held(shop, gate)
        query.awaitTermination()
        shop.table.cassandra.execute(f"DROP TABLE {shop.table.keyspace}.events")
        table = Table(shop.table.cassandra, shop.table.keyspace)
        gate.open()
        sink.await_flushed(query, timeout=120)
    assert "was dropped and created again" in caplog.text
    assert table.ids() == list(range(ROWS))


def test_session_stopped_during_a_job_loses_no_row(
    table: Table, tmp_path: Path, gate: Gate
) -> None:
    """The driver writes the rows after `spark.stop()`."""
    gate.close()
    query = {
        "sink": "wal_sink",
        "source": write_source(tmp_path / "source", 2),
        "checkpoint": str(tmp_path / "checkpoint"),
        "options": GATED,
        **table.config,
    }
    settings = {"spark.master": "local[3]"}
    config = {"settings": settings, "queries": [query], "stop_while_gated": table.keyspace}
    output = Application(tmp_path, "tests.spark.app", config).finish()
    assert "the driver writes the rows" in output
    assert table.ids() == list(range(2 * 400))
