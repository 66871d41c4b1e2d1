"""A package is upgraded under a notebook: Spark's new workers have another version than the driver."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import wal_sink
from wal_sink.errors import OptionError
from wal_sink.targets import delta

pytestmark = pytest.mark.spark


def test_query_that_this_process_cannot_flush_is_refused(
    spark: SparkSession, tmp_path: Path, checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the query would run without a flusher, and the block would end without an error."""
    source, table = str(tmp_path / "source"), str(tmp_path / "table")
    spark.range(3).write.parquet(source)
    options = {"target": "delta", "delta.path": table, "createTable": "true"}

    def run() -> None:
        stream = spark.readStream.schema("id long").parquet(source)
        with wal_sink.register(spark):
            writer = stream.writeStream.format("wal_sink").trigger(availableNow=True)
            writer.options(checkpointLocation=checkpoint, **options).start().awaitTermination()

    with monkeypatch.context() as upgraded:
        upgraded.delattr(delta, "session", raising=False)
        upgraded.setitem(sys.modules, f"{delta.__name__}.session", None)
        with pytest.raises(OptionError, match=r"by this process(.|\n)*Start the process again"):
            run()
    run()
    assert DeltaTable(table).count() == 3
