"""The contract of transactional targets over a real broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest

from tests.kafka.conftest import kafka_target
from wal_sink.demo.kafka import Broker
from wal_sink.errors import TargetRefused
from wal_sink.model.plan import Plan
from wal_sink.targets.base import RowSlice, Target
from wal_sink.targets.kafka import KafkaTarget
from wal_sink.testing.contracts import RestartContract, TransactionalContract
from wal_sink.testing.contracts.ledger import Stored
from wal_sink.testing.contracts.rows import BASE_US, DoubleRecord, Record


class TestKafka(TransactionalContract, RestartContract):
    """A row is a record: its value is JSON, its key the text k."""

    unwritable_error = TargetRefused
    most_kills = 3

    @pytest.fixture
    def target(self, kafka: Broker) -> KafkaTarget:
        topic = f"t-{uuid.uuid4().hex}"
        kafka.create_topic(topic, partitions=2)
        return kafka_target(kafka.address, topic)

    @pytest.fixture(autouse=True)
    def _remember(self, kafka: Broker) -> None:
        self.kafka = kafka

    def frame(self, records: Sequence[Record | DoubleRecord]) -> pa.RecordBatch:
        keys = pa.array([record[0] for record in records], pa.string())
        values = pa.array([json.dumps(record) for record in records], pa.string())
        return pa.record_batch([keys, values], names=["key", "value"])

    def records(self, target: Target) -> list[Stored]:
        values = [json.loads(value or b"") for _, value in self.kafka.records(target.writes_to)]
        return [(k, n, v, t, d[0] if d else None) for k, n, v, t, *d in values]

    def restart(self, target: Target) -> None:
        self.kafka.kill()
        self.kafka.start()

    def unwritable(self, target: Target, plan: Plan) -> tuple[Plan, RowSlice]:
        large = pa.record_batch([["a"], [bytes(2_000_000)]], names=["key", "value"])
        return plan, RowSlice(0, large, BASE_US)
