"""Counts the epochs, rows and bytes that a target lacks, from the log's state and `commits/`."""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from wal_sink import units
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.model.state import State, TargetState
from wal_sink.wal.segment import refused_files
from wal_sink.wal.store import LogStore, newest

logger = logging.getLogger(__name__)


class Backlog(NamedTuple):
    """The checkpointed epochs that a target lacks."""

    checkpointed: int
    """The last epoch of `commits/`; -1 for none."""
    flushed: int
    """The target's mark; -1 for none."""
    epochs: int
    rows: int
    bytes: int
    oldest_us: int | None
    """When the flush began to lag, microseconds since 1970: when the mark moved last, or when the only
    pending epoch was published. None if nothing is pending."""

    def oldest_seconds(self, now_us: int) -> float:
        """Return for how many seconds the flush has lagged; 0 if nothing is pending."""
        return 0.0 if self.oldest_us is None else max(0.0, (now_us - self.oldest_us) / 1_000_000)


def backlog_of(state: State, target: TargetState, committed: int) -> Backlog:
    """Count what a target lacks.

    An epoch that Spark completed and no run published counts as an epoch without rows. A target that was
    given up lacks nothing.

    :param committed: the last epoch of `commits/`.
    """
    mark, last = target.mark, state.last
    flushed = target.flushed
    if committed <= mark.epoch or target.given_up:
        return Backlog(committed, flushed, 0, 0, 0, None)
    sums = last.sums if committed >= last.epoch else last.predecessor.sums
    epochs = committed - mark.epoch
    # The first write timestamp of an epoch is the time at which it was published.
    oldest_us = last.first_us if epochs == 1 and last.epoch == committed else mark.at_us
    return Backlog(
        committed,
        flushed,
        epochs,
        sums.rows - mark.sums.rows,
        sums.bytes - mark.sums.bytes,
        max(oldest_us, mark.at_us),
    )


def pending_epochs(checkpoint: Checkpoint, store: LogStore) -> int:
    """Return how many checkpointed epochs some target lacks."""
    state, committed = newest(store), checkpoint.last_commit()
    if state is None:
        return 0
    return max((backlog_of(state, target, committed).epochs for target in state.live), default=0)


class Snapshot(NamedTuple):
    """A backlog, and when it was read."""

    backlog: Backlog
    quarantined_rows: int
    read_us: int
    """Microseconds since 1970."""


class BacklogReader:
    """Reads the backlog of one target repeatedly, for metrics.

    Only one thread reads at a time. While a store does not answer that thread, the others get the last
    backlog.

    :param target: name of the target.
    """

    def __init__(self, checkpoint: Checkpoint, store: LogStore, target: str) -> None:
        self._checkpoint, self._store, self._target = checkpoint, store, target
        self._last: Snapshot | None = None
        self._reading = threading.Lock()

    def read(self) -> Snapshot | None:
        """Return the backlog; the last one that was read if log or checkpoint do not answer now."""
        if not self._reading.acquire(blocking=False):
            return self._last
        try:
            self._last = self._read()
        except (OSError, WalSinkError) as error:
            logger.debug("the backlog cannot be read now: %s", error)
        finally:
            self._reading.release()
        return self._last

    def _read(self) -> Snapshot:
        state = newest(self._store)
        target = state.target(self._target) if state is not None else None
        committed = self._checkpoint.last_commit()
        if state is not None and target is not None:
            backlog = backlog_of(state, target, committed)
        else:
            backlog = Backlog(committed, -1, 0, 0, 0, None)
        rows = sum(refused.rows for refused in refused_files(self._store))
        return Snapshot(backlog, rows, units.now_us())
