"""An application that adds rows to a SQLite table without a key: `python -m tests.spark.adding_app FOLDER`.

It reads one file of `FOLDER/source` in each epoch, and ends when it has read and flushed all. Its last line
says which drivers of databases it has loaded.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import wal_sink
from wal_sink.testing.local_spark import local_session


def main(folder: Path) -> None:
    """Run it."""
    spark = local_session()
    with wal_sink.register(spark):
        query = (
            spark.readStream.schema("account string, amount bigint")
            .option("maxFilesPerTrigger", 1)
            .json(str(folder / "source"))
            .writeStream.format("wal_sink")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .option("target", "sqlite_target:SqliteTarget")
            .option("sqlite.path", str(folder / "bank.db"))
            .option("table", "bookings")
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    drivers = {"cassandra", "sqlite3"} & set(sys.modules)
    print(json.dumps(sorted(drivers)), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]))
