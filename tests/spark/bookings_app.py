"""An application that adds rows to what has no key: `python -m tests.spark.bookings_app CONFIG.json`.

It reads one file of `source` in the folder in each epoch, and ends when it has read and flushed all. What the
configuration has beside the folder are options. Its last line says which drivers of databases it has loaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import wal_sink
from wal_sink.testing.local_spark import local_session

DRIVERS = {"cassandra", "confluent_kafka", "deltalake", "psycopg", "sqlite3"}


def main(folder: str, options: dict[str, str]) -> None:
    """Run it."""
    spark = local_session(**{"spark.master": "local[4]"})  # a flush job needs slots of its own
    with wal_sink.register(spark):
        rows = (
            spark.readStream.schema("account string, amount bigint")
            .option("maxFilesPerTrigger", 1)
            .json(f"{folder}/source")
        )
        query = (
            rows.writeStream.format("wal_sink")
            .option("checkpointLocation", f"{folder}/checkpoint")
            .options(**options)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print(json.dumps(sorted(DRIVERS & set(sys.modules))), flush=True)  # noqa: T201


if __name__ == "__main__":
    config = json.loads(Path(sys.argv[1]).read_text())
    main(config.pop("folder"), config)
