"""Decides whether an operator's `skip` or `rewind` is safe, from what was observed. Pure.

Each refusal of `skip` has its argument: docs/protocol/operators.md#why-skip-refuses-what-it-refuses.

`rewind` skips no epoch, mixes no two attempts, and lets timestamps grow, unless the operator brings them
back from the future: docs/protocol/operators.md#how-far-rewind-can-go.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from wal_sink import errors
from wal_sink.errors import LedgerBehindLog, MissingManifest, OptionError
from wal_sink.model.ledger import BegunEpoch, LedgerState, Owner
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch, LogIdentity
from wal_sink.protocol.ledger import CLOCKS_DIFFER_US
from wal_sink.protocol.next_step import is_from_before_rewind, refuse_other_owner, refuse_torn


class Situation(NamedTuple):
    """What was seen of the epoch that is to be given up."""

    epoch: int
    checkpointed: int
    floor: int
    """The log's mark: the newest `flushed/` record, or the epoch before the first one."""
    row: LedgerState | None
    """The ledger row; None: the target does not know the query yet."""
    attempts: tuple[Attempt, ...]
    """Manifests of the epoch."""
    segments: tuple[str, ...]
    """Paths of its segments, of all attempts."""

    @property
    def begun(self) -> BegunEpoch | None:
        """The epoch, as the ledger says that it is begun."""
        window = self.row.begun if self.row else None
        epochs = window.epochs if window else ()
        return next((begun for begun in epochs if begun.epoch == self.epoch), None)


def refuse_to_skip(situation: Situation, owner: Owner, first_epoch: int, *, begun: bool) -> None:
    """Refuse any epoch but the one at which the flush has stopped.

    :param first_epoch: the first one of the log.
    :param begun: the operator knows that rows of it may be in the table.
    :raises WrongOwner, LedgerBehindLog: log and ledger have to be brought together first.
    :raises OptionError: it is another epoch, or begun.
    """
    epoch, row = situation.epoch, situation.row
    refuse_other_owner(row, owner)
    if row is None and situation.floor >= first_epoch:  # what was begun is lost with it
        raise LedgerBehindLog(
            f"The ledger has no row for query {owner.query_id}, but the log says that epoch"
            f" {situation.floor} is flushed: so nothing tells whether epoch {epoch} is begun",
            f"Make the row anew first: {errors.rewind(situation.floor)}.",
        )
    flushed = situation.floor if row is None else row.flushed
    if flushed < situation.floor:
        raise LedgerBehindLog(
            f"The ledger says that epoch {flushed} is flushed, the log says {situation.floor}",
            f"Bring them together first: {errors.rewind(situation.floor)}.",
        )
    if epoch <= flushed:
        raise OptionError(
            f"Epoch {epoch} is done already: every epoch up to {flushed} is flushed, or was given up",
            "There is nothing to give up.",
        )
    if epoch > situation.checkpointed:
        raise OptionError(
            f"Epoch {epoch} is not checkpointed (commits/ says {situation.checkpointed}): Spark"
            " computes it again",
            "Start the query.",
        )
    if epoch != flushed + 1 and situation.begun is None:
        raise OptionError(
            f"Epoch {epoch} is not the next one: the flush has stopped at epoch {flushed + 1}",
            "Give up only what stops the flush. `wal-sink verify CHECKPOINT` names it.",
        )
    if situation.begun is not None and not begun:
        raise OptionError(
            f"Epoch {epoch} is begun: rows of it are possibly in the table already, and stay there",
            "If the rest may be given up all the same, pass --begun.",
        )


def refuse_wrong_copy(situation: Situation, *, copied: bool) -> None:
    """Refuse to lose what could be kept, and to keep what is lost.

    :param copied: whether the operator names a place for the epoch's files.
    :raises OptionError: they are to be copied and there is none, or the other way round.
    """
    epoch = situation.epoch
    if not copied and situation.attempts:
        raise OptionError(
            f"Epoch {epoch} is not lost: the log has {len(situation.attempts)} manifests of it",
            f"Name a place that gets its files: {errors.skip(epoch)}.",
        )
    if copied and not situation.attempts and not situation.segments:
        raise OptionError(
            f"Nothing of epoch {epoch} is left in the log that could be copied",
            f"If all its rows may be given up, leave --to out: {errors.skip_lost(epoch)}.",
        )


class LeftBehind(NamedTuple):
    """Write timestamps of the future that an operator has left behind: they do not count any more."""

    to: int
    """The epoch that was the mark then. Those after it were flushed with later timestamps."""
    first_us: int
    last_us: int

    def covers(self, us: int, epoch: int | None = None) -> bool:
        """Whether a timestamp is one of them, if the epoch that used it is known, that too."""
        return self.first_us <= us <= self.last_us and (epoch is None or epoch <= self.to)

    def ahead_of(self, now_us: int) -> LeftBehind:
        """Return those that lie in the future still: a flush may have used the others since."""
        return self._replace(first_us=max(self.first_us, now_us + 1))


class Past(NamedTuple):
    """What was seen of the epochs that are flushed."""

    identity: LogIdentity
    row: LedgerState | None
    """The ledger row; None: there is none."""
    records: Mapping[int, FlushedEpoch]
    """The records of flushed epochs, by epoch; the newest is the log's mark."""
    late: Mapping[int, FlushedEpoch]
    """Copies of records above the mark: a flusher that stood still has retained them after a rewind."""
    given_up: Collection[int]
    """The epochs that were given up, and that Spark has not computed again since."""
    usable: Mapping[int, bool]
    """Whether the flushed attempt of an epoch above `to` is whole in the log; others have no entry."""
    rewound_us: tuple[int, ...] = ()
    """The `last_us` that earlier rewinds were about to give the row, or that decisions note."""
    left_behind: tuple[LeftBehind, ...] = ()
    """What earlier rewinds have left behind, and lies in the future still."""
    checkpointed: int = -1
    highest: int = 0
    """The highest generation before the records were read. What a higher one publishes has come since."""
    foreign: bool = False
    """Whether the ledger row follows another log: this one was restored, or is a clone (rule 23)."""
    refused_left: bool = False
    """Whether a rewind to the mark has died before it was done with the rows that are in quarantine again."""
    in_order: str = ""
    """A table of which what is there decides what is written, once: totals (rule 27), or first rows."""

    @property
    def floor(self) -> int:
        """The log's mark."""
        return self.identity.mark(max(self.records, default=-1))

    @property
    def upper(self) -> int:
        """The highest epoch that log or ledger say is flushed; of another log, none that Spark lacks here."""
        flushed = max(self.floor, self.row.flushed if self.row else self.floor)
        return max(self.floor, min(flushed, self.checkpointed)) if self.foreign else flushed

    @property
    def agreed(self) -> int | None:
        """The log's mark, if the ledger row says the same of it, and no rewind has died; None: else."""
        row, record = self.row, self.records.get(self.floor)
        if row is None or row.flushed != self.floor or self.refused_left:
            return None
        return None if record and is_from_before_rewind(row, record) else self.floor

    def unflushed_here(self, epoch: int) -> bool:
        """Whether an epoch was flushed from another log, if at all: nothing of this log is in the table."""
        return self.foreign and epoch > self.floor

    def passed_over(self, epoch: int) -> bool:
        """Whether an epoch was flushed without rows."""
        record = self.records.get(epoch)
        return epoch in self.given_up or (record is not None and not record.manifest)

    def is_late(self, epoch: int, us: int) -> bool:
        """Whether a record came after a rewind that has left its timestamp behind.

        A flusher had stood still before it. The ledger row shows that: its timestamps are lower.
        """
        row = self.row
        known = row is not None and epoch <= row.flushed and row.last_us < us
        return known and not self.foreign and any(left.covers(us) for left in self.left_behind)

    def used_us(self) -> list[int]:
        """Return last write timestamps that were used, the highest among them; without those left behind."""
        records = (*self.records.items(), *self.late.items())
        by_epoch = [(e, r.last_us) for e, r in records]
        used = [
            us
            for e, us in by_epoch
            if not any(left.covers(us, e) for left in self.left_behind) and not self.is_late(e, us)
        ]
        used += [
            us for us in self.rewound_us if not any(left.covers(us) for left in self.left_behind)
        ]
        if self.row is not None:
            windows = (self.row.begun, self.row.last)
            used += [self.row.last_us, *(window.last_us for window in windows if window)]
        return used


_TRIMMED = "What is flushed is trimmed from the log, and only wal.retention keeps it"
_IF_RESTORED = "If checkpoint and log were restored from a backup, pass --restored."


def refuse_rewind(past: Past, to: int, owner: Owner, *, reset_us: int | None = None) -> None:
    """Refuse a rewind that cannot mean anything, before segments are read for it.

    :param reset_us: the present, if the timestamps are to go back to it.
    :raises WrongOwner: the row has to be adopted first.
    :raises LedgerShadowed: only the row, which was updated in part, names an attempt that was flushed.
    :raises OptionError: there is nothing to set back, or something is begun.
    """
    row, floor = past.row, past.floor
    refuse_other_owner(row, owner)
    windows = (row.begun, row.last) if row is not None and row.flushed <= floor else ()
    if row is not None and any(each.last > floor for each in windows if each):
        refuse_torn(row, floor)
    if not past.identity.first_epoch - 1 <= to <= floor:
        raise OptionError(
            f"--to {to} is not between {past.identity.first_epoch - 1}, before the first epoch of the"
            f" log, and {floor}, the last one that it says is flushed",
            "What is above that was never flushed by this log.",
        )
    if to >= past.identity.first_epoch and to not in past.records:
        nearest = _possible(past, to)
        raise OptionError(
            f"The log has no record of epoch {to}, so the flush cannot go back to it. {_TRIMMED}",
            "Restore flushed/ from a copy of the log"
            + ("." if nearest is None else f", or go back only to {nearest}, of which it has one."),
        )
    if reset_us is not None and max(past.used_us(), default=0) <= reset_us + CLOCKS_DIFFER_US:
        raise OptionError(
            "The write timestamps of this query do not lie in the future",
            "There is nothing to reset: leave --reset-timestamps out.",
        )
    if row is None:
        return
    if past.foreign:
        return  # what was flushed or begun from the other log cannot be finished from this one
    if row.begun is not None and row.begun.first > floor:
        first, last = row.begun.first, row.begun.last
        alone = first == last
        raise OptionError(
            (f"Epoch {first} is begun" if alone else f"Epochs {first} to {last} are begun")
            + ": rows of it may be in the table, of one attempt",
            "Let a flusher finish it first, by starting the query; or give up what stops it:"
            f" {errors.skip(first if alone else None, begun=True)}, and let a flusher pass over it."
            f" {_IF_RESTORED}",
        )
    if to == past.agreed and reset_us is None:
        raise OptionError(
            f"Ledger and log both say that epoch {to} is flushed", "There is nothing to set back."
        )


def refuse_unless_restored(past: Past, to: int, *, restored: bool) -> None:
    """Refuse to follow this log where a table takes rows of the other one for rows of this one.

    :param restored: the operator knows of both.
    :raises OptionError: the operator has not said so.
    """
    if past.foreign and past.in_order and not restored:
        raise OptionError(
            f"The ledger row follows another log, and rows of {past.in_order} are added to what is there, or"
            f" not written where there are some: what it has of that log's epochs from {to + 1} on would"
            " count for this one's, whose rows were passed over",
            f"Set the table back to epoch {to} as well, from its own backup, and pass --restored. If it"
            " cannot be set back, go on with a new checkpoint.",
        )


def refuse_lost(past: Past, to: int) -> None:
    """Refuse to go back behind an epoch that is no longer in the log.

    :raises MissingManifest: an epoch is no longer in the log.
    """
    above = range(to + 1, past.upper + 1)
    lost = [e for e in above if not (past.usable.get(e) or past.passed_over(e))]
    if lost:
        nearest = _possible(past, lost[-1])
        gone = f"{len(lost):,} epochs from {lost[0]} to {lost[-1]} are"
        raise MissingManifest(
            f"{gone if lost[1:] else f'Epoch {lost[0]} is'} no longer in the log as flushed, so it cannot"
            f" flush that again. {_TRIMMED}",
            "Restore manifests and segments from a copy of the log"
            + (
                f"; without them nothing can be flushed again, since epoch {lost[-1]} is gone, too."
                if nearest is None
                else f", or go back only to {nearest}: run this command with --to {nearest}."
            )
            + (f" {_IF_RESTORED}" if lost[-1] > past.floor else ""),
        )


def _possible(past: Past, least: int) -> int | None:
    """Return the first epoch from `least` on that `refuse_rewind` lets become the mark; None for none."""
    return min((e for e in past.records if e >= least and e != past.agreed), default=None)


def left_behind(past: Past, to: int, reset_us: int) -> LeftBehind:
    """Return the timestamps of the future that do not count any more from here on.

    :param reset_us: the present.
    """
    ahead = [us for us in past.used_us() if us > reset_us]
    return LeftBehind(to, min(ahead), max(ahead))


def rewound(past: Past, to: int, owner: Owner, *, reset_us: int | None = None) -> LedgerState:
    """Return the row that the ledger gets.

    :param reset_us: the present, if the timestamps are to go back to it; else they go on growing.
    """
    return LedgerState(
        log_id=owner.log_id,
        checkpoint=owner.checkpoint,
        flushed=to,
        last_us=max(past.used_us(), default=0) if reset_us is None else reset_us,
        begun=None,
        last=None,
    )
