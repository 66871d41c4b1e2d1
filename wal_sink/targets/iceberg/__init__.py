"""The target Apache Iceberg: tasks stage Parquet files, and one commit adds them with the ledger row."""

from __future__ import annotations

from wal_sink.targets.iceberg.target import IcebergTarget

__all__ = ["IcebergTarget"]
