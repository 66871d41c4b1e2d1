"""The target Kafka: records and ledger record in one transaction."""

from __future__ import annotations

from wal_sink.targets.kafka.target import KafkaTarget

__all__ = ["KafkaTarget"]
