"""Decides what a flusher does next, from what it saw in one pass.

Finish what is begun; else begin the epoch right after the mark, if `commits/` covers it (rule 10). Before
that, bring ledger and `flushed/` records together (rules 13, 17, 19), and trim what is flushed (rule 18). A
flusher that has just started takes the same path as one that has run for a year: there is no recovery code.

Why this is exactly-once: `docs/protocol.md#the-argument`.
"""

from __future__ import annotations

from wal_sink import remedies
from wal_sink.errors import CorruptLog, Diverged, LedgerBehindLog, WrongOwner
from wal_sink.model.ledger import Mark, Owner, Window
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch, LogIdentity
from wal_sink.protocol.steps import (
    Choose,
    CreateLedger,
    LookAgain,
    RecordFlushed,
    RecordsBehind,
    Rest,
    Resume,
    Step,
    Trim,
    View,
)


def resting(
    checkpointed: int,
    recorded: FlushedEpoch | None,
    identity: LogIdentity | None,
    attempts: tuple[Attempt, ...] = (),
) -> Rest | None:
    """Tell from checkpoint and log alone that there is nothing to flush; then the target is not asked.

    :raises CorruptLog: the log says what was flushed, or is to be, but no longer whose it is.
    """
    if identity is None:
        # A first publish under way is above `checkpointed`: it creates log.json before its manifest.
        waiting = [attempt.epoch for attempt in attempts if attempt.epoch <= checkpointed]
        if recorded is not None or waiting:
            why = (
                f"flushed/ records epoch {recorded.epoch}" if recorded else f"{min(waiting)} waits"
            )
            raise CorruptLog(f"log.json is gone while {why}", "Restore it from a copy of the log.")
        return Rest("nothing is published yet")
    if recorded is not None and checkpointed < recorded.epoch:  # rule 19
        return Rest(
            f"epoch {recorded.epoch} is flushed, but the checkpoint says {checkpointed}:"
            " it was set back. Nothing is flushed until it has caught up",
            odd=True,
        )
    if recorded is not None and checkpointed == recorded.epoch:
        return Rest("everything checkpointed is flushed")
    if checkpointed < identity.first_epoch:
        return Rest("nothing is checkpointed yet")
    return None


def next_step(view: View, owner: Owner) -> Step:
    """Decide from this pass alone.

    :param owner: to whom the ledger row has to belong.
    :raises WrongOwner: the ledger row belongs to another log or checkpoint (rule 1).
    :raises LedgerBehindLog: the ledger knows less than the log (rules 13, 19).
    """
    if view.absent:
        return Rest(view.absent)
    if view.overtaken:  # rule 9
        return LookAgain()
    return (
        (_ledger_step(view, owner) if view.asked else None)
        or _trim_step(view)
        or resting(view.checkpointed, view.recorded, view.identity, view.attempts)
        or _flush_step(view)
    )


def _trim_step(view: View) -> Trim | None:
    """Rule 18: what is flushed goes when its time is over, late manifests of zombies too."""
    recorded = view.recorded.epoch if view.recorded else -1
    upto = recorded if view.trimmable is None else min(view.trimmable, recorded)
    left = {attempt.epoch for attempt in view.attempts if attempt.epoch <= upto}.union(
        view.retained
    )
    return Trim(tuple(sorted(left))) if left else None


def _flush_step(view: View) -> Resume | Choose | Rest:
    assert view.mark is not None
    if view.mark.begun is not None:  # rule 10
        return Resume(view.mark.begun)
    following = view.mark.flushed + 1
    # Implied by `resting`; checked again, so that no change there can break it.
    if following > view.checkpointed:
        return Rest("everything checkpointed is flushed")
    return Choose(following, view.attempts)  # rules 11 and 12


def _ledger_step(view: View, owner: Owner) -> CreateLedger | RecordFlushed | RecordsBehind | None:
    """Bring ledger and `flushed/` records together before anything else is done."""
    assert view.identity is not None
    mark, recorded = view.mark, view.recorded
    if mark is None:
        before = view.identity.first_epoch - 1
        if recorded is None and not view.rewound:  # rule 13
            return CreateLedger(before)
        if recorded is None:  # its records are gone, but not the timestamps that were used
            raise LedgerBehindLog(
                f"The ledger has no row for query {owner.query_id}, but the log was rewound to {before}",
                f"Restore the ledger table, or make its row anew: {remedies.rewind(before)}.",
            )
        raise LedgerBehindLog(
            f"The ledger has no row for query {owner.query_id}, but the log says that epoch"
            f" {recorded.epoch} is flushed",
            "Restore the ledger table. If the rows are all there, make its row anew:"
            f" {remedies.rewind(recorded.epoch)}. If not, start the query with a new checkpoint.",
        )
    refuse_other_owner(mark, owner)
    floor = recorded.epoch if recorded else view.identity.first_epoch - 1
    first = view.identity.first_epoch
    if mark.flushed < first - 1:  # rule 19; the row was adopted from a log that is gone
        raise LedgerBehindLog(
            f"The ledger says that epoch {mark.flushed} is flushed, and this log begins with epoch {first}:"
            f" it never had epochs {mark.flushed + 1} to {first - 1}",
            "They were in a log that was deleted or replaced. What the table lacks of them has to be loaded"
            f" from a copy of that log, or from the source. Then {remedies.rewind(first - 1)}: the flush goes"
            " on behind them.",
        )
    if mark.flushed < floor:  # rule 19
        raise LedgerBehindLog(
            f"The ledger says that epoch {mark.flushed} is flushed, the log says {floor}",
            "The target was restored from a backup, or the ledger table truncated. If the rows are gone,"
            f" too, {remedies.rewind(mark.flushed)}: the epochs that the log still holds are flushed"
            f" again. If the table holds all of them, {remedies.rewind(floor)}.",
        )
    if mark.flushed > floor:  # rule 17
        if mark.last is None or mark.last.last != mark.flushed:
            raise CorruptLog(
                f"The ledger says that epoch {mark.flushed} is flushed, and its last window is"
                f" {mark.last}",
                "Restore the ledger row from a backup; it was edited by hand.",
            )
        if mark.last.first > floor + 1:
            return RecordsBehind(mark.last)
        return RecordFlushed(mark.last)
    if (
        view.unrecorded and mark.last is not None
    ):  # rule 17: a power loss took some of a window's records
        return RecordFlushed(mark.last)
    return None


def refuse_other_owner(mark: Mark | None, owner: Owner) -> None:
    """Refuse a ledger row that belongs to another log or checkpoint (rule 1).

    :raises WrongOwner: it does.
    """
    if mark is None or (mark.log_id, mark.checkpoint) == (owner.log_id, owner.checkpoint):
        return
    if mark.checkpoint == owner.checkpoint:
        raise WrongOwner(
            f"The ledger row of query {owner.query_id} belongs to log {mark.log_id}, and the log of"
            f" {owner.checkpoint} is another one, {owner.log_id}: the former one was deleted or replaced",
            f"Epochs that waited in it are not in this one. To go on with this one: {remedies.ADOPT}, then"
            " `wal-sink verify CHECKPOINT` names the epochs that neither log nor ledger has. A copied"
            " checkpoint must not flush: start the copy with a new one.",
        )
    raise WrongOwner(
        f"The ledger row of query {owner.query_id} belongs to log {mark.log_id} of checkpoint"
        f" {mark.checkpoint}, not to log {owner.log_id} of {owner.checkpoint}",
        "A copied checkpoint must not flush: start the copy with a new checkpoint, or give it a"
        f" ledger table of its own ({remedies.LEDGER_TABLE}). If it was moved: {remedies.ADOPT}.",
    )


def refuse_foreign(foreign: int | None, view: View) -> None:
    """Refuse to act on a window of the ledger row that is not of this log (rule 23).

    :param foreign: the first epoch of the window that is not of this log; None when all are.
    :raises Diverged: the ledger row follows another log.
    """
    if foreign is not None:
        assert view.identity is not None
        mark = view.recorded.epoch if view.recorded else view.identity.first_epoch - 1
        raise Diverged(
            f"The ledger row follows another log: what it says of epoch {foreign} is not in this one, or"
            f" Spark has computed it here from other source offsets; this log is flushed up to {mark}",
            f"Nothing of this log is deleted. {remedies.restored(mark)}",
        )


def refuse_missing_records(
    last: Window, recorded: FlushedEpoch | None, foreign: int | None, view: View
) -> None:
    """After `RecordsBehind`: raise unless the records, read again after the ledger, join its last window.

    They do when another flusher was at work between the two reads.

    :param foreign: the first epoch of the window that is not of this log; None when all are.
    :raises Diverged: the log was restored, or is a clone (rule 23).
    :raises CorruptLog: records are missing.
    """
    newest = recorded.epoch if recorded else -1
    if newest >= last.first - 1:
        return
    refuse_foreign(foreign, view)
    raise CorruptLog(
        f"The ledger says that epoch {last.last} is flushed, the log records only {newest}",
        f"Restore the log's flushed/ folder from its newest copy. {remedies.restored(newest)}",
    )
