"""The demo's Kafka: a broker in a child process; the control is a plain producer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pyspark.sql import DataFrame, Row

from wal_sink.demo.crash import PAUSING_KAFKA
from wal_sink.demo.queries import QUERIES, Query
from wal_sink.demo.servers.kafka import Broker
from wal_sink.demo.stores import Half, RowStore


class Kafka(RowStore):
    """A row is a record, as JSON; one that is sent twice is there twice."""

    target = "kafka"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, say: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - Cassandra's
        """Start a broker, in a folder of its own that goes with it."""
        broker = Broker()
        say(f"Starting {broker.title}; the first time its jars are downloaded …")
        with broker:
            yield cls(broker.address, broker, broker.title)

    def create(self) -> None:
        """Make the topics."""
        for query in QUERIES:
            self.server.create_topic(query.table)

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options for one topic."""
        return {"target": PAUSING_KAFKA, "kafka.bootstrap.servers": self.address, "topic": table}

    def written(self, rows: DataFrame) -> DataFrame:
        """Return each row as one value."""
        return rows.selectExpr("to_json(struct(*)) AS value")

    def insert(self, table: str, rows: Sequence[Row], half: Half) -> None:
        """Produce the records; consumers read what is acknowledged, be the batch committed or not."""
        from confluent_kafka import Producer  # noqa: PLC0415 - in tasks only

        producer = Producer({"bootstrap.servers": self.address})
        for number, row in enumerate(rows):
            if number == len(rows) // 2:
                producer.flush()
                half()
            producer.produce(table, row.value)
        producer.flush()

    def count(self, table: str) -> int:
        """Count the records of a topic, as a reader of what is committed sees them."""
        return len(self.server.records(table))

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Yield the rows of the query's topic."""
        for _, value in self.server.records(query.table):
            row = json.loads(value)  # which lacks nulls
            if "scheduled" in row:
                row["scheduled"] = datetime.fromisoformat(row["scheduled"])
            yield tuple(row.get(name) for name in query.columns)
