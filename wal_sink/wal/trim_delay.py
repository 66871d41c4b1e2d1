"""Says which flushed epochs may be trimmed: to every attached target, and for `trim.delay` (rule 18)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from wal_sink.model.records import FlushedEpoch
from wal_sink.wal.attached import flushed_limits
from wal_sink.wal.log import Log


class TrimDelay:
    """Says which flushed epochs have been in the log for `trim.delay`.

    The time of an epoch is that of its `flushed/` record, by the clock of the flusher that wrote it. Another
    clock may ask: one that is ahead shortens the delay by as much, one that is behind lengthens it. Either
    is safe, since an epoch that has a record is in the target. A record of the future, by a clock that was
    wrong, counts no later than the newest record: an epoch was flushed before those that follow it.

    Remembers one record, so that a look costs no read while nothing is due.

    :param seconds: 0 lets every flushed epoch be trimmed at once.
    :param clock_us: microseconds since 1970.
    """

    def __init__(self, seconds: float, clock_us: Callable[[], int]) -> None:
        self.seconds = seconds
        self.clock_us = clock_us
        self._oldest = (-1, 0)

    def trimmable(
        self, log: Log, recorded: FlushedEpoch | None, epochs: Iterable[int]
    ) -> int | None:
        """Return the highest epoch that may be trimmed, with all before it; None: all that are flushed.

        :param recorded: the newest record.
        :param epochs: of which there are manifests, waiting or retained, ascending.
        """
        if recorded is None or not self.seconds:
            return None
        now_us = self.clock_us()
        for epoch in itertools.takewhile(lambda each: each <= recorded.epoch, epochs):
            flushed_us = min(self._recorded_us(log, epoch), recorded.recorded_us)
            if now_us < flushed_us + self.seconds * 1_000_000:
                return epoch - 1
        return None

    def _recorded_us(self, log: Log, epoch: int) -> int:
        if self._oldest[0] != epoch:
            record = log.flushed(epoch)
            # Without a record the epoch is due: `trim` then says what is wrong.
            self._oldest = epoch, record.recorded_us if record else 0
        return self._oldest[1]


class SharedTrimDelay:
    """Says the same of a log of several targets, of which each holds back what it lacks.

    :param seconds: since an epoch was flushed to the last one of them.
    """

    def __init__(self, seconds: float, clock_us: Callable[[], int]) -> None:
        self.seconds = seconds
        self._clock_us = clock_us
        self._delays: dict[str, TrimDelay] = {}
        self._slowest = ""

    def trimmable(self, log: Log, epochs: Iterable[int]) -> int:
        """Return the highest epoch that may be trimmed, with all before it.

        :param epochs: of which there are manifests, ascending. If a target lacks the first of them, the
            others are not asked.
        """
        limit, there = None, list(epochs)
        # Listed after what the caller has seen as flushed: see `wal.attached`.
        for view, flushed in flushed_limits(log, fresh=True, before=self._slowest):
            delay = self._delays.setdefault(view.target, TrimDelay(self.seconds, self._clock_us))
            kept = delay.trimmable(view, view.newest_flushed(), there) if self.seconds else None
            mine = flushed if kept is None else min(kept, flushed)
            limit = mine if limit is None else min(limit, mine)
            if there and limit < there[0]:
                self._slowest = view.target
                break
        return -1 if limit is None else limit
