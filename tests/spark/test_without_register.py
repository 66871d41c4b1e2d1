"""Queries of a session without `register`: they publish, and another process flushes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import wal_sink
from tests.spark.conftest import ROWS_PER_FILE, write_file, write_source
from tests.spark.tables import Table, options, start, stream
from tests.support.programs import ran
from wal_sink.spark.data_source import WalSinkDataSource

pytestmark = [pytest.mark.spark, pytest.mark.cassandra, pytest.mark.timeout(300)]


def by_format(session: SparkSession, source: str, table: Table, checkpoint: str) -> StreamingQuery:
    """Start a query by the format."""
    return start(stream(session, source), table, checkpoint)


def by_writer(session: SparkSession, source: str, table: Table, checkpoint: str) -> StreamingQuery:
    """Start a query by `batch_writer`."""
    writer = wal_sink.batch_writer(session, checkpointLocation=checkpoint, **options(table))
    query = stream(session, source).writeStream.foreachBatch(writer).trigger(availableNow=True)
    return query.option("checkpointLocation", checkpoint).start()


@pytest.mark.parametrize("begin", [by_format, by_writer])
def test_query_without_register_is_flushed_by_others(
    spark: SparkSession,
    table: Table,
    checkpoint: str,
    tmp_path: Path,
    begin: Callable[[SparkSession, str, Table, str], StreamingQuery],
) -> None:
    """`wal-sink flush` flushes it, and so does the next start under `register`."""
    source = write_source(tmp_path / "source", 2)
    spark.dataSource.register(WalSinkDataSource)
    begin(spark, source, table, checkpoint).awaitTermination()
    status = wal_sink.status(checkpoint)
    assert (status.checkpointed, status.published, status.flushed) == (1, 1, -1)
    assert f"wal-sink flush file://{checkpoint}" in str(status.remedy)
    assert table.ids() == []

    flushed = ran([str(Path(sys.executable).with_name("wal-sink")), "flush", checkpoint])
    assert flushed.returncode == 0, flushed.stderr
    assert table.ids() == list(range(2 * ROWS_PER_FILE))

    write_file(Path(source), 2)
    with wal_sink.register(spark):
        begin(spark, source, table, checkpoint).awaitTermination()
    assert table.ids() == list(range(3 * ROWS_PER_FILE))
