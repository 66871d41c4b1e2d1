"""The target Kafka: the records of a window and its ledger record are one transaction."""

from __future__ import annotations

from wal_sink.targets.kafka.target import KafkaTarget

__all__ = ["KafkaTarget"]
