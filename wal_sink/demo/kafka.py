"""Kafka in the demo: a broker in a child process. The control is a producer without transactions."""

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
from wal_sink.demo.stores import AtHalf, RowStore


class Kafka(RowStore):
    """A row is a record with JSON. A row that is sent twice is two records."""

    target = "kafka"

    @classmethod
    @contextmanager
    def start(cls, folder: Path, notify: Callable[[str], None]) -> Iterator[Self]:  # noqa: ARG003 - temporary
        """Start a broker."""
        broker = Broker()
        notify(f"Starting {broker.title}; the first start downloads its jars …")
        with broker:
            yield cls(broker.address, broker, broker.title)

    def create(self) -> None:
        """Make the topics."""
        for query in QUERIES:
            self.server.create_topic(query.table)

    def options(self, table: str) -> Mapping[str, str]:
        """Return the sink's options for a topic."""
        return {"target": PAUSING_KAFKA, "kafka.bootstrap.servers": self.address, "topic": table}

    def converted(self, rows: DataFrame) -> DataFrame:
        """Return each row as JSON in the column `value`."""
        return rows.selectExpr("to_json(struct(*)) AS value")

    def insert(self, table: str, rows: Sequence[Row], at_half: AtHalf) -> None:
        """Produce the records. Consumers read them, even if Spark does not commit the micro-batch."""
        from confluent_kafka import Producer  # noqa: PLC0415 - in tasks only

        producer = Producer({"bootstrap.servers": self.address})
        for number, row in enumerate(rows):
            if number == len(rows) // 2:
                producer.flush()
                at_half()
            producer.produce(table, row.value)
        producer.flush()

    def count(self, table: str) -> int:
        """Count the committed records of a topic."""
        return len(self.server.records(table))

    def rows(self, query: Query) -> Iterable[Sequence[Any]]:
        """Yield the rows of the query's topic."""
        for _, value in self.server.records(query.table):
            row = json.loads(value)  # Spark's JSON lacks columns that are null
            if "scheduled" in row:
                row["scheduled"] = datetime.fromisoformat(row["scheduled"])
            yield tuple(row.get(name) for name in query.columns)
