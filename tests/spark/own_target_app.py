"""A streaming application to be killed: `python -m tests.spark.own_target_app CONFIG.json`.

It reads one Parquet file of numbers in each epoch, and adds them, each with a random text, to a table of the
target of one's own in `examples/sqlite_target.py`. `wal_sink.testing.crash` says
where it stands still.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import functions as F  # noqa: N812 -- as everyone calls it

import wal_sink
from sqlite_target import SqliteTarget
from wal_sink.testing.crash import Pausing, PausingDataSource
from wal_sink.testing.local_spark import local_session


class PausingSqlite(Pausing, SqliteTarget):
    """SQLite."""


def main(folder: str) -> None:
    """Run the query to its end, or to the point where it waits to be killed."""
    spark = local_session()
    rows = spark.readStream.load(f"{folder}/source", "parquet", "id bigint", maxFilesPerTrigger=1)
    with wal_sink.register(spark):
        spark.dataSource.register(PausingDataSource)
        writer = rows.withColumn("attempt", F.expr("uuid()")).writeStream.format("wal_sink")
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        writer = writer.option("target", "tests.spark.own_target_app:PausingSqlite")
        writer = writer.option("sqlite.path", f"{folder}/shop.db").option("table", "t")
        writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text())["folder"])
