"""How long flushed epochs stay in the log: `trim.delay`.

The time of an epoch is that of its `flushed/` record, by the clock of the flusher that wrote it. Whether it
is over is asked by another clock, perhaps: one that is ahead shortens the delay by as much, one that is
behind lengthens it. Neither touches what is exact, since an epoch that has a record is in the target. A
record of the future, by a clock that was wrong, counts no later than the newest one: an epoch was flushed
before those that follow it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch
from wal_sink.wal.log import Log


class TrimDelay:
    """Says what may go by now. Remembers one record, so that a look costs none while nothing is due.

    :param seconds: 0 lets everything go that is flushed.
    :param clock_us: microseconds since 1970.
    """

    def __init__(self, seconds: float, clock_us: Callable[[], int]) -> None:
        self.seconds = seconds
        self._clock_us = clock_us
        self._oldest = (-1, 0)

    def trimmable(
        self, log: Log, recorded: FlushedEpoch | None, attempts: Iterable[Attempt]
    ) -> int | None:
        """Return the highest epoch that may go, with all before it; None: all that are flushed.

        :param recorded: the newest record.
        :param attempts: the manifests there are.
        """
        if recorded is None or not self.seconds:
            return None
        now_us = self._clock_us()
        for epoch in sorted({each.epoch for each in attempts if each.epoch <= recorded.epoch}):
            flushed_us = min(self._recorded_us(log, epoch), recorded.recorded_us)
            if now_us < flushed_us + self.seconds * 1_000_000:
                return epoch - 1
        return None

    def _recorded_us(self, log: Log, epoch: int) -> int:
        if self._oldest[0] != epoch:
            record = log.flushed(epoch)
            # Without a record `trim` says what is wrong, now.
            self._oldest = epoch, record.recorded_us if record else 0
        return self._oldest[1]
