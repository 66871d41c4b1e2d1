"""Which of an epoch's attempts is flushed (rules 11, 12 and 22). Pure.

Why a proof is needed, and when there is one
--------------------------------------------

Every run that may have written `commits/N` had published N before. So with one manifest there is nothing
to choose. Several are there after a crash between publish and `commits/N`, and nearly always the highest
generation is the one that Spark kept. The exception: run A publishes N and stands still; run B, which
cannot know, publishes N too; A wakes and writes `commits/N` before B does. Spark then goes on from what A
computed, and nothing in the checkpoint tells A from B.

A run of Spark plans N + 1 only after its own `commits/N`. So these prove who wrote it:

- *A later manifest of the same generation.* It proves the highest generation only. Let A have published
  N + 1, and B, of a higher generation, N. A checked after its `commits/N` that no higher generation was
  claimed (rule 3), so B claimed later; B looked for `commits/N` after its claim (rule 5), and found none:
  it was deleted. Spark then belongs to B, and what A has published later proves nothing any more.
- *A note in `kept/`.* A is fenced when it comes to publish N + 1. Before it stops it writes down that it came
  so far, with the highest generation claimed by then. An attempt at N above that generation means again
  that `commits/N` was deleted after the note. A run that has to wait for room in the log leaves the same
  note: what waits may be the very manifest that would prove it (`budget`).
- *Its progress event for N*, seen in this process.
- *That all others lost.* Spark ends B with an error of its own when it finds `commits/N` written by another
  run. (It ends a run in the same way over `offsets/N + 1`; but then the event for N had come before.)

Without any, the next epoch is waited for as long as a run that has published N lives in this process. When
none does, the highest generation is taken, and it is logged that this is not proven: rows of one attempt
all the same, and none lost.

Batches that Spark makes without a sink
---------------------------------------

The offline state repartition plans a batch that copies the last one it keeps, writes its `commits/` file,
and runs no sink. It may also write `commits/N` for a batch that had failed, so as to pass over it; the next
batch is then a copy of N - 1, and the data of N is computed again after it. Flushing what the failed run
had published as N would show that data twice. Both are flushed as epochs without rows.
(Between writing that `commits/N` and planning the copy, the tool leaves nothing to tell N by: nobody may
flush while it runs.)

Epochs that an operator has given up
------------------------------------

The record of it is read before anything else of the epoch, as that may be unreadable. It is flushed as
an epoch without rows, like any other: `begin` makes it final, and the mark moves without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from wal_sink import remedies
from wal_sink.errors import Diverged, MissingManifest
from wal_sink.model.ledger import Mark
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch
from wal_sink.protocol.steps import Begin, Contender, Evidence, ManifestMissing, PassOver, Rest


def choose(evidence: Evidence) -> Begin | PassOver | ManifestMissing | Rest:
    """Decide about the epoch that is flushed next.

    :raises Diverged: what is published under it is not what Spark's checkpoint says.
    """
    if (passed := _passed_over(evidence)) is not None:
        return passed
    if not evidence.contenders:
        return ManifestMissing(evidence.epoch)  # rule 12
    candidates = [c for c in evidence.contenders if _covers_the_plan(c, evidence)]
    if not candidates:
        raise Diverged(
            f"Epoch {evidence.epoch} is checkpointed with other source offsets than any of its"
            f" {len(evidence.contenders)} manifests",
            "The checkpoint was set back, and the epoch computed without this sink. Restore the"
            " newer checkpoint, or start with a new one.",
        )
    if len(candidates) > 1 and (proven := proven_attempts(evidence, candidates)):
        return Begin((max(proven),))
    candidates = [c for c in candidates if c.run_id not in evidence.lost] or candidates
    highest = max(candidate.attempt for candidate in candidates)
    if len(candidates) == 1:
        return Begin((highest,))
    if any(candidate.run_id == evidence.running for candidate in candidates):
        return Rest(
            f"epoch {evidence.epoch} was published by {len(candidates)} runs; waiting until it is"
            " known which one Spark has kept"
        )
    return Begin((highest,), proven=False)


def refuse_missing_manifest(epoch: int, mark: Mark | None) -> None:
    """After `ManifestMissing`: raise unless the ledger, read again, says that the epoch is done (rule 12).

    :raises MissingManifest: the manifest is needed and not there.
    """
    if mark is not None and mark.flushed >= epoch:
        return
    raise MissingManifest(
        f"Epoch {epoch} is checkpointed but has no manifest in the log",
        "Restore the log's manifests/ folder from a copy. The epoch is not taken for an empty one. To"
        f" give its rows up: {remedies.skip_lost(epoch)}. {remedies.VERIFY}",
    )


def proven_attempts(evidence: Evidence, candidates: Sequence[Contender]) -> list[Attempt]:
    """Return the attempts whose run is known to have written `commits/N`; the last one counts."""
    highest = max(candidate.attempt for candidate in candidates)
    later = {attempt.generation for attempt in evidence.attempts if attempt.epoch > evidence.epoch}
    noted = {
        (kept.generation, kept.run_id)
        for kept in evidence.kept
        if highest.generation <= kept.highest
    }
    return [
        candidate.attempt
        for candidate in candidates
        if (candidate.attempt == highest and highest.generation in later)
        or (candidate.attempt.generation, candidate.run_id) in noted
        or candidate.run_id == evidence.committed
    ]


def doubts(step: Begin, recorded: FlushedEpoch | None) -> list[str]:
    """Say what an operator may want to read later about a choice (rule 11).

    :param recorded: the newest epoch that is flushed.
    """
    said = []
    if not step.proven:
        epoch, generation = step.attempts[0]
        said.append(
            f"nothing proves which attempt at epoch {epoch} Spark has kept; that of generation"
            f" {generation}, the highest, is taken unproven"
        )
    before = [Attempt(recorded.epoch, recorded.generation)] if recorded else []
    said += [
        f"the generation falls from {one.generation} at epoch {one.epoch} to"
        f" {following.generation} at epoch {following.epoch}"
        for one, following in pairwise([*before, *step.attempts])
        if one.generation > following.generation
    ]
    return said


def _covers_the_plan(contender: Contender, evidence: Evidence) -> bool:
    """Whether Spark has not gone back behind it; not known when `offsets/N` is purged."""
    return evidence.planned is None or contender.offsets_digest == evidence.planned.digest


def _passed_over(evidence: Evidence) -> PassOver | None:
    if (decided := evidence.decision) is not None:  # rule 22
        why = f"given up by {decided.by} ({decided.verb}): {decided.why}"
        return PassOver(evidence.epoch, decided.generation, decided.offsets_digest, why)
    if (planned := _without_rows(evidence)) is not None:
        published = [contender.attempt.generation for contender in evidence.contenders]
        return PassOver(evidence.epoch, max(published, default=0), planned)
    return None


def _without_rows(evidence: Evidence) -> str | None:
    """Return the digest of the source offsets of a batch that Spark has made without a sink."""
    planned = evidence.planned
    if planned is None:
        return None
    # The batch of a repartition copies the one before it, or the one before a batch passed over.
    copies = any(other is not None and planned.repartitions(other) for other in evidence.before)
    before, after = evidence.before[0], evidence.after
    skipped = before is not None and after is not None and after.repartitions(before)
    return planned.digest if copies or skipped else None
