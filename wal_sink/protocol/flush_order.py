"""What a flusher does next for a target, and the chain of digests that it compares the ledger with.

Pure, like the transitions of `protocol/state.py`. Here are rule `order` and rule `restored`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from wal_sink.errors import TargetRefused
from wal_sink.model.ledger import LedgerRow
from wal_sink.model.state import EpochManifest, Predecessor, State, TargetState
from wal_sink.protocol.refusals import (
    broken_chain,
    diverged,
    lacks_epochs,
    missing_manifest,
    refuse_other_log,
    went_back_apart,
)

SENDINGS = 16
"""How often the rows of an epoch may be sent where each sending needs timestamps of its own."""

Chain = Mapping[int, EpochManifest]
"""The manifests that `last` leads to, by epoch: each has the digest that its successor, or `last`, names."""


class Step(enum.Enum):
    """What a flusher does next for a target."""

    WAIT = "wait"
    SET_ROW = "set row"
    """Set the ledger row, without rows."""
    MARK = "mark"
    WENT_BACK = "went back"
    FLUSH = "flush"
    """Write the epochs, and finish with the row."""


class Decision(NamedTuple):
    """What a flusher does next, with what."""

    step: Step
    row: LedgerRow | None = None
    """The row that is set, or recorded."""
    epochs: range = range(0)
    """Those to write: all of them are in the chain."""
    warning: str = ""


def may_keep(state: State, name: str, row: LedgerRow | None) -> bool:
    """Return True if a ledger row of an earlier pass serves for this one: it is the row of the mark.

    If the target has moved since, `finish` is refused, and the row is read. Another kept row says nothing:
    the mark may be ahead of it because another flusher was quicker, not because the target went back.
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
    most: int = 1,
    *,
    heals: bool = True,
) -> Decision:
    """Return what a flusher does next for a target. The arguments were read in their order.

    The row is the truth about the target, and moves in order: each epoch right after the one before. The mark
    follows the row, in both directions, as far as the chain of digests has the row's.

    What is flushed is settled and completed: settled, since no other attempt may be written; completed, since
    a restored checkpoint may have taken an epoch back, and Spark then completes it again first.

    A target that `open` has added may have a row of long ago: for it alone the row is lifted to the epoch
    before its first one. A row that lags the first epoch of a whole log is an error: in the log that was lost
    there may be epochs that the target lacks.

    :param row: as it was read after the state, or see `may_keep`; None if the target has none.
    :param heals: False for a target whose rows and ledger need not go back together, such as Kafka.
    :param most: how many epochs may be taken at once, at least 1.
    :raises WrongOwner: the row is of another log.
    :raises LedgerBehindLog: the row is gone, or behind this log.
    :raises Diverged: the row is at the mark with another digest.
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
            lacks = f"Target {name} lacks epochs {row.epoch + 1} to {start_epoch}: it was no target then."
            return Decision(Step.SET_ROW, start, warning=lacks)
        raise lacks_epochs(
            state, target, f"has epoch {row.epoch}, and this log begins after {start_epoch}"
        )
    if row.epoch < mark.epoch:
        if not heals:
            raise went_back_apart(state, target, row)
        return Decision(Step.WENT_BACK, row)
    if row.digest != mark.digest:
        raise diverged(state, target, row)
    return _take(state, target, min(committed, state.settled), committed, chain, most)


def _take(
    state: State, target: TargetState, final: int, committed: int, chain: Chain, most: int
) -> Decision:
    """Return the epochs after the mark that are written at once; one that was given up is skipped alone."""
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
    while end <= final and end < epoch + most and end in chain and end not in given_up:
        end += 1
    if end == epoch:
        raise missing_manifest(state, epoch)
    return Decision(Step.FLUSH, row_at(state, end - 1, chain), range(epoch, end))


def link_at(state: State, epoch: int, chain: Chain) -> Predecessor | None:
    """Return an epoch as its successor names it; None if no successor is there that could."""
    if epoch == state.last.epoch:
        return state.last.as_predecessor()
    if epoch == state.last.epoch - 1 and epoch >= state.first - 1:
        return state.last.predecessor
    successor = chain.get(epoch + 1)
    return None if successor is None else successor.predecessor


def row_at(state: State, epoch: int, chain: Chain) -> LedgerRow:
    """Return the ledger row of a target that has every epoch up to this one; also for `set-mark`.

    :raises MissingManifest: nobody can say which digest the chain has.
    """
    link = link_at(state, epoch, chain)
    if link is None:
        raise missing_manifest(state, epoch)
    return LedgerRow(state.query_id, state.log_id, epoch, link.digest)


def claim_sending(row: LedgerRow) -> LedgerRow:
    """Return the row that claims one more sending of the next epoch, where each needs its own timestamps.

    Elements of a list that is not frozen come twice if they are sent twice with one timestamp. So in sending
    s, from 1 on, row i has `first_us + (s - 1) * rows + i`, and the epoch reserves `SENDINGS * rows`. The
    claim moves the ledger row by compare-and-set before it. A flusher that lost the row to another sending
    cannot finish.

    :raises TargetRefused: the timestamps that the epoch has reserved are used up.
    """
    if row.sending == SENDINGS:
        raise TargetRefused(
            f"Epoch {row.epoch + 1} was sent {SENDINGS} times, and no sending came to its end. It has no more"
            " write timestamps, and rows of a list that is not frozen must not be sent twice with one.",
            f"Repair what stops the flush, and give the epoch up: `wal-sink give-up CHECKPOINT --epoch"
            f" {row.epoch + 1}`. Its rows stay in the log.",
        )
    return row._replace(sending=row.sending + 1)


def compared(state: State, target: TargetState, row: LedgerRow, chain: Chain) -> Predecessor:
    """Return the epoch of a ledger row as the chain names it.

    :raises WrongOwner: the row is of another log.
    :raises Diverged: the chain has another one.
    :raises MissingManifest: nobody can say which one it has.
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
