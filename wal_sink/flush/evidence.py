"""Reads what tells an epoch's attempts apart (rules 11 and 12); `choice` decides on it."""

from __future__ import annotations

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.flush.run_history import RunHistory
from wal_sink.model.records import Decision
from wal_sink.protocol.steps import Choose, Contender, Evidence
from wal_sink.wal.log import Log


def gather(
    step: Choose, log: Log, checkpoint: Checkpoint, query_id: str, seen: RunHistory
) -> Evidence:
    """Read manifests, offsets and notes of the epoch; with one plain manifest, next to nothing.

    A manifest that vanished since it was listed is left out: another flusher has trimmed it.
    """
    epoch = step.epoch
    if (decision := log.decision(epoch)) is not None:  # its manifests may be unreadable, or gone
        return given_up(step, decision)
    named = [attempt for attempt in step.attempts if attempt.epoch == epoch]
    found = [(attempt, log.manifest(attempt)) for attempt in named]
    contenders = tuple(
        Contender(attempt, read[0].run_id, read[0].offsets_digest)
        for attempt, read in found
        if read is not None
    )
    # A batch of the state repartition is published by nobody.
    followed = any(attempt.epoch == epoch + 1 for attempt in step.attempts)
    after = None if followed else checkpoint.planned(epoch + 1)
    odd = after is not None or not contenders
    several = len(contenders) > 1
    rivals = [contender.run_id for contender in contenders]
    return Evidence(
        epoch=epoch,
        attempts=step.attempts,
        contenders=contenders,
        before=(
            checkpoint.planned(epoch - 1) if odd else None,
            checkpoint.planned(epoch - 2) if not contenders else None,
        ),
        planned=checkpoint.planned(epoch),
        after=after,
        kept=tuple(log.kept(epoch)) if several else (),
        committed=seen.committed(query_id, epoch, rivals) if several else None,
        lost=seen.lost(query_id, epoch, rivals) if several else frozenset(),
        running=seen.running(query_id) if several else None,
    )


def given_up(step: Choose, decision: Decision) -> Evidence:
    """Return what there is to know of an epoch that an operator has given up (rule 22)."""
    return Evidence(step.epoch, step.attempts, contenders=(), decision=decision)
