"""A Spark task of a query, and the message in which it tells the driver what it wrote. No I/O."""

from __future__ import annotations

import msgspec

from wal_sink.model.manifest import SegmentRef


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Tells the driver which task wrote which segments (rule 4)."""

    query_id: str
    run_id: str
    epoch: int
    segments: tuple[SegmentRef, ...]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a task, as Spark does."""

    query_id: str
    run_id: str
    epoch: int
    partition: int
    attempt: int
