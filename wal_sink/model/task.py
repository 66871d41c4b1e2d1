"""A Spark task of a query, and the message in which it tells the driver what it wrote. No I/O."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from wal_sink.model.manifest import SegmentRef


class Appended(msgspec.Struct, frozen=True, kw_only=True):
    """Tells the driver which task wrote which segments (rule 4)."""

    query_id: str
    run_id: str
    epoch: int
    segments: tuple[SegmentRef, ...]
    refused: tuple[SegmentRef, ...] = ()
    """Segments of the rows that the target's check refused (rule 24)."""

    @property
    def files(self) -> tuple[SegmentRef, ...]:
        """The segments that the task has written as files: this message has the others."""
        return tuple(each for each in self.segments + self.refused if each.is_file)

    @property
    def execution(self) -> Execution:
        """What the task was part of."""
        return Execution(self.query_id, self.run_id, self.epoch)


class Execution(NamedTuple):
    """One run's computation of an epoch, as Spark names it to its tasks."""

    query_id: str
    run_id: str
    epoch: int


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Identifies a task, as Spark does."""

    query_id: str
    run_id: str
    epoch: int
    partition: int
    attempt: int
    call: str = ""
    """Hexadecimal digits with which the nonces of its segments begin: they tell the tasks of one call, where
    Spark does not call once for an epoch."""

    @property
    def execution(self) -> Execution:
        """What the task is part of."""
        return Execution(self.query_id, self.run_id, self.epoch)
