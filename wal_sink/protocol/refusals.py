"""The errors by which several transitions of the state refuse. Pure (rule `identity`, and others)."""

from __future__ import annotations

from wal_sink.errors import (
    AlreadyPublished,
    Diverged,
    Fenced,
    LedgerBehindLog,
    MissingManifest,
    WrongOwner,
)
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import State, TargetState


def refuse_other_log(state: State, target: TargetState, row: LedgerRow) -> None:
    """Raise `WrongOwner` if a ledger row is of another log."""
    if (row.query_id, row.log_id) == (state.query_id, state.log_id):
        return
    raise WrongOwner(
        f"The ledger row of target {target.name} is of log {row.log_id}, and this is log {state.log_id}:"
        " another copy of the query writes there, or the log is a new one.",
        "Start a copy with a new checkpoint. If only this query owns the table: `wal-sink adopt CHECKPOINT`.",
    )


def refuse_completed(state: State, epoch: int, committed: int) -> None:
    """Raise `Fenced` if Spark has completed an epoch that a run wants to publish."""
    if committed >= epoch:
        raise fenced(state, epoch, f"Spark has completed epoch {committed}")


def fenced(state: State, epoch: int, reason: str = "") -> Fenced:
    """Return the error of a run that may not publish."""
    run = (state.run.run_id if state.run is not None else "") or "none"
    return Fenced(
        f"Epoch {epoch} is not published: {reason or f'the run that may publish is {run}'}. Another run of"
        " the query was quicker.",
        "Find out why two drivers run on one checkpoint, and see that one goes on.",
    )


def already_published(epoch: int) -> AlreadyPublished:
    """Return the error of a run that publishes an epoch again with other contents."""
    return AlreadyPublished(
        f"Epoch {epoch} was published before, by the same run and with other rows. Its first rows stay.",
        "With batch_writer, combine the rows by `df.union(…)` and write once for each batch. For several"
        " tables use option targets.",
    )


def set_back(what: str) -> Diverged:
    """Return the error of a run whose checkpoint was set back."""
    return Diverged(what, "Restore the newer checkpoint, or start the query with a new one.")


def missing_manifest(state: State, epoch: int) -> MissingManifest:
    """Return the error of a manifest that is not there."""
    nobody = (
        "Let a foreachBatch function call its writer for each batch, also for an empty one: it did not, or"
        " another sink has run. "
        if epoch > state.last.epoch
        else ""
    )
    return MissingManifest(
        f"Epoch {epoch} has no manifest in the log, whose newest epoch is {state.last.epoch}. Its rows would"
        " be skipped.",
        f"{nobody}Restore the folder manifests/ from a copy of the log, if one has the epoch. Else go on"
        f" without it: `wal-sink give-up CHECKPOINT --epoch {epoch}`.",
    )


def lacks_epochs(state: State, target: TargetState, problem: str) -> LedgerBehindLog:
    """Return the error of a target that lacks epochs which the log may not have."""
    lowest, mark = max(state.trimmed, target.first - 1), target.mark.epoch
    again = (
        f" If it lacks rows, name an earlier epoch, from {lowest} on: the epochs after it come again. Where"
        " rows are added, those that the target has are then there twice."
    )
    return LedgerBehindLog(
        f"Target {target.name} {problem}; the log has flushed epoch {mark}, and still has the epochs after"
        f" {state.trimmed}. Earlier rows may be missing in the target.",
        "Restore a newer copy of the target. Or go on with the rows that it has: `wal-sink set-mark"
        f" CHECKPOINT --to {mark} --target {target.name}`.{again if lowest < mark else ''}",
    )


def broken_chain(state: State, target: TargetState, first: int, missing: int) -> MissingManifest:
    """Return the error of pending epochs that no manifest names: that of a later epoch is gone or damaged.

    :param first: the first of them.
    :param missing: whose manifest it is.
    """
    return MissingManifest(
        f"The manifest of epoch {missing} is gone or damaged, and it names the epoch before. So epochs"
        f" {first} to {missing} cannot be flushed; the newest epoch of the log is {state.last.epoch}.",
        "Restore the folder manifests/ from a copy of the log. If there is none, go on after them: `wal-sink"
        f" set-mark CHECKPOINT --to {missing} --target {target.name}`. The target then lacks their rows.",
    )


def diverged(state: State, target: TargetState, row: LedgerRow) -> Diverged:
    """Return the error of a ledger row that no epoch of this log has made."""
    return Diverged(
        f"Target {target.name} has epoch {row.epoch} from another history: its digest is {row.digest}, and"
        f" the log, whose newest epoch is {state.last.epoch}, has another one.",
        "Log and checkpoint were restored without the target, or two copies of them ran. Decide which"
        " history is right: restore the target, or run"
        f" `wal-sink set-mark CHECKPOINT --to EPOCH --target {target.name}`.",
    )


def went_back_apart(state: State, target: TargetState, row: LedgerRow) -> LedgerBehindLog:
    """Return the error of a target whose rows and ledger row need not go back together."""
    return LedgerBehindLog(
        f"Target {target.name} went back from epoch {target.mark.epoch} to epoch {row.epoch}. Its rows and"
        " its ledger row may be of two moments, so the flush cannot tell which rows are missing.",
        "Compare the target with its source. Then name the last epoch whose rows the target has:"
        f" `wal-sink set-mark CHECKPOINT --to EPOCH --target {target.name}`. Epochs after {state.trimmed}"
        " are in the log, and are flushed again from there.",
    )
