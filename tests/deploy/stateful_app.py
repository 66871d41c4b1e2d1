"""Stateful queries in one session, to be killed: `python -m tests.deploy.stateful_app CONFIG.json`.

All queries read the same files, one in each micro-batch. Each query adds its rows, with a random key, to its
own table.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 -- as everyone calls it
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import wal_sink
from wal_sink.demo.local_spark import local_session

KINDS = ("window", "join", "duplicates", "state", "transform")
GROUPS = 3
ROCKSDB = {
    "providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "rocksdb.changelogCheckpointing.enabled": "true",
}


def main(folder: Path) -> None:
    """Run the queries to the end of their sources."""
    spark = local_session(**{"spark.master": "local[3]"})
    with wal_sink.register(spark, drain_timeout=200):
        started = []
        for kind, rows in queries(spark, folder).items():
            if kind == "transform":  # the default state store refuses this query
                for setting, value in ROCKSDB.items():
                    spark.conf.set(f"spark.sql.streaming.stateStore.{setting}", value)
            started.append(
                rows.withColumn("key", F.expr("uuid()"))
                .writeStream.format("wal_sink")
                .option("checkpointLocation", f"{folder}/checkpoint-{kind}")
                .option("target", "sqlite_target:SqliteTarget")
                .option("sqlite.path", database(folder, kind))
                .option("table", "t")
                .trigger(availableNow=True)
                .start()
            )
        for query in started:
            query.awaitTermination()


def database(folder: Path, kind: str) -> str:
    """Return the file with a query's table."""
    return str(folder / f"{kind}.db")


def make_tables(folder: Path) -> None:
    """Make a table for each query."""
    for kind in KINDS:
        with sqlite3.connect(database(folder, kind)) as connection:
            connection.execute("CREATE TABLE t (a INTEGER, b INTEGER, key TEXT)")


def queries(spark: SparkSession, folder: Path) -> dict[str, DataFrame]:
    """Return the queries by name. Each one has the columns a and b."""

    def read() -> DataFrame:
        schema = "id bigint, at timestamp"
        rows = spark.readStream.load(f"{folder}/source", "parquet", schema, maxFilesPerTrigger=1)
        return rows.withWatermark("at", "1 second")

    minutes = F.expr("CAST(unix_timestamp(window.start) AS bigint)").alias("a")
    counts = read().groupBy(F.window("at", "1 minute")).agg(F.count("*").alias("b"))
    remaining, right = read().alias("l"), read().alias("r")
    both = remaining.join(right, F.expr("l.id = r.id AND l.at = r.at"))
    once = read().dropDuplicates(["id", "at"])
    grouped = read().selectExpr(f"id % {GROUPS} AS a").groupBy("a")
    totals = grouped.applyInPandasWithState(
        total, "a bigint, b bigint", "total bigint", "append", GroupStateTimeout.NoTimeout
    )
    return {
        "window": counts.select(minutes, "b"),
        "join": both.selectExpr("l.id AS a", "r.id AS b"),
        "duplicates": once.selectExpr("id AS a", "id AS b"),
        "state": totals,
        "transform": grouped.transformWithStateInPandas(
            Totals(), "a bigint, b bigint", outputMode="append", timeMode="None"
        ),
    }


def total(
    key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    """Return the number of rows that a group has so far."""
    earlier = state.get[0] if state.exists else 0
    now = earlier + sum(len(frame) for frame in frames)
    state.update((now,))
    yield pd.DataFrame({"a": [key[0]], "b": [now]})


class Totals(StatefulProcessor):
    """Counts the rows of a group as `total` does, with state in RocksDB."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """See `StatefulProcessor`."""
        self._total = handle.getValueState("total", "total bigint")

    def handleInputRows(  # noqa: N802 -- Spark's name
        self,
        key: tuple[Any, ...],
        rows: Iterator[pd.DataFrame],
        timerValues: object,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """See `StatefulProcessor`."""
        state = self._total.get()
        earlier = state[0] if state else 0
        now = earlier + sum(len(frame) for frame in rows)
        self._total.update((now,))
        yield pd.DataFrame({"a": [key[0]], "b": [now]})

    def close(self) -> None:
        """See `StatefulProcessor`."""


if __name__ == "__main__":
    main(Path(json.loads(Path(sys.argv[1]).read_text())["folder"]))
