"""What waits to be flushed, read again and again while a query goes on. Never connects to the target.

It reads log and checkpoint, as `progress.status` does, whoever flushes and whatever the flusher is stuck in.
But a manifest never changes, so each is read once: a backlog of 10,000 epochs costs 10,000 reads at the
first look, and at the next ones a listing.
"""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from state_backends import StateBackendError
from wal_sink import clock
from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import WalSinkError
from wal_sink.model.manifest import Attempt
from wal_sink.progress.scan import read_manifests
from wal_sink.wal.log import Log

FRESH_S, FRESH_BILLED_S = 0.5, 10.0
"""How long a look is good for: many who ask cost no more than one. Longer where each look is paid for."""


class Pending(NamedTuple):
    """What was seen at one look; epochs are -1 for none."""

    checkpointed: int
    flushed: int
    """By the log's records, which the flusher writes after the ledger."""
    epochs: int
    """Checkpointed and not flushed."""
    rows: int
    bytes: int
    """Rows and bytes of a manifest that is damaged or missing are not counted."""
    oldest_us: int | None
    """When the oldest of them was published, or first seen by this process if nothing readable says so;
    microseconds since 1970, None for none."""
    read_us: int
    """When this was read."""

    def oldest_seconds(self, now_us: int) -> float:
        """How long the oldest one has been waiting; 0 for none. It grows although nothing can be read."""
        return 0.0 if self.oldest_us is None else max(0.0, (now_us - self.oldest_us) / 1_000_000)


class _Waits(NamedTuple):
    """What is kept of a manifest."""

    epoch: int
    rows: int
    bytes: int
    published_us: int


class BacklogReader:
    """Looks at one query; used by any number of threads."""

    def __init__(self, checkpoint: Checkpoint, log: Log) -> None:
        self._checkpoint = checkpoint
        self._log = log
        self._fresh_s = FRESH_BILLED_S if checkpoint.billed or log.backend.billed else FRESH_S
        self._lock = threading.Lock()
        self._last: Pending | None = None
        self._looked_s = float("-inf")
        self._known: dict[Attempt, _Waits] = {}
        self._unread: dict[int, int] = {}
        """When an epoch was first seen of which nothing can be read."""

    def look(self) -> Pending | None:
        """Return what waits now; when that cannot be read, what was seen last, if anything was.

        Nobody waits for a store that hangs but the first who asks.
        """
        if self._lock.acquire(blocking=False):
            try:
                if time.monotonic() - self._looked_s > self._fresh_s:
                    self._last = self._read()
                    self._looked_s = time.monotonic()
            except (OSError, StateBackendError, WalSinkError):
                pass  # `read_us` says how old it is; the flusher meets the same, and says so
            finally:
                self._lock.release()
        return self._last

    def _read(self) -> Pending:
        """Read commits first: what is flushed in between is not taken for pending."""
        checkpointed = self._checkpoint.last_commit()
        newest = self._log.newest_flushed()
        flushed = newest.epoch if newest else -1
        waiting = count_epochs(self._log, checkpointed, flushed)
        now_us = clock.now_us()
        found = self._chosen(checkpointed, flushed) if waiting else []
        rows, size = sum(each.rows for each in found), sum(each.bytes for each in found)
        since = [each.published_us for each in found]
        seen = {each.epoch for each in found}
        unread = range(max(flushed, checkpointed - waiting) + 1, checkpointed + 1)
        self._unread = {e: self._unread.get(e, now_us) for e in unread if e not in seen}
        oldest_us = min([*since, *self._unread.values()], default=None)
        return Pending(checkpointed, flushed, waiting, rows, size, oldest_us, now_us)

    def _chosen(self, checkpointed: int, flushed: int) -> list[_Waits]:
        """Return what will be flushed of each pending epoch: the highest generation."""
        attempts = [a for a in self._log.attempts() if flushed < a.epoch <= checkpointed]
        chosen = set({attempt.epoch: attempt for attempt in attempts}.values())
        known = {attempt: self._known[attempt] for attempt in chosen & self._known.keys()}
        new = read_manifests(self._log, sorted(chosen - known.keys())).manifests
        for attempt, read in new.items():
            known[attempt] = _Waits(read.epoch, read.rows, read.bytes, read.published_us)
        self._known = known
        return list(known.values())


def waiting_epochs(checkpoint: Checkpoint, log: Log) -> int:
    """Count the epochs that are checkpointed and not flushed, without opening their manifests."""
    checkpointed = checkpoint.last_commit()
    newest = log.newest_flushed()
    return count_epochs(log, checkpointed, newest.epoch if newest else -1)


def count_epochs(log: Log, checkpointed: int, flushed: int) -> int:
    """Count the epochs up to `checkpointed` that are not flushed; none is ours before the first publish."""
    if checkpointed <= flushed:
        return 0
    if (identity := log.identity()) is None:  # lost, if epochs wait all the same
        return len({attempt.epoch for attempt in log.attempts() if attempt.epoch <= checkpointed})
    return max(0, checkpointed - max(flushed, identity.first_epoch - 1))
