"""When the flusher deletes what is flushed, and garbage (rules 17 and 18); `wal.trim` says what.

Garbage that cannot be deleted (a bucket's policy, a folder of another user) makes the log grow, and never
keeps committed rows from the target: it is left for a minute, with a warning, and the flush goes on.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from wal_sink.log_context import line_logger
from wal_sink.model.ledger import Window
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch
from wal_sink.wal.aside import needless_aside
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import older_entries
from wal_sink.wal.retention import RetainedEpochs, Retention
from wal_sink.wal.trim import old_records, sweep, trim

logger = line_logger(__name__)

SWEEP_EVERY_S = 3_600.0

DELETE_AGAIN_S = 60.0
"""After so many seconds the trimmer tries again to delete what could not be deleted."""


class Trimmer:
    """Trims and sweeps one query's log. Used by one thread.

    :param retention_s: seconds that a flushed epoch stays in the log (`wal.retention`).
    :param clock_us: microseconds since 1970.
    """

    def __init__(self, log: Log, retention_s: float, clock_us: Callable[[], int]) -> None:
        self._log = log
        self._retention = Retention(retention_s, clock_us)
        self._retained = RetainedEpochs(log)
        self._failed_s = self._swept_s = self._dropped_s = float("-inf")
        self.half_written: int | None = None
        """Files of killed writers that were deleted; None before the first sweep."""

    def trimmable_at_once(self, window: Window) -> list[int]:
        """Return the epochs of a window that need not stay, for some time or for another target."""
        if self._retention.seconds:
            return []
        epochs, limit = [begun.epoch for begun in window.epochs], window.last
        if self._log.several:
            limit = self._retention.trimmable(self._log, None, epochs)
        return [epoch for epoch in epochs if epoch <= limit]

    def trimmable(self, recorded: FlushedEpoch | None, attempts: Iterable[Attempt]) -> int:
        """Return the highest epoch that may be trimmed, with those before it; -1 for none."""
        if time.monotonic() < self._failed_s + DELETE_AGAIN_S:
            return -1
        epochs = sorted({attempt.epoch for attempt in attempts})
        if self._log.several and not (recorded and epochs and epochs[0] <= recorded.epoch):
            return -1  # the others are not asked
        return self._retention.trimmable(self._log, recorded, heapq.merge(epochs, self._retained))

    def due(self, trimmable: int) -> tuple[int, ...]:
        """Return the retained epochs whose time is over.

        :param trimmable: what `trimmable` has returned.
        """
        return self._retained.upto(trimmable)

    def retain(self, window: Window, records: Sequence[FlushedEpoch]) -> None:
        """Move what is flushed to `retained/` for `wal.retention`; without one there is nothing to do."""
        if not self._retention.seconds or self._log.several:
            return  # the manifest stays for those that list it
        with self._leaving_garbage():
            self._retained.retain(window.epochs, records)
            self._log.delete(old_records(self._log, self._log.attempts(), window.last))

    def trim(self, epochs: Sequence[int], flushed: Collection[Attempt] = ()) -> None:
        """Delete flushed epochs; see `wal.trim.trim`.

        :raises Diverged: what is left of one of them is of another history.
        """
        with self._leaving_garbage():
            for why in trim(self._log, epochs, flushed, self._retained):
                self._failed_s = time.monotonic()
                logger.warning("objects of a flushed epoch are not deleted: %s", why)

    def sweep(self, trimmable: int) -> None:
        """Delete what killed tasks and late ones have left, at the first call and then every hour.

        Called once the ledger is found to agree: `rewind` may need what is there.
        """
        if time.monotonic() < self._swept_s + SWEEP_EVERY_S:
            return
        with self._leaving_garbage():
            self._retained.look()
            if self._log.several:
                # Read before the targets are listed: what is flushed later may be kept for a new one.
                mark = self._log.mark()
                trimmable = min(self._retention.trimmable(self._log, None, ()), mark)
            self.half_written = (self.half_written or 0) + sweep(self._log, trimmable)
        self._swept_s = time.monotonic()

    def sweep_aside(self, agreed: int | None) -> None:
        """Delete what a rewind has left and is flushed again, at the first call and then every hour.

        :param agreed: the epoch that both ledger and log say is flushed; None: they were not read, or differ.
            A record above it was made late, by a flusher that had stood still.
        """
        if agreed is None or time.monotonic() < self._dropped_s + SWEEP_EVERY_S:
            return
        with self._leaving_garbage():
            self._log.delete(needless_aside(self._log, agreed))
            self._log.delete(older_entries(self._log, agreed))
        self._dropped_s = time.monotonic()

    @contextlib.contextmanager
    def _leaving_garbage(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._failed_s = time.monotonic()
            logger.warning(
                "flushed epochs cannot be deleted from %s, so the log grows. The"
                " deletion is tried again every %.0f s. Cause: %r",
                self._log.url,
                DELETE_AGAIN_S,
                error,
            )
