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
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.targets.kafka.options import KafkaOptions


def kafka_target(address: str, topic: str, **options: str) -> KafkaTarget:
    return KafkaTarget(
        parse({"kafka.bootstrap.servers": address, "topic": topic} | options, KafkaOptions)
    )


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
        name = uuid.uuid4().hex
        self._broker = broker
        self.topic = f"t-{name}"
        broker.create_topic(self.topic, partitions=2)
        options = {
            "topic": self.topic,
            "kafka.bootstrap.servers": broker.address,
        }
        target = PairsTarget(parse(options, KafkaOptions))
        super().__init__(*in_memory(), target)

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
