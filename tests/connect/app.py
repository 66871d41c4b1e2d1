"""A Connect client to be killed: `python -m tests.connect.app CONFIG.json`; and what a test has of its query.

Each query streams Parquet files, one a micro-batch, into a table of a SQLite file. Each row has a `uuid()`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.connect.session import SparkSession

import wal_sink
from tests.spark.conftest import write_source
from wal_sink.demo.pauses import PausingConnectDataSource

KIND = "sqlite_target:SqliteTarget"
ROOT = Path(__file__).parents[2]
SCHEMA = "id bigint, text string"


def environment() -> dict[str, str]:
    """Return the variables by which a server, a client and a command find this code and the target."""
    path = [str(ROOT), str(ROOT / "examples"), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(path)}


class Shop:
    """A source of files, a table, and a checkpoint, in a folder.

    :param files: number of files of the source; each is a micro-batch of 400 rows.
    """

    def __init__(self, folder: Path, files: int) -> None:
        self.folder = folder
        self.rows = files * 400
        self.source = write_source(folder / "source", files)
        with sqlite3.connect(folder / "shop.db") as connection:
            connection.execute("CREATE TABLE orders (key TEXT, id INTEGER, text TEXT)")
        connection.close()

    @property
    def checkpoint(self) -> str:
        """The location of the query's checkpoint."""
        return str(self.folder / "checkpoint")

    @property
    def options(self) -> dict[str, str]:
        """The options of the query."""
        return {
            "checkpointLocation": self.checkpoint,
            "target": KIND,
            "sqlite.path": str(self.folder / "shop.db"),
            "table": "orders",
        }

    def ids(self) -> list[int]:
        """Return the ids of all rows, sorted, with repetitions."""
        with sqlite3.connect(self.folder / "shop.db") as connection:
            rows = connection.execute("SELECT id FROM orders ORDER BY id").fetchall()
        connection.close()
        return [row[0] for row in rows]

    def config(self, remote: str, **more: Any) -> Path:
        """Write the configuration of a client; return the file."""
        file = self.folder / "config.json"
        file.write_text(
            json.dumps({"remote": remote, "source": self.source, "options": self.options, **more})
        )
        return file


def session(remote: str) -> Any:
    """Return a new Connect session, also in a process that has a classic one."""
    return SparkSession.builder.remote(remote).create()


def writer(spark: Any, source: str, options: Mapping[str, str]) -> Any:
    """Return the writer of the query."""
    stream = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(source)
    rows = stream.selectExpr("uuid() AS key", "id", "text")
    return rows.writeStream.format("wal_sink").options(**options)


def main(config: dict[str, Any]) -> None:
    """Run the query to its end, or to the point where the server is killed."""
    spark = session(config["remote"])
    with wal_sink.register(spark) as sink:
        spark.dataSource.register(PausingConnectDataSource)
        if config.get("follow"):
            sink.follow(config["options"]["checkpointLocation"], options={"target": KIND})
        query = writer(spark, config["source"], config["options"])
        query.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
