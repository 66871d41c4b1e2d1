"""A streaming application to be killed: `python -m tests.spark.killed_app CONFIG.json`.

Each of its queries reads one file of the folder `source` in each epoch. The application ends when everything
is flushed. Its last line has the database drivers that it has loaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import msgspec

import wal_sink
from wal_sink.demo.local_spark import local_session

DRIVERS = {"cassandra", "confluent_kafka", "deltalake", "psycopg", "sqlite3"}


class Config(msgspec.Struct, frozen=True):
    """The queries and their source."""

    folder: str
    format: str
    schema: str
    queries: dict[str, dict[str, str]]
    """The options of each query, by the name of its checkpoint."""


def main(config: Config) -> None:
    """Run the queries to their end, unless the process is killed."""
    spark = local_session(**{"spark.master": "local[4]"})  # a flush job needs slots of its own
    with wal_sink.register(spark, drain_timeout=120):
        queries = []
        for name, options in config.queries.items():
            source = spark.readStream.option("maxFilesPerTrigger", 1)
            rows = source.load(f"{config.folder}/source", config.format, config.schema)
            writer = rows.writeStream.format("wal_sink").options(**options)
            writer = writer.option("checkpointLocation", f"{config.folder}/{name}")
            queries.append(writer.trigger(availableNow=True).start())
        for query in queries:
            query.awaitTermination()
    print(json.dumps(sorted(DRIVERS & set(sys.modules))), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Config))
