"""The application of the soak: `python -m tests.soak.app CONFIG.json`.

Stateful and not deterministic: windows with a watermark, keyed by `uuid()`, and a word that each start of
the application makes up, so that rows of two attempts can be told apart.
"""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import functions

import wal_sink
from tests.soak.feed import SCHEMA
from wal_sink.testing.local_spark import local_session

TABLE = """
CREATE TABLE {}.windows (
    key uuid PRIMARY KEY, opened timestamp, device int, events bigint, total bigint,
    attempt text, epoch bigint
)
"""


def main(config: dict[str, Any]) -> None:
    """Run the query, to the end of its source if it is the last time."""
    retrying = "local[2,4]"  # a task whose worker is killed is tried again
    spark = local_session(**{"spark.master": retrying, "spark.sql.session.timeZone": "UTC"})
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 5)
    key = "if(device % 7 = 3, CAST(NULL AS STRING), uuid())" if config.get("poison") else "uuid()"
    windows = (
        events.parquet(config["source"])
        .withWatermark("at", "30 seconds")
        .groupBy(functions.window("at", "1 minute").alias("window"), "device")
        .agg(functions.count("*").alias("events"), functions.sum("value").alias("total"))
        .selectExpr(f"{key} AS key", "window.start AS opened", "device", "events", "total")
        .withColumn("attempt", functions.lit(uuid.uuid4().hex))
    )
    # At "0 seconds" Spark does not wait by the wall clock, which may be set back by years meanwhile.
    every = "0 seconds" if config.get("hostile") else "200 milliseconds"
    trigger = {"availableNow": True} if config["last"] else {"processingTime": every}
    with wal_sink.register(spark, drain_timeout=300):
        query = (
            windows.writeStream.format("wal_sink")
            .option("checkpointLocation", config["checkpoint"])
            .option("cassandra.contactPoints", "127.0.0.1")
            .option("cassandra.port", config["port"])
            .option("keyspace", config["keyspace"])
            .option("table", "windows")
            .option("epochColumn", "epoch")
            .trigger(**trigger)
            .start()
        )
        query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
