"""A streaming application to be killed: `python -m tests.spark.changes_app CONFIG.json`.

The changes of `examples/changes.py`, a file each epoch, go into a table of Cassandra and into one of
PostgreSQL. Where they stand still is the business of `wal_sink.testing.crash`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import wal_sink
from changes import OPTIONS, changed_customers
from wal_sink.testing.crash import PAUSING_POSTGRESQL, PAUSING_TARGET, PausingDataSource
from wal_sink.testing.local_spark import local_session


def main(config: dict[str, str]) -> None:
    """Run the queries to their end, or to the points where they wait to be killed."""
    spark = local_session(**{"spark.master": "local[3]"})
    own = {
        "cassandra": {
            "target": PAUSING_TARGET,
            "cassandra.contactPoints": config["host"],
            "cassandra.port": config["port"],
            "keyspace": config["keyspace"],
            "table": "customers",
            **OPTIONS,
        },
        "postgresql": {
            "target": PAUSING_POSTGRESQL,
            "postgresql.uri": config["uri"],
            "postgresql.mode": "upsert",
            "table": config["table"],
            **{name: value for name, value in OPTIONS.items() if name != "cassandra.nulls"},
        },
    }
    with wal_sink.register(spark, drain_timeout=120):
        spark.dataSource.register(PausingDataSource)
        queries = [
            changed_customers(spark, config["topic"])
            .writeStream.format("wal_sink")
            .option("checkpointLocation", f"{config['folder']}/{name}")
            .options(**options)
            .trigger(availableNow=True)
            .start()
            for name, options in own.items()
        ]
        for query in queries:
            query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
