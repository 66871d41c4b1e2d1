"""Tables that the tests write to, their rows, and the queries that write them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.support.cassandra import raw_options
from wal_sink.demo.cassandra import Node
from wal_sink.model.state import State
from wal_sink.wal.location import locate
from wal_sink.wal.store import newest


class Table:
    """A table whose key is a `uuid()` of the query, so that rows of two attempts have different keys."""

    def __init__(self, cassandra: Node, keyspace: str, name: str = "events") -> None:
        self.cassandra, self.keyspace, self.name = cassandra, keyspace, name
        cassandra.execute(
            f"CREATE TABLE {keyspace}.{name} (key uuid PRIMARY KEY, id bigint, text text)"
        )

    def ids(self) -> list[int]:
        """Return the ids of all rows, sorted, with repetitions."""
        rows = self.cassandra.execute(f"SELECT id FROM {self.keyspace}.{self.name}")
        return sorted(row.id for row in rows)

    def assert_no_gap(self) -> int:
        """Assert that the ids of the rows are from 0, without a gap or a repetition; return their number."""
        ids = self.ids()
        assert ids
        assert ids == list(range(len(ids)))
        return len(ids)

    @property
    def config(self) -> dict[str, Any]:
        """The part of a configuration of `tests.spark.app` that names the table."""
        return {"port": self.cassandra.port, "keyspace": self.keyspace, "table": self.name}


def stream(spark: SparkSession, source: str) -> DataFrame:
    """Stream Parquet files, one a micro-batch; each computation of a row has another key."""
    reader = spark.readStream.schema("id bigint, text string").option("maxFilesPerTrigger", 1)
    return reader.parquet(source).selectExpr("uuid() AS key", "id", "text")


def options(table: Table) -> dict[str, str]:
    """Return the options that name a table."""
    return raw_options(table.cassandra, table.keyspace, table.name)


def numbers(spark: SparkSession) -> DataFrame:
    """Stream rows without an end, five a micro-batch; ids count from 0 without a gap."""
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    return rate.selectExpr("uuid() AS key", "value AS id", "'x' AS text")


def writer(rows: DataFrame, table: Table, checkpoint: str, /, **more: object) -> DataStreamWriter:
    """Return the writer of a query that runs until it is stopped."""
    writer = rows.writeStream.format("wal_sink").option("checkpointLocation", checkpoint)
    writer = writer.options(**options(table))
    for name, value in more.items():
        writer = writer.option(name, str(value))
    return writer


def last_commit(checkpoint: str) -> int:
    """Return the highest checkpointed epoch."""
    return locate(checkpoint).open_checkpoint().last_commit()


def state_of(checkpoint: str, wal: str | None = None) -> State:
    """Return the newest state of a query's log."""
    location = locate(checkpoint, wal)
    state = newest(location.open_log(location.open_checkpoint().query_id()))
    assert state is not None
    return state
