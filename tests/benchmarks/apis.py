"""Compares the CPU of the two APIs: `python -m tests.benchmarks.apis [ROUNDS]`.

In one session the same files go to the log by `format("wal_sink")` and by `batch_writer`, in turn; nothing is
flushed. Seconds of CPU are those of the driver, the JVM and all Python workers together.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import statistics
import sys
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

import wal_sink
from tests.benchmarks.cpu import of_tree
from tests.spark.conftest import write_source
from wal_sink.testing.local_spark import local_session

SIZES = {"small": (30, 100), "large": (4, 250_000)}
"""Micro-batches, and rows in each."""
EXAMPLES = Path(__file__).parents[2] / "examples"
"""Where the target is; nothing is written to it."""

APIS = ("format", "batch_writer")


def main(rounds: int) -> None:
    """Print the median seconds of each API and size, and their ratio."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    sys.path.append(str(EXAMPLES))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    spark = local_session(**{"spark.master": "local[2]"})
    with tempfile.TemporaryDirectory() as place, wal_sink.register(spark, flush=False):
        folder = Path(place)
        database = str(folder / "database")
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE t (id INTEGER, text TEXT)")
        for size, (files, rows) in SIZES.items():
            source = write_source(folder / size, files, rows)
            seconds: dict[str, list[float]] = {api: [] for api in APIS}
            for number in range(rounds + 1):  # the first one warms up
                for api in APIS:
                    before = of_tree(os.getpid())
                    run(spark, source, api, str(folder / f"{size}-{api}-{number}"), database)
                    seconds[api].append((of_tree(os.getpid()) - before) / files)
            one, other = (statistics.median(seconds[api][1:]) for api in APIS)
            ratios = [b / a for a, b in zip(*(seconds[api][1:] for api in APIS), strict=True)]
            Console(soft_wrap=True).print(
                f"{size}: {rows:,} rows a micro-batch: format {one:.3f} s, batch_writer {other:.3f} s of CPU"
                f" each; ratio {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            )


def run(spark: SparkSession, source: str, api: str, checkpoint: str, database: str) -> None:
    """Let all files go to the log, one a micro-batch."""
    read = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 1)
    rows: DataFrame = read.parquet(source)
    options = {"target": "sqlite_target:SqliteTarget", "table": "t", "sqlite.path": database}
    writer = rows.writeStream.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    if api == "format":
        writer = writer.format("wal_sink").options(**options)
    else:
        write = wal_sink.batch_writer(spark, checkpointLocation=checkpoint, **options)
        writer = writer.foreachBatch(write)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 5)
