"""Queries that request a layout by the writer, as for files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from wal_sink.errors import OptionError
from wal_sink.spark.data_source import WalSinkDataSource

pytestmark = pytest.mark.spark


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """Return a stream of two rows."""
    source = str(tmp_path / "source")
    spark.sql("SELECT id, 'monday' AS day FROM range(2)").write.parquet(source)
    return spark.readStream.schema("id bigint, day string").parquet(source)


def options(place: Path, **more: str) -> dict[str, str]:
    """Return the options of a query that creates its table beside its checkpoint."""
    table = {"target": "delta", "delta.path": str(place / "table"), "createTable": "true"}
    return {"checkpointLocation": str(place / "checkpoint"), **table, **more}


def writer(rows: DataFrame, options: dict[str, str], *, by_format: bool) -> DataStreamWriter:
    """Return the writer of a job, by the format or by foreachBatch."""
    made = rows.writeStream.trigger(availableNow=True).options(**options)
    if by_format:
        return made.format("wal_sink")
    return made.foreachBatch(wal_sink.batch_writer(rows.sparkSession, **options))


@pytest.mark.parametrize("by_format", [True, False])
def test_cluster_by_of_the_writer_is_refused(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, *, by_format: bool
) -> None:
    """Another test has `partitionBy`, which Spark itself refuses for foreachBatch."""
    job = writer(rows, options(tmp_path), by_format=by_format)
    with (
        pytest.raises(OptionError, match=r"clusterBy\(day\)(.|\n)*Leave out"),
        wal_sink.register(spark),
    ):
        job.clusterBy("day").start().awaitTermination()
    assert not (tmp_path / "table").exists()


def test_option_named_by_the_refusal_partitions_the_table(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    settings = options(tmp_path, partitionColumns="day")
    with wal_sink.register(spark):
        writer(rows, settings, by_format=True).start().awaitTermination()
    table = DeltaTable(str(tmp_path / "table"))
    assert table.metadata().partition_columns == ["day"]
    assert table.count() == 2


def test_partitioned_query_started_beside_another_is_refused(
    spark: SparkSession, rows: DataFrame, tmp_path: Path
) -> None:
    """Each query starts in a thread of its own."""
    started = threading.Barrier(2)
    jobs = [
        writer(rows, options(tmp_path / "plain"), by_format=True),
        writer(rows, options(tmp_path / "asked"), by_format=True).partitionBy("day"),
    ]

    def start(job: DataStreamWriter) -> StreamingQuery:
        spark.createDataFrame([], "id int")  # otherwise Spark finds no format in a new thread
        started.wait()
        return job.start()

    sink = wal_sink.register(spark)
    with ThreadPoolExecutor(2) as threads:
        plain, asked = threads.map(start, jobs)
    plain.awaitTermination()
    assert sink.await_flushed(plain).epoch == 0
    with pytest.raises(OptionError, match=rf"{asked.id}(.|\n)*partitionBy\(day\)"):
        sink.close()
    assert DeltaTable(str(tmp_path / "plain" / "table")).count() == 2


class Gate(StreamingQueryListener):
    """Keeps a query in `start()` until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.opened = threading.Event(), threading.Event()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802 - Spark's name
        if event.name == "files":
            self.reached.set()
            assert self.opened.wait(60)

    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...  # noqa: N802 - Spark's name

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...  # noqa: N802 - Spark's name


@pytest.fixture
def gate(spark: SparkSession) -> Iterator[Gate]:
    """A listener that keeps the query `files` in `start()`."""
    listener = Gate()
    spark.streams.addListener(listener)
    yield listener
    listener.opened.set()
    spark.streams.removeListener(listener)


def test_layout_of_another_starting_query_is_not_refused(
    spark: SparkSession, rows: DataFrame, tmp_path: Path, gate: Gate
) -> None:
    """The handle finds a running query while another thread starts a query that writes files."""
    spark.dataSource.register(WalSinkDataSource)
    ours = writer(rows, options(tmp_path / "ours"), by_format=True)
    running = ours.trigger(processingTime="1 second").start()
    running.processAllAvailable()
    files = rows.writeStream.partitionBy("day").queryName("files").format("parquet")
    files = files.option("checkpointLocation", str(tmp_path / "files_checkpoint"))
    with ThreadPoolExecutor(1) as threads:
        starting = threads.submit(files.start, str(tmp_path / "files"))
        assert gate.reached.wait(60)
        sink = wal_sink.register(spark)
        assert sink.await_flushed(running).epoch >= 0
        gate.opened.set()
        starting.result().stop()
    running.stop()
    sink.close()
