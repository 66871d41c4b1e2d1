"""Spark's offline state repartition: epochs that it makes or leaves out have no rows; each row comes once."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import wal_sink

pytestmark = [pytest.mark.test_all, pytest.mark.spark, pytest.mark.timeout(600)]

ROWS = 40
"""Of each micro-batch that reads something."""
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(autouse=True)
def _state_in_rocksdb(spark: SparkSession) -> Iterator[None]:
    """Take the one kind of state store that Spark repartitions."""
    spark.conf.set(_PROVIDER, _ROCKSDB)
    yield
    spark.conf.unset(_PROVIDER)


class Query:
    """Numbers without repetition, which is a state in each partition, into a table of SQLite."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark, self.checkpoint = spark, folder / "checkpoint"
        self._database = str(folder / "table.db")
        with sqlite3.connect(self._database) as connection:
            connection.execute("CREATE TABLE t (id INTEGER, key TEXT)")

    def run(self, times: int, *, flush: bool = True) -> None:
        """Start it so many times, each of which completes an epoch."""
        numbers = self._spark.readStream.format("rate-micro-batch")
        rows = numbers.option("rowsPerBatch", ROWS).load().dropDuplicates(["value"])
        with wal_sink.register(self._spark, flush=flush, drain_timeout=60):
            for _ in range(times):
                writer = rows.selectExpr("value AS id", "uuid() AS key").writeStream
                writer = writer.format("wal_sink").option("target", "sqlite_target:SqliteTarget")
                writer = writer.option("checkpointLocation", str(self.checkpoint))
                writer = writer.option("sqlite.path", self._database).option("table", "t")
                writer.trigger(availableNow=True).start().awaitTermination()

    def commits(self) -> int:
        """Return how many epochs are complete."""
        return 1 + max((int(path.name) for path in self._files("commits")), default=-1)

    def lose_the_last_commit(self) -> None:
        """Leave the checkpoint as a driver does that is killed after the sink's `commit()`."""
        last = max(self._files("commits"), key=lambda path: int(path.name))
        last.unlink()
        (last.parent / f".{last.name}.crc").unlink()

    def _files(self, folder: str) -> list[Path]:
        return [path for path in (self.checkpoint / folder).glob("*") if path.name.isdecimal()]

    def repartition(self, partitions: int, *, enforce: bool = True) -> None:
        """Let Spark do it."""
        self._spark._streamingCheckpointManager.repartition(
            str(self.checkpoint), partitions, enforce
        )

    def ids(self) -> list[int]:
        """What the table has."""
        with sqlite3.connect(self._database) as connection:
            found = connection.execute("SELECT id FROM t ORDER BY id").fetchall()
        return [number for (number,) in found]


def test_rows_come_once_before_and_after_repartitions(spark: SparkSession, tmp_path: Path) -> None:
    """Of a stopped query: to more partitions and to fewer; what was not flushed yet is flushed after them."""
    query = Query(spark, tmp_path)
    query.run(1)
    query.run(1, flush=False)
    query.repartition(5)
    query.run(1, flush=False)
    query.repartition(3)
    query.run(1)
    assert query.commits() > 5
    assert query.ids() == list(range((query.commits() - 2) * ROWS))


def test_rows_of_a_failed_epoch_that_is_left_out_come_once(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Its attempt was published; after the repartition Spark computes the rows again, in another epoch."""
    query = Query(spark, tmp_path)
    query.run(2, flush=False)
    query.lose_the_last_commit()
    left_out = query.commits()
    query.repartition(5, enforce=False)
    assert query.commits() == left_out + 2
    query.run(1)
    assert query.ids() == list(range((query.commits() - 2) * ROWS))
