"""Errors that several transitions of the state raise. Pure functions."""

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
    """Raise `WrongOwner` if a ledger row belongs to another log (rule `identity`)."""
    if (row.query_id, row.log_id) == (state.query_id, state.log_id):
        return
    raise WrongOwner(
        f"The ledger row of target {target.name} belongs to log {row.log_id}, and this is log {state.log_id}."
        " Another copy of the query writes to the target, or this log is new.",
        "Start a copy with a new checkpoint. If only this query owns the table: `wal-sink adopt CHECKPOINT`.",
    )


def refuse_completed(state: State, epoch: int, committed: int) -> None:
    """Raise `Fenced` if Spark has completed the epoch that a run wants to publish."""
    if committed >= epoch:
        raise fenced(state, epoch, f"Spark has completed epoch {committed}")


def fenced(state: State, epoch: int, reason: str = "") -> Fenced:
    """Return the error of a run that may not publish."""
    run = (state.run.run_id if state.run is not None else "") or "none"
    return Fenced(
        f"Epoch {epoch} is not published: {reason or f'the run that may publish is {run}'}. Another run of"
        " the query was faster.",
        "Find out why two drivers run on one checkpoint, and stop one of them.",
    )


def already_published(epoch: int) -> AlreadyPublished:
    """Return the error of a run that publishes an epoch twice."""
    return AlreadyPublished(
        f"The same run has published epoch {epoch} before. The rows of the first time stay.",
        "With batch_writer, combine the rows by `df.union(…)` and write once for each batch. To write to"
        " several tables, use the option targets.",
    )


def set_back(what: str) -> Diverged:
    """Return the error of a run whose checkpoint was set back."""
    return Diverged(what, "Restore the newer checkpoint, or start the query with a new one.")


def missing_manifest(state: State, epoch: int) -> MissingManifest:
    """Return the error for an epoch without a manifest."""
    hint = (
        "A foreachBatch function must call its writer for each batch, also for an empty one. It did not, or"
        " the query ran with another sink. "
        if epoch > state.last.epoch
        else ""
    )
    return MissingManifest(
        f"Epoch {epoch} has no manifest in the log, whose newest epoch is {state.last.epoch}. The rows of the"
        " epoch would be skipped.",
        f"{hint}Restore the folder manifests/ from a copy of the log, if one has the epoch. Otherwise"
        f" continue without the epoch: `wal-sink give-up CHECKPOINT --epoch {epoch}`.",
    )


def lacks_epochs(state: State, target: TargetState, problem: str) -> LedgerBehindLog:
    """Return the error of a target whose ledger row is behind the epochs that the log still has."""
    lowest, mark = max(state.trimmed, target.first - 1), target.mark.epoch
    again = (
        f" If the target lacks rows, name an earlier epoch, at least {lowest}. The epochs after it are"
        " flushed again. A target that appends rows then has some of them twice."
    )
    return LedgerBehindLog(
        f"Target {target.name} {problem}. The log has flushed epoch {mark}, and still has the epochs after"
        f" {state.trimmed}. The target may lack rows of earlier epochs.",
        "Restore a newer copy of the target. Or continue with the rows that it has: `wal-sink set-mark"
        f" CHECKPOINT --to {mark} --target {target.name}`.{again if lowest < mark else ''}",
    )


def broken_chain(state: State, target: TargetState, first: int, missing: int) -> MissingManifest:
    """Return the error of pending epochs to which no link leads.

    The manifest of epoch `missing` is gone or damaged, and with it the link to the epoch before.

    :param first: the first of the pending epochs.
    :param missing: the epoch of the damaged manifest.
    """
    return MissingManifest(
        f"The manifest of epoch {missing} is gone or damaged. Each manifest names the one before it, so"
        f" epochs {first} to {missing} cannot be flushed. The newest epoch of the log is {state.last.epoch}.",
        "Restore the folder manifests/ from a copy of the log. Without a copy, continue after these epochs:"
        f" `wal-sink set-mark CHECKPOINT --to {missing} --target {target.name}`. The target then lacks the"
        " rows of these epochs.",
    )


def diverged(state: State, target: TargetState, row: LedgerRow) -> Diverged:
    """Return the error of a ledger row that does not match the history of this log."""
    return Diverged(
        f"Target {target.name} has epoch {row.epoch} from another history. The digest in its ledger row is"
        f" {row.digest}; the log, whose newest epoch is {state.last.epoch}, has a different digest.",
        "Log and checkpoint were restored without the target, or two copies of them ran. Decide which"
        " history is right: restore the target, or run"
        f" `wal-sink set-mark CHECKPOINT --to EPOCH --target {target.name}`.",
    )


def restored_in_parts(state: State, target: TargetState, row: LedgerRow) -> LedgerBehindLog:
    """Return the error for a target whose rows and ledger row may have been restored to different times."""
    return LedgerBehindLog(
        f"Target {target.name} went back from epoch {target.mark.epoch} to epoch {row.epoch}. Its rows and"
        " its ledger row may have gone back to different times, so it is unknown which rows are missing.",
        "Compare the target with its source. Then name the last epoch whose rows the target has:"
        f" `wal-sink set-mark CHECKPOINT --to EPOCH --target {target.name}`. The log has the epochs after"
        f" {state.trimmed}, and flushes those after EPOCH again.",
    )
