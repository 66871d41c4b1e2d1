"""What a flusher does next, decided purely from what it saw. No I/O, no clock, no randomness.

The argument
------------

*Durable things.* Spark's `commits/`; in the log the claims of generations, manifests, segments and
`flushed/` records, each created once and whole; in the target one ledger row that changes only by
conditional updates, and rows whose cells keep the highest write timestamp. Every process may stop at
any instant, and any number of runs (old ones too) and flushers may act at once.

*No uncommitted row.* A row is written only after `begin` of its epoch (rule 14), and `begin` only for an
epoch N that `commits/` covers (rule 10). Manifests are listed after `commits/` is read (rule 9): whoever
wrote `commits/N` had published N before, so its manifest is in the listing. Is it the one that is taken?
A run that may still write `commits/N` took its ticket before it read the checkpoint (rule 2), so every run
that started later sees its claim or makes it meet a higher one: it is refused before or right after it
publishes (rules 3, 5, 7). What is left is a run that passed all checks, then stood still while a newer run
published N, and then woke to write `commits/N`. So of several manifests the one whose run is proven to
have written `commits/N` is taken (rule 11): `choice` says what is a proof. Only when there is none, and
nobody is left to give one, the highest generation is taken unproven. Even that never mixes two attempts,
as `begin` has decided once, and never loses an epoch.

*Two drivers.* Let A and B be runs that both publish N, A of the lower generation. Both are past their checks,
so B has claimed after A's last check and before A publishes again. One of them creates `commits/N`, as
Spark does not overwrite it. If that is B, A stops there; B goes on and its manifest of N + 1 proves B. If
it is A, B stops there; A goes on to N + 1, where its check finds B's claim: it leaves its note in `kept/` and
stops with `Fenced`. So whoever goes on leaves a proof, and no epoch above N has two attempts of A and B.

*Every committed row.* An epoch without rows has a manifest too, so none missing is ever taken for
empty (rule 12). Segments and manifests are deleted only at or below the newest `flushed/` record
(rules 17, 18), which is written only after `finish`, which follows the acknowledgement of all rows
(rule 16). Epochs are begun only at `flushed + 1` (rule 10): a failed epoch stops the line, and
nothing later can move the mark past it.

*Once.* All flushers of one window write the same rows with the same timestamps, since attempt and
base of each of its epochs are in the ledger before the first row (rule 14). So a repeated write changes
nothing, and a late one from a flusher that stood still loses against everything begun later: bases grow by
more than an epoch's rows (rule 14). Which epochs share a window changes none of this: see `windows`.

*Same path.* A flusher that has just started knows nothing and looks; one that has run for a year does
the same. There is no recovery code.

*Ways out.* What an operator decides is an object of the log, too, written before anything follows from it
(rule 22). An epoch that is given up is begun and finished like any other, without rows: the mark never
jumps. `wal_sink.admin` has the argument for each verb.
"""

from __future__ import annotations

from wal_sink import remedies
from wal_sink.errors import CorruptLog, LedgerBehindLog, WrongOwner
from wal_sink.model.ledger import Owner, Window
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch, LogIdentity
from wal_sink.protocol.steps import (
    Choose,
    CreateLedger,
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
    """Tell from checkpoint and log alone that there is nothing to flush; the target is not asked then.

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
    """Decide. Each call stands for itself: nothing is remembered from pass to pass.

    :param owner: whom the ledger row has to belong to.
    :raises WrongOwner: the ledger row belongs to another log or checkpoint (rule 1).
    :raises LedgerBehindLog: the ledger knows less than the log (rules 13, 19).
    """
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
    left = {attempt.epoch for attempt in view.attempts if attempt.epoch <= upto}
    return Trim(tuple(sorted(left))) if left else None


def _flush_step(view: View) -> Resume | Choose | Rest:
    assert view.mark is not None
    if view.mark.begun is not None:  # rule 10
        return Resume(view.mark.begun)
    following = view.mark.flushed + 1
    # Implied by `resting`; said again, so that nobody can break it.
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
    if (mark.log_id, mark.checkpoint) != (owner.log_id, owner.checkpoint):  # rule 1
        raise WrongOwner(
            f"The ledger row of query {owner.query_id} belongs to log {mark.log_id} of checkpoint"
            f" {mark.checkpoint}, not to log {owner.log_id} of {owner.checkpoint}",
            "A copied checkpoint must not flush: start the copy with a new checkpoint, or give it a"
            f" ledger table of its own (cassandra.ledgerTable). If it was moved: {remedies.ADOPT}.",
        )
    floor = recorded.epoch if recorded else view.identity.first_epoch - 1
    if mark.flushed < floor:  # rule 19
        raise LedgerBehindLog(
            f"The ledger says that epoch {mark.flushed} is flushed, the log says {floor}",
            "The target was restored from a backup, or the ledger table truncated. If the rows are"
            f" gone, too: {remedies.rewind(mark.flushed)} flushes the epochs again that the log still"
            f" holds. If the table holds all of them: {remedies.rewind(floor)}.",
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
    return None


def refuse_missing_records(last: Window, recorded: FlushedEpoch | None) -> None:
    """After `RecordsBehind`: raise unless the records, read again after the ledger, join its last window.

    They do when another flusher was at work between the two reads.

    :raises CorruptLog: records are missing.
    """
    newest = recorded.epoch if recorded else -1
    if newest < last.first - 1:
        raise CorruptLog(
            f"The ledger says that epoch {last.last} is flushed, the log records only {newest}",
            "Restore the log's flushed/ folder from its newest copy.",
        )
