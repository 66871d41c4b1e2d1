"""Queries that request a layout by the writer, as for files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

import wal_sink
from wal_sink.errors import OptionError

pytestmark = pytest.mark.spark


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> DataStreamWriter:
    """Return the writer of two rows; the query creates its table beside its checkpoint."""
    source = str(tmp_path / "source")
    spark.sql("SELECT id, 'monday' AS day FROM range(2)").write.parquet(source)
    rows = spark.readStream.schema("id bigint, day string").parquet(source)
    places = {"checkpointLocation": tmp_path / "checkpoint", "delta.path": tmp_path / "table"}
    job = rows.writeStream.trigger(availableNow=True).format("wal_sink")
    job = job.options(target="delta", createTable="true")
    return job.options(**{name: str(place) for name, place in places.items()})


@pytest.mark.parametrize(
    ("start", "refusal"),
    [
        (lambda job: job.partitionBy("day").start(), r"partitionBy\(day\)(.|\n)*partitionColumns"),
        (lambda job: job.format("Wal_Sink").start(partitionBy="day"), r"partitionBy\(day\)"),
        (
            lambda job: job.format("x").start(format="wal_sink", partitionBy=["id", "day"]),
            "id, day",
        ),
        (lambda job: job.format("x").start(None, "wal_sink", None, "day"), r"partitionBy\(day\)"),
        (lambda job: job.clusterBy("day").toTable("days"), r"clusterBy\(day\)(.|\n)*Leave out"),
    ],
)
def test_layout_of_the_writer_is_refused_before_the_start(
    spark: SparkSession,
    job: DataStreamWriter,
    tmp_path: Path,
    start: Callable[[DataStreamWriter], Any],
    refusal: str,
) -> None:
    with wal_sink.register(spark), pytest.raises(OptionError, match=refusal):
        start(job)
    assert not (tmp_path / "checkpoint").exists()


def test_option_named_by_the_refusal_partitions_the_table(
    spark: SparkSession, job: DataStreamWriter, tmp_path: Path
) -> None:
    with wal_sink.register(spark):
        job.option("partitionColumns", "day").start().awaitTermination()
    table = DeltaTable(str(tmp_path / "table"))
    assert table.metadata().partition_columns == ["day"]
    assert table.count() == 2


def test_query_of_another_format_may_have_a_layout(
    spark: SparkSession, job: DataStreamWriter, tmp_path: Path
) -> None:
    wal_sink.register(spark).close()
    files = job.format("parquet").start(str(tmp_path / "files"), partitionBy="day")
    files.awaitTermination()
    assert (tmp_path / "files" / "day=monday").exists()
