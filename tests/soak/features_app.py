"""The application of the soak of features: `python -m tests.soak.features_app CONFIG.json`.

The query is not deterministic: each start writes another word, and a shuffle changes the order of the rows.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import functions

import wal_sink
from tests.soak.changes import SCHEMA
from wal_sink.demo.local_spark import local_session

COLUMNS = (
    "amount decimal, points varint, device uuid, city text, seq bigint, attempt text, epoch bigint"
)
TABLE = (
    f"CREATE TABLE {{}}.customers (day int, customer_id int, note text, {COLUMNS},"
    " PRIMARY KEY (day, customer_id))"
)
GROWTH = (
    "ALTER TABLE {}.customers ADD tag text",
    "CREATE INDEX notes ON {}.customers (note)",
)
"""Statements that change the table while the query runs; the DataFrame has the column after a restart."""


def main(config: dict[str, Any]) -> None:
    """Run the query, if it is the last time to the end of its source."""
    spark = local_session(
        **{
            "spark.master": "local[3,4]",  # a task may fail three times, since workers are killed
            "spark.sql.session.timeZone": "UTC",
        }
    )
    changes = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", 100)
        .parquet(config["source"])
        .repartition(2)
        .withColumn("attempt", functions.lit(uuid.uuid4().hex))
    )
    rows = changes if config["grown"] else changes.drop("tag")
    trigger = {"availableNow": True} if config["last"] else {"processingTime": "200 milliseconds"}
    with wal_sink.register(spark, drain_timeout=300):
        writer = wal_sink.batch_writer(
            spark,
            checkpointLocation=config["checkpoint"],
            keyspace=config["keyspace"],
            table="customers",
            operationColumn="op",
            operations=json.dumps({"U": "upsert", "D": "delete"}),
            epochColumn="epoch",
            onInvalidRow="quarantine",
            **{
                "cassandra.contactPoints": "127.0.0.1",
                "cassandra.port": config["port"],
                "cassandra.columns": json.dumps({"customerId": "customer_id"}),
                "cassandra.expiresAtColumn": "expires",
                "cassandra.writeMode": "update",
                "flush.distributedAboveBytes": 30_000,
                "wal.retention": 86_400,  # the checker reads the log
            },
        )
        query = (
            rows.writeStream.outputMode("update")
            .foreachBatch(writer)
            .option("checkpointLocation", config["checkpoint"])
            .trigger(**trigger)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
