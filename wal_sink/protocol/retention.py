"""Decides how long flushed epochs stay in the log, by rule `trim`. Pure functions.

Flushed epochs stay for a while, since they are flushed again if a target goes back.
"""

from __future__ import annotations

from typing import NamedTuple

from wal_sink.model.state import EarlierMark, Mark, State

EARLIER = 16
"""Most earlier marks that a target keeps beside its present mark."""


class Retention(NamedTuple):
    """How long a flushed epoch stays in the log."""

    us: int
    """`wal.retention` in microseconds."""
    bytes: int
    """If this number of bytes was flushed after an epoch, the epoch may be deleted. A tenth of
    `wal.maxBytes`."""

    def is_over(self, flushed: EarlierMark, now_us: int, flushed_bytes: int) -> bool:
        """Return True if an epoch and all epochs before it may be deleted.

        :param flushed: the mark of the epoch.
        :param flushed_bytes: bytes of all epochs up to the target's mark.
        """
        return now_us - flushed.at_us >= self.us or flushed_bytes - flushed.bytes >= self.bytes

    def is_apart(self, former: EarlierMark, later: EarlierMark) -> bool:
        """Return True if two marks are so far apart that both are kept.

        The distance of two marks is age / `us` + bytes / `bytes`. Within the retention both terms are below
        1, so all marks within the retention span less than 2. Kept marks are at least 2/15 apart, so at most
        15 are within the retention. One more mark is kept, which is older.
        """
        age, size = later.at_us - former.at_us, later.bytes - former.bytes
        return 15 * (age * self.bytes + size * self.us) >= 2 * self.us * self.bytes


def earlier_marks(
    former: Mark, size: int, retention: Retention, now_us: int
) -> tuple[EarlierMark, ...]:
    """Return the marks that a target keeps beside its new mark, at most `EARLIER`.

    `trimmable` reads from these marks how long the target has had each epoch. A mark that is later than
    `now_us` is dropped, since the clock of its host was ahead. The epochs up to such a mark are then trimmed
    later.

    :param former: the mark before the move.
    :param size: bytes of all epochs of the log up to the new mark.
    """
    *earlier, last = _marks(former)
    marks = [flushed for flushed in earlier if flushed.at_us <= now_us]
    if former.at_us <= now_us and (not marks or retention.is_apart(marks[-1], last)):
        marks.append(last)
    over = [flushed for flushed in marks if retention.is_over(flushed, now_us, size)]
    return tuple([*over[-1:], *marks[len(over) :]][-EARLIER:])


def trimmable(state: State, retention: Retention, now_us: int) -> int:
    """Return the last epoch that every live target has had for the retention; `trimmed` or later."""
    epochs = []
    for target in state.live:
        marks, size = _marks(target.mark), target.mark.sums.bytes
        over = [flushed.epoch for flushed in marks if retention.is_over(flushed, now_us, size)]
        epochs.append(max(over, default=state.trimmed))
    return max(min(epochs, default=state.settled), state.trimmed)


def next_trim_us(state: State, retention: Retention) -> int | None:
    """Return when more epochs may be trimmed, in microseconds since 1970; None if no epoch is left to trim.

    If a mark moves before, the time may change.
    """
    due = []
    for target in state.live:
        marks = _marks(target.mark)
        later = [flushed.at_us for flushed in marks if flushed.epoch > state.trimmed]
        if not later:
            return None
        due.append(min(later) + retention.us)
    return max(due, default=None)


def _marks(mark: Mark) -> tuple[EarlierMark, ...]:
    return (*mark.earlier, EarlierMark(epoch=mark.epoch, at_us=mark.at_us, bytes=mark.sums.bytes))
