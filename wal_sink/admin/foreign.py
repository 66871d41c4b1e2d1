"""Tells whether the ledger row follows another log than the one that an operator has at hand (rule 23)."""

from __future__ import annotations

from wal_sink.admin.query import Query
from wal_sink.flush.choose_window import WindowChooser
from wal_sink.flush.other_log import History
from wal_sink.model.ledger import Mark, Window
from wal_sink.model.manifest import Attempt


def is_foreign(query: Query, chooser: WindowChooser, mark: Mark | None, checkpointed: int) -> bool:
    """Whether what the ledger row names was begun or flushed from another log than this one (rule 23)."""
    log = query.log
    recorded, attempts = max(log.flushed_epochs(), default=-1), log.attempts()
    begun, last = (mark.begun, mark.last) if mark else (None, None)
    history, foreign = History(log, chooser), False
    for window in (begun, last):
        if window is None or window.last <= recorded:
            continue
        epoch = history.foreign_epoch(window, attempts, checkpointed)
        foreign |= epoch is not None and (
            window is not begun or _is_new_here(query, window, epoch, checkpointed)
        )
    return foreign


def _is_new_here(query: Query, begun: Window, epoch: int, checkpointed: int) -> bool:
    """Whether this log cannot have begun an epoch; else its manifest may just be lost.

    Of an epoch that this log has begun, rows of one attempt may be in the table, and no other attempt may
    be flushed.
    """
    (named,) = (each for each in begun.epochs if each.epoch == epoch)
    return (
        epoch > checkpointed
        or named.generation > query.log.highest_generation()
        or query.log.manifest(Attempt(epoch, named.generation)) is not None
    )
