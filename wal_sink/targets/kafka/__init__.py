"""The target Kafka: the records of a window and its ledger record are one transaction.

Imports inside of methods keep librdkafka out of tasks that publish.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from wal_sink.model.plan import Plan
from wal_sink.options import Options
from wal_sink.targets.client import Client, ClientTarget
from wal_sink.targets.kafka.options import KafkaOptions


class KafkaTarget(ClientTarget):
    """Topics of Kafka 2.5 or later. Consumers that read committed records get each row once."""

    name = "kafka"
    options_type: type[Options] = KafkaOptions
    restores_together = False  # rows and ledger row are in different topics

    to_correct = "Correct the options kafka.*."
    to_reach = "Check that the brokers run and can be reached from this host."

    options: KafkaOptions

    @property
    def place(self) -> str:
        """The brokers, as errors name them."""
        return f"Kafka at {self.options.servers}"

    @property
    def writes_to(self) -> str:
        """The topics of the records."""
        return self.options.topic

    @property
    def description(self) -> Mapping[str, str]:
        """The lines that a start logs, with brokers and topics."""
        return {
            "target": f"{self.name} at {self.options.servers}",
            "topic": f"{self.options.topic}, ledger in {self.options.ledger_of('<query id>')}",
        }

    def client(self) -> Client:
        """Import librdkafka."""
        from wal_sink.targets.kafka import errors, plan, session  # noqa: PLC0415

        return Client(plan.agree, session.KafkaSession, errors.classify)

    def check(self, batch: pa.RecordBatch, plan: Plan) -> pa.RecordBatch:
        """Cast `batch` to the types of a record, and refuse a row whose record its topic would refuse."""
        from wal_sink.targets.kafka.records import check  # noqa: PLC0415 -- pyarrow.compute

        return check(batch, plan)
