"""Waits for room in the log, and says so (`budget` decides)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wal_sink.progress.heartbeat import is_alive, read_report, runs_on_this_host, stopping_error
from wal_sink.progress.unflushed import PUBLISHED, Unflushed
from wal_sink.protocol.budget import Backlog, Budget, Flushing, has_room, refuse_full, waiting
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)

_LOOK_S, _LOOK_BILLED_S = 0.5, 5.0
"""How often it is looked whether there is room by now."""

_SAY_EVERY_S = 60.0


class Backpressure:
    """Backpressure for one epoch.

    :param checkpoint: its URL.
    :param clock_us: microseconds since 1970; flushers report by theirs.
    :param now_s: seconds from any moment on; never goes back.
    """

    def __init__(
        self,
        budget: Budget,
        checkpoint: str,
        *,
        clock_us: Callable[[], int],
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        unflushed: Unflushed = PUBLISHED,
    ) -> None:
        self._budget = budget
        self._checkpoint = checkpoint
        self._clock_us = clock_us
        self._now_s = now_s
        self._sleep = sleep
        self.unflushed = unflushed
        self._since_s: float | None = None
        self._seen_s = 0.0
        self._said_s = 0.0
        self._flushed = -1

    @property
    def waited(self) -> bool:
        """Whether the epoch had to wait."""
        return self._since_s is not None

    def is_there(
        self, log: Log, epoch: int, *, generation: int, flushed: int, checkpointed: int
    ) -> bool:
        """Whether the epoch may be published; see `Unflushed.below` for the arguments."""
        backlog = self.unflushed.below(
            log, epoch, generation=generation, flushed=flushed, checkpointed=checkpointed
        )
        if not has_room(backlog, self._budget):
            self._look(log, epoch, backlog, flushed)
            return False
        if self._since_s is not None:
            waited_s = self._now_s() - self._since_s
            logger.warning("epoch %d goes on; it has waited for %.0f s", epoch, waited_s)
        return True

    def wait(self, log: Log) -> None:
        """Wait a moment."""
        self._sleep(_LOOK_BILLED_S if log.backend.billed else _LOOK_S)

    def _look(self, log: Log, epoch: int, backlog: Backlog, flushed: int) -> None:
        """Raise if waiting is of no use, and say now and then that it goes on."""
        now_s, now_us = self._now_s(), self._clock_us()
        first = self._since_s is None
        report = read_report(log)
        live = is_alive(report, now_us)
        if first or live or flushed > self._flushed:
            self._seen_s = now_s
        self._since_s = now_s if self._since_s is None else self._since_s
        self._flushed = flushed
        flushing = Flushing(
            report,
            stopping_error(report, now_us),
            0.0 if live else max(now_s - self._seen_s, 0.001),
            max(0.0, (now_us - report.heartbeat_us) / 1_000_000) if report else 0.0,
            silent=runs_on_this_host(report),
        )
        refuse_full(epoch, backlog, self._budget, flushing, self._checkpoint)
        if first or now_s - self._said_s >= _SAY_EVERY_S:
            self._said_s = now_s
            logger.warning("%s", waiting(epoch, backlog, self._budget, flushing))
