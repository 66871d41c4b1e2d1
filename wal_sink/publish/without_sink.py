"""Notes which epochs Spark made without a sink, as long as its checkpoint tells (rule 12).

Spark's offline state repartition makes a batch, and may pass over one, without calling the sink. Only
`offsets/` tells, and Spark purges that: while it plans an epoch, those that lie `minBatchesToRetain` before
it. So a run notes what it finds when it starts, before its ticket and before Spark plans anything:
`docs/protocol.md#rule-12`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import LogUnavailable, UnknownOffsetsFormat
from wal_sink.model import paths
from wal_sink.model.records import WithoutSink
from wal_sink.protocol.choose_attempt import without_rows
from wal_sink.protocol.steps import Evidence
from wal_sink.wal.attached import flushed_epoch
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)

BATCHES_THAT_TELL = 3
"""Where Spark retains so many batches, the first one that a run plans deletes nothing that is to be noted: a
repartition after epoch L makes L + 1, the run plans L + 2, and what tells lies from L - 1 on."""


def note_without_sink(log: Log, checkpoint: Checkpoint) -> None:
    """Note the epochs that Spark made, or passed over, without a sink; called while no run plans epochs.

    Reads few files of `offsets/` as long as every epoch that is not flushed has a manifest.
    """
    identity = log.identity()
    if identity is None or identity.checkpoint != checkpoint.url:
        return  # nothing was published yet; or the log is of another checkpoint, which `commit` says
    checkpointed = checkpoint.last_commit()
    published = {attempt.epoch for attempt in log.attempts()}
    # Listed after the manifests: a flusher creates the record before it deletes the manifest.
    flushed = max(flushed_epoch(log), identity.first_epoch - 1)
    missing = set(range(flushed + 1, checkpointed + 1)) - published
    highest = log.highest_generation()
    try:
        for epoch, digest in _without_rows(checkpoint, missing, flushed, checkpointed):
            logger.info("epoch %d of %s was made without a sink", epoch, checkpoint.url)
            _note(log, WithoutSink(epoch=epoch, offsets_digest=digest, highest=highest))
    except UnknownOffsetsFormat:
        logger.debug(
            "unknown offsets", exc_info=True
        )  # no epoch is published then: `commit` raises it


def not_noted(log: str, error: Exception) -> LogUnavailable:
    """Return the error of a run that is stopped since what Spark made without a sink cannot be noted."""
    return LogUnavailable(
        f"What Spark may have made without a sink cannot be noted in {log}: {error}",
        "Nothing is lost: the query was stopped before Spark planned anything, since with"
        f" spark.sql.streaming.minBatchesToRetain below {BATCHES_THAT_TELL} it deletes the files that tell."
        " See to the store that holds the log (is it full?), then start the query again.",
    )


def _note(log: Log, note: WithoutSink) -> None:
    """Leave a note, in place of one from before further claims.

    Spark may have gone back behind that epoch since, and a second repartition have made its number. There is
    a note at each instant: an older run that goes on may have purged what tells. A power loss may bring the
    older one back.
    """
    present = log.without_sink(note.epoch)
    if present is None:
        log.create_without_sink(note)
    elif present.highest < note.highest:
        log.backend.replace(paths.without_sink(note.epoch), note.to_json())


def _without_rows(
    checkpoint: Checkpoint, missing: set[int], flushed: int, checkpointed: int
) -> Iterator[tuple[int, str]]:
    """Yield epochs with the digest of their source offsets, from the newest one down to the purged ones.

    A repartition since the last run made the newest epoch. An older one has no manifest, as no sink ran; the
    epoch before it, which the repartition may have passed over, may have one.
    """
    found = {checkpointed + 1}
    for epoch in range(checkpointed, flushed, -1):
        if epoch not in missing and epoch + 1 not in found | missing:
            continue
        planned = checkpoint.planned(epoch)
        if planned is None:
            return
        evidence = Evidence(
            epoch,
            (),
            before=(checkpoint.planned(epoch - 1), checkpoint.planned(epoch - 2)),
            planned=planned,
            after=checkpoint.planned(epoch + 1),
        )
        if (digest := without_rows(evidence)) is not None:
            found.add(epoch)
            yield epoch, digest
