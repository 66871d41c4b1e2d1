"""Spark goes on while the container is dead, and the table is complete after it came back."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.driver import Driver
from tests.spark.tables import Table, wait_for
from wal_sink.testing.cassandra.container import CassandraContainer

pytestmark = [pytest.mark.docker, pytest.mark.cassandra, pytest.mark.spark]

FILES = 8


@pytest.mark.timeout(600)
def test_a_container_that_is_killed_and_comes_back(
    cassandra: CassandraContainer, keyspace: str, tmp_path: Path
) -> None:
    table = Table(cassandra, keyspace)
    checkpoint = str(tmp_path / "checkpoint")
    driver = Driver(
        tmp_path / "driver",
        sink="wal_sink",
        source=write_source(tmp_path / "source", FILES),
        checkpoint=checkpoint,
        **table.config,
    )
    try:
        wait_for(lambda: table.ids() != [], 120)
        cassandra.kill()
        before = wal_sink.status(checkpoint)
        assert before.flushed < FILES - 1, "it was killed in mid-stream"
        wait_for(lambda: wal_sink.status(checkpoint).checkpointed == FILES - 1, 120)
        time.sleep(2)  # now every attempt fails
        assert wal_sink.status(checkpoint).flushed < FILES - 1
        cassandra.start()
        driver.finish()
    finally:
        if driver.process.poll() is None:
            driver.kill()
        cassandra.start()
    assert wal_sink.status(checkpoint).flushed == FILES - 1
    assert table.ids() == list(range(FILES * ROWS_PER_FILE))
