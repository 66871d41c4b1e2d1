"""wal_sink into Cassandra, by its public interface."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.contenders.contender import Contender
from tests.benchmarks.table import KEYSPACE, Table

DRAIN_S = 3_600
NAME = "wal_sink"


def writer(rows: DataFrame, table: Table) -> DataStreamWriter:
    """Return a writer to the table, without checkpoint and trigger."""
    return rows.writeStream.format("wal_sink").options(**options(table))


def options(table: Table) -> dict[str, str]:
    """Return the options of the sink."""
    return {
        "cassandra.contactPoints": table.server.host,
        "cassandra.port": str(table.server.port),
        "keyspace": KEYSPACE,
        "table": table.name,
    }


OURS = Contender(NAME, writer, flushes=True)
