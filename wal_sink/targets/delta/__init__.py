"""The target Delta Lake: tasks stage Parquet files, and one commit adds them with the ledger row."""

from __future__ import annotations

from wal_sink.targets.delta.target import DeltaTarget

__all__ = ["DeltaTarget"]
