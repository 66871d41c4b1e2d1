"""A streaming application to be killed: `python -m tests.spark.postgresql_app CONFIG.json`.

It reads one Parquet file of bookings in each epoch; one query adds each of them to a table without a key, the
other keeps the last one of each account. Where they stand still is the business of
`wal_sink.testing.crash`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import wal_sink
from wal_sink.testing.crash import PAUSING_POSTGRESQL, PausingDataSource
from wal_sink.testing.local_spark import local_session

SCHEMA = """
    account string, amount int, price decimal(12,2), at timestamp, day date, ratio double, flag boolean,
    code string, raw binary, tags array<string>, times array<timestamp>, attributes map<string,int>,
    place struct<x:double,y:array<int>>
"""
COLUMNS = """
    account text{key}, amount int NOT NULL, price numeric(12,2), at timestamptz, day date, ratio float8,
    flag boolean, code uuid, raw bytea, tags text[], times timestamptz[], attributes jsonb, place jsonb
"""
QUERIES = {"bookings": "append", "latest": "upsert"}


def main(config: dict[str, str]) -> None:
    """Run the queries to their end, or to the points where they wait to be killed."""
    spark = local_session(**{"spark.master": "local[3]"})
    with wal_sink.register(spark, drain_timeout=120):
        spark.dataSource.register(PausingDataSource)
        queries = [
            spark.readStream.schema(SCHEMA)
            .option("maxFilesPerTrigger", 1)
            .parquet(config["source"])
            .writeStream.format("wal_sink")
            .option("checkpointLocation", f"{config['folder']}/{table}")
            .option("target", PAUSING_POSTGRESQL)
            .option("postgresql.uri", config["uri"])
            .option("postgresql.mode", mode)
            .option("table", f"{config['schema']}.{table}")
            .trigger(availableNow=True)
            .start()
            for table, mode in QUERIES.items()
        ]
        for query in queries:
            query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
