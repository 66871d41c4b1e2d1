"""A real query whose log is in S3. Spark needs nothing for that: its checkpoint is a folder here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import wal_sink
from state_backends import S3Backend
from tests.protocol import raw
from tests.spark.conftest import ROWS_PER_FILE, write_source
from tests.spark.tables import Table, start, stream
from tests.support.s3 import S3
from wal_sink.demo.servers.cassandra import EmbeddedCassandra

pytestmark = [pytest.mark.spark, pytest.mark.cassandra]


@pytest.fixture
def table(cassandra: EmbeddedCassandra, keyspace: str) -> Table:
    return Table(cassandra, keyspace)


def test_log_in_s3(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path, s3: S3
) -> None:
    """Two runs of one query: each row is there once, the log is trimmed, and no key is in it."""
    bucket = s3.bucket()
    options = {
        "wal.location": f"{bucket}/logs",
        "wal.storageOptions": json.dumps(s3.options),
        "wal.retention": "0",
    }
    for more in (2, 1):
        source = write_source(tmp_path / f"source-{more}", more)
        for file in Path(source).iterdir():
            (tmp_path / "source").mkdir(exist_ok=True)
            file.rename(tmp_path / "source" / f"{more}-{file.name}")
        with wal_sink.register(spark):
            query = start(stream(spark, str(tmp_path / "source")), table, checkpoint, **options)
            query.awaitTermination()
    assert table.ids() == sorted([*range(2 * ROWS_PER_FILE), *range(ROWS_PER_FILE)])

    progress = wal_sink.status(checkpoint, storage_options=s3.options)
    assert (progress.checkpointed, progress.flushed, progress.safe_to_delete) == (2, 2, True)
    assert progress.log == f"{bucket}/logs/{progress.query_id}"
    assert wal_sink.await_flushed(checkpoint, 0, storage_options=s3.options).epoch == 2
    log = S3Backend(progress.log, s3.options)
    assert log.list("segments/") == log.list("manifests/") == []
    assert len(raw.state(log)["opened"]) == 2
    for path in log.list():
        assert b"Geheim" not in log.read(path), path


def test_store_unfit_for_the_log_stops_the_start(
    spark: SparkSession, table: Table, checkpoint: str, tmp_path: Path, s3: S3
) -> None:
    """Before the first row, with what to do, and without the key."""
    source = write_source(tmp_path / "source", 1)
    place = {
        "wal.location": s3.bucket("careless"),
        "wal.storageOptions": json.dumps(s3.options),
    }
    with wal_sink.register(spark):
        query = start(stream(spark, source), table, checkpoint, **place)
        with pytest.raises(StreamingQueryException, match="If-None-Match") as caught:
            query.awaitTermination()
    assert "Geheim" not in str(caught.value)
    assert table.ids() == []
