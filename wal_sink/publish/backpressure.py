"""Waits until the log has space for an epoch, and reports the wait (`protocol.budget` decides)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.log_context import Seldom
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.model.records import Backlog
from wal_sink.progress.backlog import BACKLOGS, BacklogReaders
from wal_sink.progress.heartbeat import (
    FlusherWatch,
    age_s,
    runs_on_this_host,
    stopping_error,
    this_process,
)
from wal_sink.protocol.budget import Budget, Flushing, has_space, refuse_full, waiting
from wal_sink.wal.log import Log
from wal_sink.wal.targets import detach, flushed_limits, slowest_view

logger = logging.getLogger(__name__)

_LOOK_S, _LOOK_BILLED_S = 0.5, 5.0
"""How long a pause is, after which there may be space."""


class Backpressure:
    """Backpressure for one epoch.

    :param clock_us: microseconds since 1970; flushers report by theirs, and it only says how long ago.
    :param now_s: seconds from any moment on; never goes back.
    :param backlogs: what this process has published.
    """

    def __init__(
        self,
        budget: Budget,
        checkpoint: Checkpoint,
        log: Log,
        *,
        clock_us: Callable[[], int],
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        backlogs: BacklogReaders = BACKLOGS,
    ) -> None:
        self._budget = budget
        self._checkpoint = checkpoint
        self._log = log
        self._clock_us = clock_us
        self._now_s = now_s
        self._sleep = sleep
        self._backlogs = backlogs
        self._flushers: dict[str, FlusherWatch] = {}
        self._since_s: float | None = None
        self._seen_s = 0.0
        self._seldom = Seldom(now_s)
        self._flushed = -1

    def admits(
        self, attempt: Attempt, *, checkpointed: int, flushed: int, first_epoch: int
    ) -> bool:
        """Whether an attempt may be published now; may detach the slowest target, as its options say.

        See `BacklogReader.before` for the arguments.

        :raises LogFull, NoFlusher, WalSinkError: it is of no use to wait, see `refuse_full`.
        """
        epoch, generation = attempt
        backlog = self._backlogs.of(self._checkpoint, self._log, generation).before(
            epoch, checkpointed=checkpointed, flushed=flushed, first_epoch=first_epoch
        )
        if not has_space(backlog, self._budget):
            slowest = slowest_view(self._log)
            if not self._detaches(slowest, epoch):
                self._refuse_or_say(slowest, epoch, backlog)
            return False
        if self._since_s is not None:
            waited_s = self._now_s() - self._since_s
            logger.warning(
                "the log has space again. Epoch %d goes on, after it waited for %.0f s",
                epoch,
                waited_s,
            )
        return True

    def pause(self) -> None:
        """Wait a moment."""
        self._sleep(_LOOK_BILLED_S if self._log.backend.billed else _LOOK_S)

    def published(self, manifest: Manifest) -> None:
        """Count an epoch that was published."""
        self._backlogs.of(self._checkpoint, self._log, manifest.generation).published(manifest)

    def _detaches(self, slowest: Log, epoch: int) -> bool:
        """Detach the target that is behind, if its options say so; whether it did. The last one stays."""
        if self._budget.of_targets.get(slowest.target) != "detach":
            return False
        seen = len(slowest.states())
        if len(list(flushed_limits(self._log))) < 2:
            return False
        why = f"the log was full when epoch {epoch} came, and onFull is detach"
        state = detach(slowest, seen, self._clock_us(), this_process(), why)
        if state is None:
            return False
        logger.warning(
            "target %s is detached: it gets no epoch after %d. Cause: %s. `wal-sink"
            " attach` attaches it again",
            slowest.target,
            state.epoch,
            why,
        )
        return True

    def _refuse_or_say(self, slowest: Log, epoch: int, backlog: Backlog) -> None:
        """Raise if waiting is of no use, and say now and then that it goes on."""
        now_s, now_us = self._now_s(), self._clock_us()
        first = self._since_s is None
        report = slowest.last_report()
        watch = self._flushers.setdefault(slowest.target, FlusherWatch(self._now_s))
        live = watch.look(report)
        if first or live or backlog.flushed > self._flushed:
            self._seen_s = now_s
        self._since_s = now_s if self._since_s is None else self._since_s
        self._flushed = backlog.flushed
        flushing = Flushing(
            report,
            stopping_error(report, now_us, alive=live),
            0.0 if live else max(now_s - self._seen_s, 0.001),
            max(0.0, age_s(report, now_us)) if report else 0.0,
            process_runs=runs_on_this_host(report),
        )
        fails = self._budget.of_targets.get(slowest.target, self._budget.on_full) == "fail"
        budget = self._budget._replace(on_full="fail" if fails else "block")
        refuse_full(epoch, backlog, budget, flushing, self._checkpoint.url)
        if self._seldom.is_due():
            logger.warning("%s", waiting(epoch, backlog, self._budget, flushing))
