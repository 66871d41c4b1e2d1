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
from wal_sink.targets.registry import target_type

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("module", "refusal"),
    [
        (f"{delta.__name__}.session", r"by this process(.|\n)*Start the process again"),
        (delta.__name__, r"delta, but .* cannot be imported"),
    ],
)
def test_query_that_this_process_cannot_flush_is_refused(
    spark: SparkSession,
    tmp_path: Path,
    checkpoint: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    refusal: str,
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
        upgraded.setitem(sys.modules, module, None)
        target_type.cache_clear()
        with pytest.raises(OptionError, match=refusal):
            run()
        assert [record.levelname for record in caplog.records].count("ERROR") == 1
    target_type.cache_clear()
    run()
    assert DeltaTable(table).count() == 3
