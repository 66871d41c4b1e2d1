"""A SIGKILL under Spark's own Kafka sink and under wal_sink: Spark's records are doubled, ours are not.

Spark's source, which uses Java's consumer, reads the same with `read_committed`.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.spark.application import Application
from tests.spark.kafka_app import READ
from wal_sink.demo.kafka import Broker
from wal_sink.demo.pauses import Point

pytestmark = [
    pytest.mark.test_all,
    pytest.mark.spark,
    pytest.mark.slow_first,
    pytest.mark.timeout(900),
]

EPOCHS, ROWS = 2, 50
"""`ROWS` is for each of the two files of an epoch."""
KILLED = 0
"""The epoch in which the driver is killed. As the first epoch, it is also the first of its window."""
OURS: dict[str, Point] = {
    "published": "commit returned",
    "flushing": "flushing",
    "sent": "finishing",
}
"""Queries of wal_sink, and the point of each at the kill. Query `tasks` is at the point of Spark's sink."""


def write_source(folder: Path) -> list[str]:
    """Write the files of the source; return the keys of all rows."""
    folder.mkdir()
    keys = []
    for number in range(2 * EPOCHS):
        name = ("first", "second")[number % 2]
        new = [f"{name} of {number // 2}: {n}" for n in range(ROWS)]
        path = folder / f"{number}.parquet"
        pyarrow.parquet.write_table(pa.table({"key": new, "value": new}), path)
        os.utime(path, (number + 1, number + 1))  # the file source reads the oldest first
        keys += new
    return keys


def test_kill_doubles_only_records_of_sparks_own_sink(kafka: Broker, tmp_path: Path) -> None:
    """One task has sent its records, and another has not. After the kill, Spark runs the epoch again."""
    run = uuid.uuid4().hex[:8]
    sinks = {"spark": "kafka", "tasks": "wal_sink", **dict.fromkeys(OURS, "wal_sink")}
    topics = {name: f"{name}-{run}" for name in sinks}
    for topic in topics.values():
        kafka.create_topic(topic)
    keys = write_source(tmp_path / "source")
    config = {
        "servers": kafka.address,
        "topics": {topics[name]: sink for name, sink in sinks.items()},
        "folder": str(tmp_path),
        "source": str(tmp_path / "source"),
    }
    app = Application(tmp_path, "tests.spark.kafka_app", config)

    def committed(name: str) -> Counter[str]:
        return Counter((key or b"").decode() for key, _ in kafka.records(topics[name]))

    first_of_epoch = {key for key in keys if key.startswith(f"first of {KILLED}")}
    where = [app.pause(f"source of {topics[name]}", "write", KILLED) for name in ("spark", "tasks")]
    where += [app.pause(topics[name], point, KILLED) for name, point in OURS.items()]
    app.die(where, lambda: first_of_epoch <= committed("spark").keys())
    for name in ("tasks", *OURS):
        assert not committed(name)
    app.finish()
    read = json.loads((tmp_path / READ).read_text())
    for name in ("tasks", *OURS):
        by_spark, uncommitted = (Counter(records) for records in read[topics[name]])
        assert committed(name) == by_spark == Counter(keys), name
        assert (uncommitted > by_spark) == (name in {"flushing", "sent"}), (
            "records of an aborted transaction"
        )
    assert committed("spark") == Counter([*keys, *first_of_epoch])
