"""Decides what a flusher does next for a target, by rules `order` and `restored`. Pure functions."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import EpochManifest, Predecessor, State, TargetState
from wal_sink.protocol.refusals import (
    broken_chain,
    diverged,
    lacks_epochs,
    missing_manifest,
    refuse_other_log,
    restored_in_parts,
)

Chain = Mapping[int, EpochManifest]
"""Manifests by epoch. Each manifest has the digest that the manifest of the next epoch names."""


class Step(enum.Enum):
    """The next step of a flusher for a target."""

    WAIT = "wait"
    SET_ROW = "set row"
    """Set the ledger row without writing rows."""
    MARK = "mark"
    WENT_BACK = "went back"
    FLUSH = "flush"
    """Write the rows of epochs, then set the ledger row."""


class Decision(NamedTuple):
    """The next step of a flusher, with its ledger row and epochs."""

    step: Step
    row: LedgerRow | None = None
    """The ledger row that the step sets or records."""
    epochs: range = range(0)
    """Epochs whose rows the step writes. All of them are in the chain."""
    warning: str = ""


def may_keep(state: State, name: str, row: LedgerRow | None) -> bool:
    """Return True if a pass may use the ledger row that an earlier pass read.

    The row must be the row of the mark. Otherwise another flusher may have moved row and mark. If only the
    row in the target has moved since, `finish` fails, and the flusher reads the row.
    """
    target = state.target(name)
    return target is not None and row is not None and row[:4] == (
        state.query_id, state.log_id, target.mark.epoch, target.mark.digest,
    )  # fmt: skip


def decide(
    state: State,
    name: str,
    committed: int,
    row: LedgerRow | None,
    chain: Chain,
    max_epochs: int = 1,
    *,
    restores_together: bool = True,
) -> Decision:
    """Return the next step of a flusher for a target.

    The caller reads state, `commits/`, row and chain in this order.

    The ledger row is the truth about the target. If the row is ahead of the mark or behind it, the mark
    follows the row, provided that the chain has the digest of the row.

    Only settled and completed epochs are flushed. An epoch that is not settled may still get another attempt.
    After a checkpoint was restored, an epoch may be settled and not completed. The flush then waits until
    Spark has completed the epoch again.

    A target that `open_run` added may have an old ledger row. That row is lifted to the epoch before the
    target's first epoch. A row before the first epoch of the log is an error, since the target may lack
    epochs of an earlier log that was lost.

    :param committed: the last epoch of `commits/`.
    :param row: the ledger row, read after the state or kept (`may_keep`); None if the target has no row.
    :param max_epochs: how many epochs one window may have.
    :param restores_together: False if rows and ledger row of the target can go back separately, as in Kafka.
    :raises WrongOwner: the row belongs to another log.
    :raises LedgerBehindLog: the row is missing, or is behind what the log still has.
    :raises Diverged: the row is at the mark and has another digest.
    :raises MissingManifest: Spark has completed an epoch that is not in the log.
    """
    target = state.target(name)
    if target is None or target.given_up:
        return Decision(Step.WAIT)
    mark, start_epoch = target.mark, target.first - 1
    start = LedgerRow(state.query_id, state.log_id, start_epoch, mark.digest)
    if row is None:
        if mark.epoch == start_epoch:
            return Decision(Step.SET_ROW, start)
        raise lacks_epochs(state, target, "has no ledger row any more")
    refuse_other_log(state, target, row)
    if row.epoch > mark.epoch:
        return Decision(Step.MARK, row)
    if row.epoch < start_epoch:
        if mark.epoch == start_epoch and target.first > state.first:
            lacks = (
                f"Target {name} lacks epochs {row.epoch + 1} to {start_epoch}: it got nothing then."
            )
            return Decision(Step.SET_ROW, start, warning=lacks)
        raise lacks_epochs(
            state, target, f"has epoch {row.epoch}, and this log begins after {start_epoch}"
        )
    if row.epoch < mark.epoch:
        if not restores_together:
            raise restored_in_parts(state, target, row)
        return Decision(Step.WENT_BACK, row)
    if row.digest != mark.digest:
        raise diverged(state, target, row)
    return _flush_step(state, target, min(committed, state.settled), committed, chain, max_epochs)


def _flush_step(
    state: State, target: TargetState, final: int, committed: int, chain: Chain, max_epochs: int
) -> Decision:
    """Return the step that flushes the epochs after the mark.

    An epoch that was given up gets a step of its own, which moves the ledger row over the epoch.

    :param final: the last epoch that is settled and completed.
    """
    epoch = target.mark.epoch + 1
    if committed > state.last.epoch and epoch > state.last.epoch:
        raise missing_manifest(state, state.last.epoch + 1)
    if epoch > final:
        return Decision(Step.WAIT)
    given_up = state.epochs_given_up(target.name)
    first = min(chain, default=state.last.epoch + 1)
    if first > epoch + 1:
        raise broken_chain(state, target, epoch, first - 1)
    if epoch in given_up:
        return Decision(Step.SET_ROW, row_at(state, epoch, chain))
    end = epoch
    while end <= final and end < epoch + max_epochs and end in chain and end not in given_up:
        end += 1
    if end == epoch:
        raise missing_manifest(state, epoch)
    return Decision(Step.FLUSH, row_at(state, end - 1, chain), range(epoch, end))


def link_at(state: State, epoch: int, chain: Chain) -> Predecessor | None:
    """Return the link to an epoch in the manifest of the next epoch; None if that manifest is missing."""
    if epoch == state.last.epoch:
        return state.last.as_predecessor()
    if epoch == state.last.epoch - 1 and epoch >= state.first - 1:
        return state.last.predecessor
    successor = chain.get(epoch + 1)
    return None if successor is None else successor.predecessor


def row_at(state: State, epoch: int, chain: Chain) -> LedgerRow:
    """Return the ledger row of a target that has every epoch up to `epoch`.

    :raises MissingManifest: the chain does not have the digest of the epoch.
    """
    link = link_at(state, epoch, chain)
    if link is None:
        raise missing_manifest(state, epoch)
    return LedgerRow(state.query_id, state.log_id, epoch, link.digest)


def verified_link(state: State, target: TargetState, row: LedgerRow, chain: Chain) -> Predecessor:
    """Return the chain's link to the epoch of a ledger row, which must have the digest of the link.

    :raises WrongOwner: the row belongs to another log.
    :raises Diverged: the chain has another digest for the epoch.
    :raises MissingManifest: the chain does not have the digest of the epoch.
    """
    refuse_other_log(state, target, row)
    if row.epoch > state.last.epoch:
        raise diverged(state, target, row)
    link = link_at(state, row.epoch, chain)
    if link is None:
        raise missing_manifest(state, row.epoch + 1)
    if link.digest != row.digest:
        raise diverged(state, target, row)
    return link
