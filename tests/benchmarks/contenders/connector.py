"""The Spark Cassandra Connector in `foreachBatch`."""

from __future__ import annotations

from collections.abc import Mapping

import tenacity
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.benchmarks.contenders.contender import Contender
from tests.benchmarks.table import KEYSPACE, Table

_FORMAT = "org.apache.spark.sql.cassandra"


def _connector(name: str, settings: Mapping[str, str]) -> Contender:
    """Return the connector's DataFrame writer with some of its options."""

    def writer(rows: DataFrame, table: Table) -> DataStreamWriter:
        options = {"keyspace": KEYSPACE, "table": table.name}
        _await_metadata(rows, options)

        def write(batch: DataFrame, _epoch: int) -> None:
            frame = batch.write.format(_FORMAT).mode("append")
            frame.options(**options, **settings).save()

        return rows.writeStream.foreachBatch(write)

    return Contender(name, writer)


def _await_metadata(rows: DataFrame, options: Mapping[str, str]) -> None:
    """Wait until the connector's session, which all runs share, has the metadata of a new table."""
    reader = rows.sparkSession.read.format(_FORMAT).options(**options)
    for attempt in tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Py4JJavaError),
        wait=tenacity.wait_fixed(0.5),
        stop=tenacity.stop_after_delay(60),
        reraise=True,
    ):
        with attempt:
            reader.load()


DEFAULTS = _connector("connector", {})
TUNED = _connector(
    "connector, one by one",
    {
        "spark.cassandra.output.batch.size.rows": "1",
        "spark.cassandra.output.concurrent.writes": "128",
    },
)
