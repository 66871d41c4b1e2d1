"""A query whose target is a topic of a real broker."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from tests.protocol.engine import World, in_memory
from wal_sink.demo.kafka import Broker
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.plan import Plan
from wal_sink.options import parse
from wal_sink.targets.base import RowSlice
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.testing.contracts.ledger import create
from wal_sink.testing.contracts.rows import deliver


def kafka_target(address: str, topic: str, **options: str) -> KafkaTarget:
    return KafkaTarget(
        parse({"kafka.bootstrap.servers": address, "topic": topic} | options, KafkaOptions)
    )


def new_topic(kafka: Broker, partitions: int = 1, **settings: str) -> str:
    """Create a topic. Settings have `_` in place of `.`."""
    topic = f"t-{uuid.uuid4().hex}"
    named = {name.replace("_", "."): value for name, value in settings.items()}
    kafka.create_topic(topic, partitions, named)
    return topic


def send(target: KafkaTarget, plan: Plan, rows: pa.RecordBatch) -> None:
    """Write rows as the first window of a new query."""
    query_id = uuid.uuid4().hex
    with target.connect(query_id) as session:
        create(session, query_id)
        deliver(session, plan, RowSlice(0, target.check(rows, plan), 0))


def consumed(kafka: Broker, topics: list[str], count: int) -> list[Message]:
    """Return records as a consumer of committed records gets them."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.address,
            "group.id": uuid.uuid4().hex,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe(topics)
    try:
        return list(consumer.consume(count, timeout=60))
    finally:
        consumer.close()


class PairsTarget(KafkaTarget):
    """Writes the engine's pairs (k, v) as key and value."""

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        return super().plan(pa.schema([("key", pa.string()), ("value", pa.string())]), key)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        renamed = [batch["k"], batch["v"].cast(pa.string())]
        return super().check(pa.record_batch(renamed, names=["key", "value"]), plan)


class TopicWorld(World):
    """Checkpoint and log in memory, records in a new topic."""

    adds = True

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.topic = new_topic(broker, partitions=2)
        options = kafka_target(broker.address, self.topic).options
        super().__init__(*in_memory(), PairsTarget(options))

    def visible(self) -> list[tuple[str, int]]:
        """Read the topic as a consumer of committed records does."""
        records = self._broker.records(self.topic)
        return [((key or b"").decode(), int(value or b"")) for key, value in records]

    def ledger(self) -> LedgerRow | None:
        """Read the ledger's topic."""
        with self.target.connect(self.query_id) as session:
            return session.read()


def altered(kafka: Broker, topic: str, name: str, value: str) -> None:
    """Alter a setting of a topic."""
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.address})  # kept until its request ends
    (future,) = admin.incremental_alter_configs([resource]).values()
    future.result()


@pytest.fixture
def make_world(kafka: Broker) -> Iterator[Callable[[], TopicWorld]]:
    """Return a function that makes worlds. Their sessions end with the test."""
    made: list[TopicWorld] = []

    def make() -> TopicWorld:
        made.append(TopicWorld(kafka))
        return made[-1]

    yield make
    for world in made:
        world.end_sessions()
