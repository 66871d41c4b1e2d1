"""Decides how far ledger and log can be set back, purely from what was seen. No I/O.

Nothing is skipped, no two attempts are mixed, and timestamps grow: docs/protocol.md#how-far-rewind-can-go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from wal_sink import remedies
from wal_sink.errors import MissingManifest, OptionError
from wal_sink.model.ledger import Mark, Owner
from wal_sink.model.records import FlushedEpoch, LogIdentity
from wal_sink.protocol.next_step import refuse_other_owner


class Past(NamedTuple):
    """What was seen of the epochs that are flushed."""

    identity: LogIdentity
    mark: Mark | None
    """The ledger row; None: there is none."""
    records: Mapping[int, FlushedEpoch]
    """The `flushed/` records, by epoch."""
    given_up: Collection[int]
    """The epochs that were given up, and that Spark has not computed again since."""
    usable: Mapping[int, bool]
    """Whether the flushed attempt of an epoch above `to` is whole in the log; others have no entry."""
    rewound_us: int = 0
    """The highest `last_us` that an earlier rewind was about to give the row, or that a decision notes."""
    checkpointed: int = -1
    foreign: bool = False
    """Whether the ledger row follows another log: this one was restored, or is a clone (rule 23)."""

    @property
    def floor(self) -> int:
        """The log's mark."""
        return max(self.records, default=self.identity.first_epoch - 1)

    @property
    def upper(self) -> int:
        """The highest epoch that log or ledger say is flushed; of another log, none that Spark lacks here."""
        flushed = max(self.floor, self.mark.flushed if self.mark else self.floor)
        return max(self.floor, min(flushed, self.checkpointed)) if self.foreign else flushed

    def unflushed_here(self, epoch: int) -> bool:
        """Whether an epoch was flushed from another log, if at all: nothing of this log is in the table."""
        return self.foreign and epoch > self.floor

    def passed_over(self, epoch: int) -> bool:
        """Whether an epoch was flushed without rows."""
        record = self.records.get(epoch)
        return epoch in self.given_up or (record is not None and not record.manifest)


def refuse_rewind(past: Past, to: int, owner: Owner) -> None:
    """Refuse a rewind that cannot mean anything, before segments are read for it.

    :raises WrongOwner: the row has to be adopted first.
    :raises OptionError: there is nothing to set back, or something is begun.
    """
    mark, floor = past.mark, past.floor
    refuse_other_owner(mark, owner)
    if not past.identity.first_epoch - 1 <= to <= floor:
        raise OptionError(
            f"--to {to} is not between {past.identity.first_epoch - 1}, before the first epoch of the"
            f" log, and {floor}, the last one that it says is flushed",
            "What is above that was never flushed by this log.",
        )
    if to >= past.identity.first_epoch and to not in past.records:
        nearest = _possible(past, to)
        raise OptionError(
            f"The log has no record of epoch {to}, so it cannot become the mark",
            "Restore flushed/ from a copy of the log"
            + ("." if nearest is None else f", or go back only to {nearest}, of which it has one."),
        )
    if mark is None:
        return
    if past.foreign:
        return  # what was flushed or begun from the other log cannot be finished from this one
    if mark.begun is not None and mark.begun.first > floor:
        first, last = mark.begun.first, mark.begun.last
        alone = first == last
        raise OptionError(
            (f"Epoch {first} is begun" if alone else f"Epochs {first} to {last} are begun")
            + ": rows of it may be in the table, of one attempt",
            "Let a flusher finish it first, by starting the query; or give up what stops it:"
            f" {remedies.skip(first if alone else None, begun=True)}, and let a flusher pass over it. If"
            " checkpoint and log were restored from a backup, pass --restored.",
        )
    if mark.flushed == floor == to:
        raise OptionError(
            f"Ledger and log both say that epoch {to} is flushed", "There is nothing to set back."
        )


def refuse_lost(past: Past, to: int) -> None:
    """Refuse to go back behind an epoch that is no longer in the log.

    :raises MissingManifest: an epoch is no longer in the log.
    """
    above = range(to + 1, past.upper + 1)
    lost = [e for e in above if not (past.usable.get(e) or past.passed_over(e))]
    if lost:
        nearest = _possible(past, lost[-1])
        raise MissingManifest(
            f"Epoch {lost[0]} is no longer in the log as it was flushed, so it cannot be flushed again",
            "Restore its manifest and segments from a copy of the log"
            + (
                f"; without them nothing can be flushed again, since epoch {lost[-1]} is gone, too."
                if nearest is None
                else f", or go back only to {nearest}: run this command with --to {nearest}."
            ),
        )


def _possible(past: Past, least: int) -> int | None:
    """Return the first epoch from `least` on that `refuse_rewind` lets become the mark; None for none."""
    mark, floor = past.mark, past.floor
    stands = floor if mark is not None and mark.flushed == floor else None
    return min((e for e in past.records if e >= least and e != stands), default=None)


def rewound(past: Past, to: int, owner: Owner) -> Mark:
    """Return the row that the ledger gets."""
    used = [record.base_us + max(record.rows, 1) - 1 for record in past.records.values()]
    used += [past.rewound_us]
    if past.mark is not None:
        windows = (past.mark.begun, past.mark.last)
        used += [past.mark.last_us, *(window.last_us for window in windows if window)]
    return Mark(
        log_id=owner.log_id,
        checkpoint=owner.checkpoint,
        flushed=to,
        last_us=max(used, default=0),
        begun=None,
        last=None,
    )
