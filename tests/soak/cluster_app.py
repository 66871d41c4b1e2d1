"""The application of the cluster's soak: `python -m tests.soak.cluster_app CONFIG.json`.

It writes the committed records of a topic to several targets. Each attempt computes other keys.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import wal_sink
from tests.soak.readers import BUCKET
from wal_sink.demo.local_spark import local_session

COLUMNS = (
    "CAST(CAST(value AS STRING) AS BIGINT) AS number",
    f"CAST(CAST(CAST(value AS STRING) AS BIGINT) DIV {BUCKET} AS INT) AS bucket",
    "uuid() AS key",
)

stopping = threading.Event()


def main(config: dict[str, Any]) -> None:
    """Run the query until SIGTERM, then end normally."""
    spark = local_session(**config["settings"])
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    records = spark.readStream.format("kafka").options(**config["source"]).load()
    with wal_sink.register(spark, drain_timeout=240):
        writer = records.selectExpr(*COLUMNS).writeStream.format("wal_sink")
        query = writer.options(**config["options"]).trigger(processingTime="1 second").start()
        while query.isActive and not stopping.wait(0.5):
            pass
        query.stop()
        query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
