"""The Kafka target. Each method imports what it needs, so that tasks never load librdkafka."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from wal_sink.model.ledger import Owner
from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.base import Delivery, Kind, Session, Target
from wal_sink.targets.kafka.options import KafkaOptions
from wal_sink.targets.registry import importing

_WHERE = "the driver of Spark and every flusher run"


class KafkaTarget(Target):
    """A topic of Kafka 2.5 or later. Consumers that read committed records see each row once.

    :param options: see `KafkaOptions`.
    """

    name = "kafka"
    options_type: type[Options] = KafkaOptions
    delivery = Delivery.TRANSACTIONAL
    resends = True

    options: KafkaOptions

    @property
    def writes_to(self) -> str:
        """Return the topic."""
        return self.options.topic

    @property
    def description(self) -> Mapping[str, str]:
        """Return brokers and topics."""
        return {
            "target": f"{self.name} at {self.options.servers}",
            "topic": f"{self.options.topic}, ledger in {self.options.ledger_of('<query id>')}",
        }

    def plan(self, schema: pa.Schema, key: str) -> Plan:
        """See that the topic is there; create the ledger's topic if it is named, and missing."""
        return self._agreed(schema, key, create=True)

    def dry_plan(self, schema: pa.Schema, key: str) -> Plan:
        """See that the topic is there."""
        return self._agreed(schema, key, create=False)

    def _agreed(self, schema: pa.Schema, key: str, *, create: bool) -> Plan:
        with importing("kafka", _WHERE):
            from wal_sink.targets.kafka.plan import agree  # noqa: PLC0415 -- librdkafka

        return agree(self.options, schema, key, create=create)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to a record's types and refuse what the topic would refuse."""
        from wal_sink.targets.kafka.records import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)

    def load(self) -> None:
        """Import librdkafka."""
        with importing("kafka", _WHERE):
            import wal_sink.targets.kafka.session  # noqa: F401, PLC0415 -- librdkafka

    def connect(self, owner: Owner) -> Session:
        """Make a session; it connects when it is used."""
        with importing("kafka", _WHERE):
            from wal_sink.targets.kafka.session import KafkaSession  # noqa: PLC0415 -- librdkafka

        return KafkaSession(self.options, owner)

    def classify(self, error: Exception) -> Kind:
        """Take a lost connection, a time-out and a fenced producer for errors that pass."""
        from wal_sink.targets.kafka.topics import classify  # noqa: PLC0415 -- librdkafka

        return classify(error)
