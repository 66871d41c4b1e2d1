"""Tells how fast epochs are flushed and come, from the log's records of those that were flushed last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from wal_sink.model.records import FlushedEpoch
from wal_sink.wal.log import Log

_READ, _READ_BILLED = 10, 3
"""How many records are read: fewer where each costs a request."""


class Rate(NamedTuple):
    """Rows a second; None: not known."""

    flushed: float | None
    """While epochs are flushed; the time between them does not count."""
    arriving: float | None
    """Of all the time, from publish to publish."""

    def catches_up_s(self, rows: int) -> float | None:
        """Return the seconds after which nothing waits, while rows go on coming as they do.

        None: that is not known, or they come faster than they are flushed.

        :param rows: how many wait.
        """
        if not rows:
            return 0.0
        gain = (self.flushed or 0.0) - (self.arriving or 0.0)
        return rows / gain if gain > 0 else None


def read_rate(log: Log) -> Rate:
    """Read the newest records."""
    most = _READ_BILLED if log.backend.billed else _READ
    epochs = log.flushed_epochs()[-most:]
    return rate_of(log.flushed_since(epochs[0] - 1) if epochs else [])


def rate_of(records: Sequence[FlushedEpoch]) -> Rate:
    """Return the rate of epochs that were flushed one after the other, some of them together.

    What is begun together has one `begun_us`, and is recorded at nearly one time, so times are counted once.

    :param records: ascending.
    """
    rows = [record for record in records if record.rows > 0]
    busy_us, until_us = 0, 0
    for record in rows:
        busy_us += max(0, record.recorded_us - max(record.begun_us, until_us))
        until_us = max(until_us, record.recorded_us)
    span_us = records[-1].published_us - records[0].published_us if records else 0
    later = sum(record.rows for record in records[1:])
    return Rate(
        flushed=sum(record.rows for record in rows) * 1_000_000 / busy_us if busy_us else None,
        arriving=later * 1_000_000 / span_us if span_us > 0 else None,
    )
