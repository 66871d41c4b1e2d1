"""Decides which attempt at an epoch is flushed (rules 11, 12 and 22). Pure.

Every run that may have written `commits/N` had published N before, so with one manifest there is nothing to
choose. Of several, the one counts whose run is proven to have written `commits/N`: an older run may have
stood still after it published N, and written `commits/N` when a newer run had published N, too.
`docs/protocol/argument.md#which-attempt-is-flushed` says what proves it, and why.

Also here: whether a record about an epoch is still valid. A record names an epoch by its number. An
operator may set the checkpoint back before it, and Spark then computes the number again, possibly from
other source offsets. A run that does so starts after the record was written, so it claims a generation
above all that were claimed by then (rules 2 and 3); and no other run publishes an epoch that is
checkpointed (rule 5).

And whether segments that no manifest names may still get one (rule 18). Only the run that wrote a segment can
publish it, under one generation: that of its ticket + 1 (rule 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

from wal_sink import errors
from wal_sink.errors import Diverged, MissingManifest
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt, Offsets, Published
from wal_sink.model.records import Chosen, CommitProof, Decision, FlushedEpoch, WithoutSink
from wal_sink.protocol.next_step import Begin, Idle, ManifestMissing, PassOver


class Contender(NamedTuple):
    """A manifest of the epoch that is flushed next, as far as it is needed to choose."""

    attempt: Attempt
    run_id: str
    offsets_digest: str


@dataclass(frozen=True)
class Evidence:
    """What a flusher knows of the epoch that is flushed next; read after the `Observation`."""

    epoch: int
    attempts: tuple[Attempt, ...]
    """The manifests there are, as listed for the `Observation`; of several contenders, listed again after
    all that may prove one of them."""
    contenders: tuple[Contender, ...] = ()
    """Those of the epoch itself."""
    before: tuple[Offsets | None, Offsets | None] = (None, None)
    """The source offsets of the two epochs before, nearest first; None: purged, or cannot matter."""
    offsets: Offsets | None = None
    after: Offsets | None = None
    without_sink: WithoutSink | None = None
    """That Spark made the epoch, or left it out, without a sink; looked at only where `before`, `offsets`
    and `after` cannot tell, as Spark has purged them."""
    proofs: tuple[CommitProof, ...] = ()
    """What fenced runs have left about the epoch."""
    tombstones: frozenset[Attempt] = frozenset()
    """Those that were published late, after their segments were deleted: Spark has kept none of them."""
    committed: str | None = None
    """The run whose progress event for the epoch this process saw."""
    gave_way: frozenset[str] = frozenset()
    """Runs that ended in this process because another run had written the file that they were to write."""
    running: str | None = None
    """The run of the query that lives in this process."""
    decision: Decision | None = None
    """That an operator has given the epoch up; then nothing else is looked at."""


def still_covers(
    highest: int, digest: str, generations: Iterable[int], current: str | None
) -> bool:
    """Whether a record about an epoch holds for what is under its number now.

    :param highest: the highest generation claimed when the record was written.
    :param digest: of the source offsets that the record is about; empty: it does not say.
    :param generations: those that have published the epoch.
    :param current: digest of the source offsets that Spark's checkpoint has for the epoch; None: purged.
    """
    if current is not None and digest and current != digest:
        return False
    return all(generation <= highest for generation in generations)


def choose(evidence: Evidence) -> Begin | PassOver | ManifestMissing | Idle:
    """Decide about the epoch that is flushed next.

    :raises Diverged: what is published under it is not what Spark's checkpoint says.
    """
    if (passed := _passed_over(evidence)) is not None:
        return passed
    if not evidence.contenders:
        return ManifestMissing(evidence.epoch)  # rule 12
    candidates = [c for c in evidence.contenders if _has_the_offsets(c, evidence)]
    if not candidates:
        raise Diverged(
            f"Epoch {evidence.epoch} is checkpointed with other source offsets than any of its"
            f" {len(evidence.contenders)} manifests",
            "The checkpoint was set back, and the epoch computed without this sink. Restore the"
            " newer checkpoint, or start with a new one.",
        )
    if proven := proven_attempts(evidence, candidates):
        return Begin((max(proven),))
    candidates = [c for c in candidates if c.attempt not in evidence.tombstones]  # rule 18
    if not candidates:
        return ManifestMissing(evidence.epoch)
    candidates = [c for c in candidates if c.run_id not in evidence.gave_way] or candidates
    highest = max(candidate.attempt for candidate in candidates)
    if len(candidates) > 1 and any(c.run_id == evidence.running for c in candidates):
        return Idle(
            f"epoch {evidence.epoch} was published by {len(candidates)} runs; waiting until it is"
            " known which one Spark has kept"
        )
    return Begin((highest,), proven=len(candidates) == 1)


def as_chosen(
    chosen: Chosen, read: Mapping[Attempt, Published]
) -> Begin | PassOver | ManifestMissing:
    """Return the choice about an epoch that was made for all targets of a log.

    :param read: the manifests of the epoch that are there.
    :raises Diverged: Spark has gone back behind it (rule 12).
    """
    for attempt, one in read.items():
        other = one.manifest.offsets_digest != chosen.offsets_digest
        if other and attempt.generation > chosen.generation:
            raise Diverged(
                f"{paths.MANIFEST.path(attempt)} covers other source offsets than what is to be flushed to"
                f" every target as epoch {chosen.epoch}",
                "Two histories exist under one epoch: the checkpoint was set back. Stop all flushers and"
                " decide which is right: if it is the manifest's, and no target has flushed the epoch, move"
                f" {paths.CHOICE.path(chosen.epoch)} away, else the manifest.",
            )
    if not chosen.digest:
        return PassOver(chosen.epoch, chosen.generation, chosen.offsets_digest)
    attempt = Attempt(chosen.epoch, chosen.generation)
    found = read.get(attempt)
    if found is None or found.digest != chosen.digest:
        return ManifestMissing(chosen.epoch)
    return Begin((attempt,), manifests=(found,))


def missing_manifest(epoch: int) -> MissingManifest:
    """Return the error about an epoch whose manifest is needed and not there (rule 12)."""
    return MissingManifest(
        f"Epoch {epoch} is checkpointed but has no manifest in the log",
        "Restore the log's manifests/ folder from a copy. The epoch is not taken for an empty one. To"
        f" give its rows up: {errors.skip_lost(epoch)}. {errors.VERIFY}",
    )


def proven_attempts(evidence: Evidence, candidates: Sequence[Contender]) -> list[Attempt]:
    """Return the attempts whose run is known to have written `commits/N`; the last one counts.

    The proofs: a later manifest of the same generation (for the highest one only), a note in `proofs/` that
    no higher generation had been claimed, and the run's progress event. There are two only where an older run
    has written `commits/N` again, after Spark had purged it: then the later manifest proves the highest.
    """
    highest = max(candidate.attempt for candidate in candidates)
    later = {attempt.generation for attempt in evidence.attempts if attempt.epoch > evidence.epoch}
    noted = {
        (proof.generation, proof.run_id)
        for proof in evidence.proofs
        if highest.generation <= proof.highest
    }
    return [
        candidate.attempt
        for candidate in candidates
        if (candidate.attempt == highest and highest.generation in later)
        or (candidate.attempt.generation, candidate.run_id) in noted
        or candidate.run_id == evidence.committed
    ]


def doubts(step: Begin, recorded: FlushedEpoch | None) -> list[str]:
    """Say what speaks against a choice, for an operator who reads the log later (rule 11).

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


def _has_the_offsets(contender: Contender, evidence: Evidence) -> bool:
    """Whether Spark has not gone back behind it; not known when `offsets/N` is purged."""
    return evidence.offsets is None or contender.offsets_digest == evidence.offsets.digest


def _passed_over(evidence: Evidence) -> PassOver | None:
    if (decided := evidence.decision) is not None:  # rule 22
        why = f"given up by {decided.by}: {decided.why}"
        return PassOver(
            evidence.epoch, decided.generation, decided.offsets_digest, why, decided=True
        )
    if (digest := without_rows(evidence)) is not None:
        published = [contender.attempt.generation for contender in evidence.contenders]
        return PassOver(evidence.epoch, max(published, default=0), digest)
    return None


def without_rows(evidence: Evidence) -> str | None:
    """Return the digest of the source offsets of a batch that Spark has made without a sink (rule 12)."""
    offsets, note = evidence.offsets, evidence.without_sink
    if note is not None:
        generations = [contender.attempt.generation for contender in evidence.contenders]
        now = offsets.digest if offsets else None
        if still_covers(note.highest, note.offsets_digest, generations, now):
            return note.offsets_digest
    if offsets is None:
        return None
    # The batch of a repartition copies the one before it, or the one before a batch that it left out.
    copies = any(other is not None and offsets.repartitions(other) for other in evidence.before)
    before, after = evidence.before[0], evidence.after
    skipped = before is not None and after is not None and after.repartitions(before)
    return offsets.digest if copies or skipped else None


Fate = Literal["open", "fenced", "void"]
"""What may become of segments that no manifest names:

- `open`: their run may publish them, and Spark may keep that.
- `fenced`: a higher generation is claimed. The run may still create a manifest, if it had passed its checks
  before; it looks again then, and Spark does not keep that attempt (rule 7).
- `void`: their run will never create a manifest, for another run has claimed its generation.
"""


class Writer(NamedTuple):
    """The run that wrote a segment, as far as the log tells."""

    run_id: str
    generation: int
    """The one that it has claimed, or would claim."""
    claimed_by: str | None
    """The run that has claimed this generation; None: no run, or its record is gone."""


def fate(writer: Writer, highest: int) -> Fate:
    """Decide about segments that no manifest names.

    :param highest: the highest generation that is claimed.
    """
    if writer.claimed_by not in (None, writer.run_id):
        return "void"
    return "fenced" if highest > writer.generation else "open"
