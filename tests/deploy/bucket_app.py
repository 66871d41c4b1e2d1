"""A query with its checkpoint in a bucket, to be killed: `python -m tests.deploy.bucket_app CONFIG.json`.

It reads one file a micro-batch, gives each row a random key, and adds it to a Delta table.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import wal_sink
from wal_sink.demo.local_spark import local_session


def main(config: dict[str, Any]) -> None:
    """Run the query to its end."""
    spark = local_session(**config["settings"])
    rows = spark.readStream.load(config["source"], "parquet", "id bigint", maxFilesPerTrigger=1)
    with wal_sink.register(spark, drain_timeout=200):
        writer = rows.selectExpr("id", "uuid() AS key").writeStream.format("wal_sink")
        query = writer.options(**config["options"]).trigger(availableNow=True).start()
        query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
