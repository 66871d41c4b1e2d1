"""Which epochs operators have given up, as long as Spark has not computed them again since (rule 22)."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.ledger import Window
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import Decision
from wal_sink.protocol.attempts import still_covers
from wal_sink.wal.log import Log


def in_force(
    log: Log, decision: Decision, attempts: Iterable[Attempt], checkpoint: Checkpoint
) -> Decision | None:
    """Return the decision if its epoch is passed over; None if Spark has computed the epoch again since.

    :param attempts: the manifests there are. Where one is lost, the segments tell that there was one, or the
        claim of a run that went back behind the epoch.
    """
    published = [each.generation for each in attempts if each.epoch == decision.epoch]
    published += _generations_of_segments(log, decision.epoch)
    published += _generations_of_claims(log, decision)
    # Nothing of an epoch that is given up has to be readable.
    digest = checkpoint.offsets_digest(decision.epoch)
    chosen = log.readable(paths.CHOICE, decision.epoch) if log.several else None
    newest = Attempt(decision.epoch, max(published, default=0))
    if chosen is not None and chosen.offsets_digest == (digest or _offsets_digest(log, newest)):
        published = [chosen.generation]  # it alone is flushed to the other targets, too
    covers = still_covers(decision.highest, decision.offsets_digest, published, digest)
    return decision if covers else None


def _offsets_digest(log: Log, attempt: Attempt) -> str | None:
    """Return the digest of the source offsets of an attempt; None if that cannot be read, or is lost."""
    with contextlib.suppress(CorruptLog):
        found = log.manifest(attempt)
        return found.manifest.offsets_digest if found is not None else None
    return None


def _generations_of_segments(log: Log, epoch: int) -> list[int]:
    """Return the generations of the runs that have written segments of an epoch, as far as the log tells."""
    listed = map(paths.segment_run, log.backend.list(paths.segment_folder(epoch)))
    tickets = (log.readable(paths.TICKET, run) for run in {*listed} if run is not None)
    return [ticket.claims for ticket in tickets if ticket is not None]


def _generations_of_claims(log: Log, decision: Decision) -> list[int]:
    """Return the generations of the runs that went back behind an epoch after it was given up."""
    found = []
    for generation in log.keys(paths.CLAIM):
        claim = log.read(paths.CLAIM, generation) if generation > decision.highest else None
        if claim is not None and claim.epoch <= decision.epoch:
            found.append(generation)
    return found


def given_up_since_begun(log: Log, window: Window) -> frozenset[int]:
    """Return the epochs of a begun window that an operator has given up since they were begun."""
    given_up = set()
    for begun in window.epochs:
        decision = log.decision(begun.epoch) if begun.manifest else None
        if decision is not None and still_covers(
            decision.highest, decision.offsets_digest, [begun.generation], begun.offsets_digest
        ):
            given_up.add(begun.epoch)
    return frozenset(given_up)


def outdated(
    log: Log, checkpoint: Checkpoint, flushed: int, attempts: Collection[Attempt]
) -> tuple[int, ...]:
    """Return the epochs above the mark that were given up, and that Spark has computed again since.

    :param flushed: the log's mark.
    :param attempts: the manifests there are.
    """
    found = []
    for epoch in log.decided():
        # An unreadable decision stops the flush when it comes to its epoch.
        with contextlib.suppress(CorruptLog):
            decision = log.decision(epoch) if epoch > flushed else None
            if decision is not None and not in_force(log, decision, attempts, checkpoint):
                found.append(epoch)
    return tuple(found)
