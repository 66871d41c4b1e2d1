"""A streaming application to be killed: `python -m tests.deploy.keyed_app CONFIG.json`.

It reads a Parquet file in each micro-batch, adds a key by `uuid()`, and appends to a Delta table.

With `markers` in the configuration, some first attempts at tasks fail, and some are slow. A Python worker
then makes a file with its process id while it computes rows or writes rows of a flush job.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

import wal_sink
from wal_sink.demo.local_spark import local_session
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, Session
from wal_sink.targets.delta import DeltaTarget
from wal_sink.targets.delta.session import DeltaSession

STREAM, FLUSH = "stream", "flush"
MARKERS = "WAL_SINK_TEST_MARKERS"
"""The environment variable of Spark's workers with the folder of the files."""
_A_WHILE_S = 0.4


@contextlib.contextmanager
def marked(kind: str) -> Iterator[None]:
    """Make a file with the process id while the block runs."""
    file = Path(os.environ[MARKERS], f"{kind}-{os.getpid()}")
    file.touch()
    try:
        time.sleep(_A_WHILE_S)
        yield
    finally:
        file.unlink()


class SlowDelta(DeltaTarget):
    """A Delta target that writes each slice slowly."""

    def connect(self, query_id: str) -> Session:
        """Return a slow session."""
        return _SlowSession(self.options, query_id)


class _SlowSession(DeltaSession):
    def write(self, plan: Plan, rows: RowSlice) -> None:
        if not rows.batch.num_rows:  # a call without rows only announces other writers
            super().write(plan, rows)
            return
        with marked(FLUSH):
            super().write(plan, rows)


def compute(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows as they are. Fail in some first attempts at a task, and be slow in others."""
    task = TaskContext.get()
    assert task is not None
    epoch = int(task.getLocalProperty("streaming.sql.batchId") or 0)
    first = task.attemptNumber() == 0
    with marked(STREAM):
        for batch in batches:
            if first and (epoch + task.partitionId()) % 5 == 0:
                raise RuntimeError("the first attempt fails, as the test wants it")
            if first and (epoch + task.partitionId()) % 7 == 0:
                time.sleep(4)
            yield batch


def main(config: dict[str, Any]) -> None:
    """Run the query to the end of its source."""
    spark = local_session(**config["settings"])
    rows = spark.readStream.load(config["source"], "parquet", "id bigint", maxFilesPerTrigger=1)
    if markers := config.get("markers"):
        os.environ[MARKERS] = markers
        rows = rows.repartition(4).mapInArrow(compute, "id bigint")
    keyed = rows.selectExpr("id", "uuid() AS key")
    with wal_sink.register(spark, drain_timeout=240):
        writer = keyed.writeStream.format("wal_sink").options(**config["options"])
        writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
