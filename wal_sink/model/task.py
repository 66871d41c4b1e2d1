"""Whose work a Spark task does, and what it tells the driver. No I/O."""

from __future__ import annotations

import msgspec

from wal_sink.model.manifest import SegmentRef


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """What a task tells the driver: whose work it did and which segments it left (rule 4)."""

    query_id: str
    run_id: str
    epoch: int
    segments: tuple[SegmentRef, ...]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Whose work a task does, as Spark says it."""

    query_id: str
    run_id: str
    epoch: int
    partition: int
    attempt: int
