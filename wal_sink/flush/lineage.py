"""Refuses to act on what the ledger row says of another log (rule 23).

A log that was restored from a backup, and a clone of a log, have the names of the first one: query id, log
id, checkpoint, and generations that new runs claim again. So what the row says was begun or flushed is
compared by the digest of its manifests, which no other run can make: `docs/protocol/rules.md#rule-23`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from wal_sink.errors import CorruptLog
from wal_sink.flush.window import WindowChooser
from wal_sink.model.ledger import BegunEpoch, LedgerState, Window
from wal_sink.model.manifest import Attempt, attempts_at
from wal_sink.model.records import FlushedEpoch
from wal_sink.progress.decisions import given_up_since_begun
from wal_sink.protocol.next_step import (
    Choose,
    Observation,
    PassOver,
    RecordFlushed,
    RecordsBehind,
    Resume,
    refuse_foreign,
    refuse_missing_records,
)
from wal_sink.wal.log import Log
from wal_sink.wal.targets import record_anywhere


def named_record(
    log: Log, recorded: FlushedEpoch | None, row: LedgerState | None
) -> FlushedEpoch | None:
    """Return the record of the epoch that the ledger row has flushed last; None where one is not there.

    :param recorded: the newest record.
    """
    last = row.last.last if row is not None and row.last is not None else -1
    if recorded is None or not 0 <= last <= recorded.epoch:
        return None
    return recorded if last == recorded.epoch else log.flushed(last)


class LineageCheck:
    """What this log knows of the epochs that the ledger row names."""

    def __init__(self, log: Log, chooser: WindowChooser) -> None:
        self._log = log
        self._chooser = chooser

    def follows_this_log(
        self, step: RecordFlushed | RecordsBehind | Resume, observed: Observation
    ) -> bool:
        """Whether a step that follows from the ledger row is about this log; reads manifests.

        :return: False: it does not any more. Others have flushed on since the look.
        :raises Diverged: it is about another log.
        :raises CorruptLog: records are missing, see `refuse_missing_records`.
        """
        foreign = self.foreign_epoch(step.window, observed.attempts, observed.checkpointed)
        newest = self._log.newest_flushed(fresh=True) if foreign is not None else None
        if newest is not None and newest.epoch >= max(step.window.last, observed.flushed + 1):
            return False  # what was compared may be deleted
        if isinstance(step, RecordsBehind):
            newest = self._log.newest_flushed(fresh=True)
            refuse_missing_records(step.window, newest, foreign, observed)
            return False
        refuse_foreign(foreign, observed)
        return True

    def refuse_gone_back(self, step: Resume, observed: Observation) -> None:
        """Refuse to finish a begun window of another log, or behind which Spark went back; seldom reads.

        The flusher compares manifests as it reads them. An epoch that is passed over has none, and no attempt
        is taken at a window of another log (rule 26).

        :raises Diverged: it is, or Spark did.
        """
        window = step.window
        if window.sent_once or not window.epochs[0].manifest:
            self.follows_this_log(step, observed)
        for begun in window.epochs:
            if self._has_gone_back_behind(begun, attempts_at(observed.attempts, begun.epoch)):
                refuse_foreign(begun.epoch, observed)

    def foreign_epoch(
        self, window: Window, attempts: Sequence[Attempt], checkpointed: int
    ) -> int | None:
        """Return the first epoch of a window of the ledger row that is not of this log; None when all are.

        :param attempts: the manifests there are, listed after the ledger was read.
        :param checkpointed: the highest epoch that `commits/` covers, read before.
        """
        given_up = given_up_since_begun(self._log, window)
        for begun in window.epochs:
            rivals = attempts_at(attempts, begun.epoch)
            passed = begun.epoch in given_up and not self._has_gone_back_behind(begun, rivals)
            if not (passed or self._is_here(begun, rivals, checkpointed)):
                return begun.epoch
        return None

    def _is_here(self, begun: BegunEpoch, attempts: Sequence[Attempt], checkpointed: int) -> bool:
        """Whether an epoch is of this log.

        It is if its manifest is here, to the byte, and Spark has not gone back behind it; or if a record
        here says that it was flushed, or a decision that is in force that it was given up. Without any of
        them, an epoch is not that Spark has not reached here, or that was flushed here from another attempt.
        One that is checkpointed and has no attempt left was flushed and trimmed here (rule 12), though its
        record is lost; but not if it has a manifest in the ledger, and was planned here from other source
        offsets, or would be passed over. Beside attempts, an epoch without manifest is of this log only if
        it would be passed over here, too.
        """
        if begun.manifest:
            published = self._log.manifest(Attempt(begun.epoch, begun.generation))
            if published is not None:
                return published.digest == begun.digest and not self._has_gone_back_behind(
                    begun, attempts
                )
        # The record is read after the manifest: a flusher creates the one before it deletes the other.
        record = record_anywhere(self._log, begun.epoch)
        recorded = record is not None and record.names(begun.digest, begun.offsets_digest)
        if recorded or self._was_given_up(begun, attempts):
            return True
        if record is not None or begun.epoch > checkpointed or (attempts and begun.manifest):
            return False
        if not (attempts or begun.manifest):
            return True
        choice = self._chooser.epoch(Choose(begun.epoch, tuple(attempts)))
        if begun.manifest:
            planned = self._chooser.checkpoint.offsets_digest(begun.epoch)
            same = planned in (None, begun.offsets_digest)  # None: Spark has purged them
            return same and not isinstance(choice, PassOver)
        return isinstance(choice, PassOver) and choice.offsets_digest == begun.offsets_digest

    def _was_given_up(self, begun: BegunEpoch, attempts: Sequence[Attempt]) -> bool:
        """Whether an epoch was begun without rows by a decision of this log that is still in force."""
        if begun.manifest:
            return False
        decision, _ = self._chooser.since_decided(Choose(begun.epoch, tuple(attempts)))
        return decision is not None and (decision.generation, decision.offsets_digest) == (
            begun.generation,
            begun.offsets_digest,
        )

    def _has_gone_back_behind(self, begun: BegunEpoch, attempts: Sequence[Attempt]) -> bool:
        """Whether a later run has computed an epoch from other source offsets: Spark went back behind it.

        A replay from the same offsets is no other history. An attempt that cannot be read tells nothing.
        """
        later = (each for each in attempts if begun.manifest and each.generation > begun.generation)
        for attempt in later:
            with contextlib.suppress(CorruptLog):
                published = self._log.manifest(attempt)
                if published and published.manifest.offsets_digest != begun.offsets_digest:
                    return True
        return False
