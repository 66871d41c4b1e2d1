"""Lets a rewind flush again the very attempt at an epoch that was flushed, and no other one."""

from __future__ import annotations

from wal_sink.admin.flushed_again import flushed_attempt
from wal_sink.admin.query import Query, user_and_host
from wal_sink.errors import WalSinkError
from wal_sink.model import paths
from wal_sink.model.records import Decision, FlushedEpoch
from wal_sink.protocol.rewind import Past
from wal_sink.wal.aside import set_aside


def pin_attempt(query: Query, past: Past, epoch: int, us: int, now_us: int) -> None:
    """Keep only the attempt that was flushed; of an epoch that was flushed without rows, keep that it was.

    :param us: the highest write timestamp that was used before the rewind, microseconds since 1970.
    :param now_us: microseconds since 1970.
    :raises WalSinkError: the attempt is gone since the rewind was planned.
    """
    if past.unflushed_here(epoch):
        return  # this log has never begun it: rule 11 chooses
    if past.passed_over(epoch):
        if epoch not in past.given_up:
            decision = _without_rows(past.records[epoch], now_us, query.log.highest_generation())
            query.log.create_decision(decision, len(query.log.decisions(epoch)))
        return
    kept = flushed_attempt(query, past, epoch)
    if kept is None:
        raise WalSinkError(f"Epoch {epoch} was changed meanwhile", "Run the command again.")
    others = [a for a in query.log.attempts() if a.epoch == epoch and a != kept]
    lost = [paths.manifest(attempt) for attempt in others]
    set_aside(query.log, us, lost, lost=True)
    query.log.delete(lost)


def _without_rows(record: FlushedEpoch, now_us: int, highest: int) -> Decision:
    return Decision(
        verb="rewind",
        epoch=record.epoch,
        by=user_and_host(),
        at_us=now_us,
        why="it was flushed without rows before: Spark's state repartition made it",
        where="",
        files=(),
        generation=record.generation,
        offsets_digest=record.offsets_digest,
        rows=0,
        last_us=0,
        highest=highest,
    )
