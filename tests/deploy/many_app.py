"""Measures many queries in one driver: `python -m tests.deploy.many_app CONFIG.json`.

After all queries have flushed an epoch, it writes a line of JSON, and adds a file to the source.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

import wal_sink
from wal_sink.demo.local_spark import local_session

EPOCHS = 3
MEASURED = "measured"
"""Name of the file with the lines."""


def main(config: dict[str, Any]) -> None:
    """Run the queries to the last epoch."""
    folder = Path(config["folder"])
    checkpoints = [folder / f"checkpoint-{number}" for number in range(config["queries"])]
    spark = local_session(**{"spark.sql.shuffle.partitions": 1})
    with wal_sink.register(spark, drain_timeout=200), (folder / MEASURED).open("a") as file:
        queries = []
        for number, checkpoint in enumerate(checkpoints):
            rows = spark.readStream.load(
                config["source"], "parquet", "id bigint", maxFilesPerTrigger=1
            )
            queries.append(
                rows.selectExpr(f"{number} AS query", "id", "uuid() AS key")
                .writeStream.format("wal_sink")
                .options(**config["options"])
                .option("checkpointLocation", str(checkpoint))
                .start()
            )
        for epoch in range(EPOCHS):
            since_s = time.monotonic()
            while any(flushed(checkpoint) < epoch for checkpoint in checkpoints):
                time.sleep(0.2)
            seconds = time.monotonic() - since_s
            file.write(json.dumps(measure() | {"seconds": round(seconds)}) + "\n")
            if epoch + 1 < EPOCHS:
                data = Path(config["source"])
                shutil.copy(data / "0000.parquet", data / f"{epoch + 1:04}.parquet")
        for query in queries:
            query.stop()
    with (folder / MEASURED).open("a") as file:
        file.write(json.dumps(measure()) + "\n")


def flushed(checkpoint: Path) -> int:
    """Return the last flushed epoch; -1 for none."""
    try:
        return wal_sink.status(str(checkpoint)).flushed
    except wal_sink.WalSinkError:
        return -1


def measure() -> dict[str, int]:
    """Count threads, sockets and megabytes of this process.

    Threads of py4j, which have default names, do not count.
    """
    threads = [thread for thread in threading.enumerate() if not thread.name.startswith("Thread-")]
    sockets = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the descriptor of `iterdir` itself
            sockets += str(file.readlink()).startswith("socket:")
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    megabytes = pages * os.sysconf("SC_PAGE_SIZE") >> 20
    return {"threads": len(threads), "sockets": sockets, "megabytes": megabytes}


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
