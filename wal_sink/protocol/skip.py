"""Decides whether an epoch may be given up, purely from what was seen. No I/O.

Each refusal has its argument: docs/protocol.md#why-skip-refuses-what-it-refuses.
"""

from __future__ import annotations

from typing import NamedTuple

from wal_sink import remedies
from wal_sink.errors import LedgerBehindLog, OptionError
from wal_sink.model.ledger import BegunEpoch, Mark, Owner
from wal_sink.model.manifest import Attempt
from wal_sink.protocol.next_step import refuse_other_owner


class Situation(NamedTuple):
    """What was seen of the epoch that is to be given up."""

    epoch: int
    checkpointed: int
    floor: int
    """The log's mark: the newest `flushed/` record, or the epoch before the first one."""
    mark: Mark | None
    """The ledger row; None: the target does not know the query yet."""
    attempts: tuple[Attempt, ...]
    """Manifests of the epoch."""
    segments: tuple[str, ...]
    """Paths of its segments, of all attempts."""

    @property
    def begun(self) -> BegunEpoch | None:
        """The epoch, as the ledger says that it is begun."""
        window = self.mark.begun if self.mark else None
        epochs = window.epochs if window else ()
        return next((begun for begun in epochs if begun.epoch == self.epoch), None)


def refuse_to_skip(situation: Situation, owner: Owner, first_epoch: int, *, begun: bool) -> None:
    """Refuse any epoch but the one at which the flush has stopped.

    :param first_epoch: the first one of the log.
    :param begun: the operator knows that rows of it may be in the table.
    :raises WrongOwner, LedgerBehindLog: log and ledger have to be brought together first.
    :raises OptionError: it is another epoch, or begun.
    """
    epoch, mark = situation.epoch, situation.mark
    refuse_other_owner(mark, owner)
    if mark is None and situation.floor >= first_epoch:  # what was begun is lost with it
        raise LedgerBehindLog(
            f"The ledger has no row for query {owner.query_id}, but the log says that epoch"
            f" {situation.floor} is flushed: so nothing tells whether epoch {epoch} is begun",
            f"Make the row anew first: {remedies.rewind(situation.floor)}.",
        )
    flushed = situation.floor if mark is None else mark.flushed
    if flushed < situation.floor:
        raise LedgerBehindLog(
            f"The ledger says that epoch {flushed} is flushed, the log says {situation.floor}",
            f"Bring them together first: {remedies.rewind(situation.floor)}.",
        )
    if epoch <= flushed:
        raise OptionError(
            f"Epoch {epoch} is flushed, or was passed over: the mark is {flushed}",
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
            f"Name a place that gets its files: {remedies.skip(epoch)}.",
        )
    if copied and not situation.attempts and not situation.segments:
        raise OptionError(
            f"Nothing of epoch {epoch} is left in the log that could be copied",
            f"If all its rows may be given up, leave --to out: {remedies.skip_lost(epoch)}.",
        )
