"""Settings with which Spark ends its own Python workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import wal_sink

SETTINGS = {
    "idle": {
        "spark.sql.execution.pyspark.udf.idleTimeoutSeconds": "2",
        "spark.sql.execution.pyspark.udf.killOnIdleTimeout": "true",
    },
    "memory": {"spark.sql.planner.pythonExecution.memory": "512m"},
}


@pytest.fixture
def limited(spark: SparkSession, setting: str) -> Iterator[SparkSession]:
    """Set the limit in the session for one test."""
    for key, value in SETTINGS[setting].items():
        spark.conf.set(key, value)
    yield spark
    for key in SETTINGS[setting]:
        spark.conf.unset(key)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("setting", "named"),
    [
        pytest.param("idle", "killOnIdleTimeout", marks=pytest.mark.test_all),
        ("memory", "spark.sql.planner.pythonExecution.memory"),
    ],
)
def test_error_names_the_setting_that_ended_a_worker(
    limited: SparkSession,
    tmp_path: Path,
    checkpoint: str,
    caplog: pytest.LogCaptureFixture,
    setting: str,
    named: str,
) -> None:
    """A commit that waits for space is idle for Spark. A planner without memory cannot start a thread."""
    source = str(tmp_path / "source")
    for _ in range(2):
        limited.range(1000).coalesce(1).write.mode("append").parquet(source)
    stream = limited.readStream.schema("id bigint").option("maxFilesPerTrigger", 1).parquet(source)
    options = {
        "checkpointLocation": checkpoint,
        "wal.maxBytes": "1000",
        "target": "delta",
        "delta.path": str(tmp_path / "table"),
        "createTable": "true",
    }
    sink = wal_sink.register(limited, flush=False)
    query = (
        stream.writeStream.format("wal_sink").options(**options).trigger(availableNow=True).start()
    )
    with pytest.raises(PySparkException):
        query.awaitTermination()
    failure = sink.failure(query)
    assert failure is not None
    assert named in str(failure)
    warnings = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert sum("killOnIdleTimeout is true" in text for text in warnings) == (setting == "idle")
    sink.close()
