"""Decides what a flusher does next, from what one pass observed. Pure.

Finish the begun window; else begin the epoch right after `flushed`, if `commits/` covers it (rule 10).
Before that, bring ledger and `flushed/` records together (rules 13, 17, 19), and trim flushed epochs (rule
18). A flusher that has just started asks the ledger once more; else it takes the same path as one that has
run for a year. There is no recovery code.

Why this is exactly-once: `docs/protocol/argument.md`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from wal_sink import errors
from wal_sink.errors import CorruptLog, Diverged, LedgerBehindLog, LedgerShadowed, WrongOwner
from wal_sink.model import paths
from wal_sink.model.ledger import LedgerState, Owner, Window
from wal_sink.model.manifest import Attempt, Published
from wal_sink.model.records import FlushedEpoch, LogIdentity


@dataclass(frozen=True)
class Observation:
    """What a flusher has read in one pass, in the order in which it read (rule 9)."""

    checkpointed: int
    """The highest epoch that `commits/` covers, -1 for none."""
    recorded: FlushedEpoch | None
    """The newest `flushed/` record; read before the ledger, which may only be ahead of it."""
    identity: LogIdentity | None = None
    asked: bool = False
    """Whether the pass needed the ledger row, see `idle_step`. Then the row was read, or is `known`."""
    row: LedgerState | None = None
    """The ledger row; None when there is none, or when it was not needed."""
    attempts: tuple[Attempt, ...] = ()
    """The manifests there are."""
    rewound: bool = False
    """Whether an operator has rewound the log; looked at only where neither row nor record is there."""
    trimmable: int = -1
    """The highest epoch that `wal.retention`, and each of several targets, lets be trimmed by now."""
    retained: tuple[int, ...] = ()
    """Flushed epochs that `wal.retention` keeps no longer."""
    stale: bool = False
    """Whether newer records than `recorded` were there once `attempts` were listed: the manifests of their
    epochs may be gone already."""
    named: FlushedEpoch | None = None
    """The record of the epoch that the row has flushed last; None: one of them does not say."""
    known: bool = False
    """Whether `row` is what this flusher saw last, and was not read in this pass (rule 14)."""
    absent: str = ""
    """Why nothing is flushed for this target of several; then nothing else was looked at."""

    @property
    def flushed(self) -> int:
        """The epoch of the newest record, -1 for none."""
        return self.recorded.epoch if self.recorded else -1

    @property
    def agreed(self) -> int | None:
        """The epoch that ledger and records say is flushed; None: not both were read, or they differ."""
        if self.row is None or self.known or self.recorded is None:
            return None
        return self.row.flushed if self.row.flushed == self.recorded.epoch else None


class Idle(NamedTuple):
    """There is nothing to do."""

    why: str
    warn: bool = False
    """Whether to warn an operator."""


class Stale(NamedTuple):
    """The parts of the observation are of different times: look again."""


class CreateLedger(NamedTuple):
    """Create the ledger row: the target has none of this query yet."""

    flushed: int


class RecordFlushed(NamedTuple):
    """The ledger is ahead of the log's mark: write the records of its last window."""

    window: Window


class Trim(NamedTuple):
    """Delete what the log still holds of flushed epochs."""

    epochs: tuple[int, ...]


class Resume(NamedTuple):
    """Finish exactly what is begun."""

    window: Window


class Choose(NamedTuple):
    """Begin an epoch: `attempts.choose` says from which of its attempts.

    Those that follow it may share its window: `windows.merged`.
    """

    epoch: int
    attempts: tuple[Attempt, ...]
    """All manifests there are."""
    checkpointed: int | None = None
    """The highest epoch that `commits/` covers, if the caller knows it: nothing was made after that one."""


@dataclass(frozen=True)
class Begin:
    """Begin a window with these attempts, one an epoch, contiguous."""

    attempts: tuple[Attempt, ...]
    proven: bool = True
    """False when nothing tells which of several attempts Spark has kept (rule 11)."""
    manifests: tuple[Published, ...] = field(default=(), compare=False, repr=False)
    """Those of the attempts, as they were read to choose. No manifest ever changes, so the attempts alone
    tell two choices apart."""

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epochs of the window."""
        return tuple(attempt.epoch for attempt in self.attempts)


class PassOver(NamedTuple):
    """Begin an epoch without rows: Spark made it without a sink (rule 12), or it is given up (22)."""

    epoch: int
    generation: int
    """The highest one that had published the epoch before it was given up, 0 for none."""
    offsets_digest: str
    why: str = "Spark's state repartition made it"
    decided: bool = False
    """Whether an operator has given it up, for one target."""

    @property
    def epochs(self) -> tuple[int, ...]:
        """The epoch."""
        return (self.epoch,)


class ManifestMissing(NamedTuple):
    """A checkpointed epoch has no manifest: missing, unless it was flushed and trimmed meanwhile."""

    epoch: int


class RecordsBehind(NamedTuple):
    """The ledger is further ahead of the records than a window: the records were read too early, or lost."""

    window: Window


Step: TypeAlias = (
    RecordsBehind
    | Stale
    | Idle
    | CreateLedger
    | RecordFlushed
    | Trim
    | Resume
    | Choose
    | Begin
    | PassOver
    | ManifestMissing
)


def idle_step(
    checkpointed: int,
    recorded: FlushedEpoch | None,
    identity: LogIdentity | None,
    attempts: tuple[Attempt, ...] = (),
) -> Idle | None:
    """Decide from checkpoint and log alone whether there is nothing to flush: then the target is not read.

    :raises CorruptLog: `log.json` is gone, although epochs are flushed or published.
    """
    if identity is None:
        waiting = [attempt.epoch for attempt in attempts if attempt.epoch <= checkpointed]
        if recorded is not None or waiting:
            why = (
                f"flushed/ records epoch {recorded.epoch}" if recorded else f"{min(waiting)} waits"
            )
            raise CorruptLog(f"log.json is gone while {why}", errors.LOST_IDENTITY)
        return Idle("the query was never started")
    if recorded is not None and checkpointed < recorded.epoch:  # rule 19
        return Idle(
            f"epoch {recorded.epoch} is flushed, but the checkpoint says {checkpointed}:"
            " it was set back. Nothing is flushed until it has caught up",
            warn=True,
        )
    if checkpointed > identity.mark(recorded.epoch if recorded else -1):
        return None
    if recorded is None:
        return Idle("nothing is checkpointed yet")
    return Idle("everything checkpointed is flushed")


def next_step(observed: Observation, owner: Owner) -> Step:
    """Decide from this pass alone.

    :param owner: to whom the ledger row has to belong.
    :raises WrongOwner: the ledger row belongs to another log or checkpoint (rule 1).
    :raises LedgerBehindLog: the ledger knows less than the log (rules 13, 19).
    """
    if observed.absent:
        return Idle(observed.absent)
    if observed.stale:  # rule 9
        return Stale()
    return (
        (_ledger_step(observed, owner) if observed.asked else None)
        or _trim_step(observed)
        or idle_step(observed.checkpointed, observed.recorded, observed.identity, observed.attempts)
        or _flush_step(observed)
    )


def _trim_step(observed: Observation) -> Trim | None:
    """Rule 18: what is flushed goes when its time is over, late manifests of zombies too."""
    upto = min(observed.trimmable, observed.flushed)
    left = {attempt.epoch for attempt in observed.attempts if attempt.epoch <= upto}.union(
        observed.retained
    )
    return Trim(tuple(sorted(left))) if left else None


def _flush_step(observed: Observation) -> Resume | Choose | Idle:
    assert observed.row is not None
    if observed.row.begun is not None:  # rule 10
        return Resume(observed.row.begun)
    following = observed.row.flushed + 1
    # Implied by `idle_step`; checked again, so that no change there can break it.
    if following > observed.checkpointed:
        return Idle("everything checkpointed is flushed")
    return Choose(following, observed.attempts)  # rules 11 and 12


def _ledger_step(
    observed: Observation, owner: Owner
) -> CreateLedger | RecordFlushed | RecordsBehind | None:
    """Bring ledger and `flushed/` records together before anything else is done."""
    assert observed.identity is not None
    row, recorded, first = observed.row, observed.recorded, observed.identity.first_epoch
    floor = observed.identity.mark(observed.flushed)
    if row is None:
        if recorded is None and not observed.rewound:  # rule 13
            return CreateLedger(floor)
        if recorded is None:  # its records are gone, but not the timestamps that were used
            raise LedgerBehindLog(
                f"The ledger has no row for query {owner.query_id}, but the log was rewound to {floor}",
                f"Restore the ledger table, or make its row anew: {errors.rewind(floor)}.",
            )
        raise LedgerBehindLog(
            f"The ledger has no row for query {owner.query_id}, but the log says that epoch"
            f" {floor} is flushed",
            f"If the query writes to another store than before: it has none of the rows up to epoch {floor},"
            f" and gets those after it if you {errors.rewind(floor)}. If the rows are all there, and only the"
            " ledger's row is lost, that command makes it anew. Else restore the ledger table, or start the"
            " query with a new checkpoint.",
        )
    refuse_other_owner(row, owner)
    if row.flushed < first - 1:  # rule 19; the row was adopted from a log that is gone
        raise LedgerBehindLog(
            f"The ledger says that epoch {row.flushed} is flushed, and this log begins with epoch {first}:"
            f" it never had epochs {row.flushed + 1} to {first - 1}",
            "They were in a log that was deleted or replaced, or the target was attached behind them. What"
            " the table lacks of them has to be loaded from a copy of that log, from another target or from"
            f" the source. Then {errors.rewind(first - 1)}: the flush goes on behind them.",
        )
    named = None if observed.known else observed.named
    if named is not None and is_from_before_rewind(row, named):
        raise LedgerBehindLog(
            f"The ledger says that epoch {row.flushed} was flushed with older timestamps than the log says",
            "The target was restored from a backup from before a rewind, and may lack what was flushed since:"
            f" rewind to that epoch again, which {paths.INTERVENTION.folder} of the log names. If the table"
            f" holds all rows, {errors.rewind(floor)}.",
        )
    if row.flushed > floor or (named is not None and is_unrecorded(row, named)):  # rule 17
        return _records_step(row, floor)
    if row.flushed < floor:  # rule 19
        raise LedgerBehindLog(
            f"The ledger says that epoch {row.flushed} is flushed, the log says {floor}",
            "The target was restored from a backup, or the ledger table truncated. If the rows are gone,"
            f" too, {errors.rewind(row.flushed)}: the epochs that the log still holds are flushed"
            f" again. If the table holds all of them, {errors.rewind(floor)}.",
        )
    refuse_torn(row, floor)
    return None


def _records_step(row: LedgerState, floor: int) -> RecordFlushed | RecordsBehind:
    """Let the log record what the ledger row has flushed last."""
    if row.last is None:  # a command has made it
        raise _records_missing(row.flushed, floor)
    if row.last.last != row.flushed:
        raise CorruptLog(
            f"The ledger says that epoch {row.flushed} is flushed, and its last window is {row.last}",
            "Restore the ledger row from a backup; it was edited by hand.",
        )
    return RecordsBehind(row.last) if row.last.first > floor + 1 else RecordFlushed(row.last)


def is_from_before_rewind(row: LedgerState, recorded: FlushedEpoch) -> bool:
    """Whether the log records an epoch that the row has flushed last as flushed again since (rule 19)."""
    last = row.last.epochs[-1] if row.last is not None else None
    return last is not None and last.epoch == recorded.epoch and last.base_us < recorded.base_us


def is_unrecorded(row: LedgerState, recorded: FlushedEpoch) -> bool:
    """Whether the row has flushed an epoch last, after what the log records of it, and from another attempt.

    It follows another log (rule 23); or the record is a late one of a flusher that stood still over a rewind.
    """
    last = row.last.epochs[-1] if row.last is not None else None
    if last is None or not last.epoch == row.flushed == recorded.epoch:
        return False
    later = last.base_us > recorded.base_us
    return later and not recorded.names(last.digest, last.offsets_digest)


def refuse_torn(state: LedgerState, floor: int) -> None:
    """Refuse a row that no update has written as a whole: its windows do not fit the epoch that is flushed.

    Where a target hides updates cell by cell, the row may lack a part of one that was acknowledged (rule 16).

    :param floor: the log's mark.
    :raises LedgerShadowed: it is such a row.
    """
    fits = state.begun is None or state.begun.first == state.flushed + 1
    if not fits or (state.last is not None and state.last.last != state.flushed):
        raise LedgerShadowed(
            f"The ledger row says that epoch {state.flushed} is flushed, and its windows are of other epochs:"
            f" begun is {_epochs(state.begun)}, last is {_epochs(state.last)}",
            errors.shadow_remedy(floor),
        )


def _epochs(window: Window | None) -> str:
    return "nothing" if window is None else f"{window.first} to {window.last}"


def refuse_other_owner(row: LedgerState | None, owner: Owner) -> None:
    """Refuse a ledger row that belongs to another log or checkpoint (rule 1).

    :raises WrongOwner: it does.
    """
    if row is None or (row.log_id, row.checkpoint) == (owner.log_id, owner.checkpoint):
        return
    if row.checkpoint == owner.checkpoint:
        raise WrongOwner(
            f"The ledger row of query {owner.query_id} belongs to log {row.log_id}, and the log of"
            f" {owner.checkpoint} is another one, {owner.log_id}: the former one was deleted or replaced",
            f"Epochs that waited in it are not in this one. To go on with this one: {errors.ADOPT}, then"
            " `wal-sink verify CHECKPOINT` names the epochs that neither log nor ledger has. A copied"
            " checkpoint must not flush: start the copy with a new one.",
        )
    raise WrongOwner(
        f"The ledger row of query {owner.query_id} belongs to log {row.log_id} of checkpoint"
        f" {row.checkpoint}, not to log {owner.log_id} of {owner.checkpoint}",
        "A copied checkpoint must not flush: start the copy with a new checkpoint, or give it a"
        f" ledger table of its own ({errors.LEDGER_TABLE}). If it was moved: {errors.ADOPT}.",
    )


def refuse_foreign(foreign: int | None, observed: Observation) -> None:
    """Refuse to act on a window of the ledger row that is not of this log (rule 23).

    :param foreign: the first epoch of the window that is not of this log; None when all are.
    :raises Diverged: the ledger row follows another log.
    """
    if foreign is not None:
        assert observed.identity is not None
        mark = observed.identity.mark(observed.flushed)
        raise Diverged(
            f"The ledger row follows another log: what it says of epoch {foreign} is not in this one, or"
            f" Spark has computed it here from other source offsets; this log is flushed up to {mark}",
            f"Nothing of this log is deleted. {errors.rewind_if_restored(mark)}",
        )


def refuse_missing_records(
    last: Window, recorded: FlushedEpoch | None, foreign: int | None, observed: Observation
) -> None:
    """After `RecordsBehind`: raise unless the records, read again after the ledger, join its last window.

    They do when another flusher was at work between the two reads.

    :param foreign: the first epoch of the window that is not of this log; None when all are.
    :raises Diverged: the log was restored, or is a clone (rule 23).
    :raises CorruptLog: records are missing.
    """
    assert observed.identity is not None
    newest = observed.identity.mark(recorded.epoch if recorded else -1)
    if newest >= last.first - 1:
        return
    refuse_foreign(foreign, observed)
    raise _records_missing(last.last, newest)


def _records_missing(flushed: int, mark: int) -> CorruptLog:
    return CorruptLog(
        f"The ledger says that epoch {flushed} is flushed, the log records only {mark}",
        f"Restore the log's flushed/ folder from its newest copy. {errors.rewind_if_restored(mark)}",
    )
