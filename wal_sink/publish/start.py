"""What a run does as it starts, before Spark reads the checkpoint; its ticket is in `fencing`.

It ties log and checkpoint together, and notes epochs that were planned without the sink (rule 12). Spark's
offline state repartition makes a batch, and may skip one, without calling the sink. Only `offsets/` shows
that, and Spark purges it: while it plans an epoch, it deletes those that lie `minBatchesToRetain` before it.
So the run notes them before its ticket and before Spark plans anything: `docs/protocol/rules.md#rule-12`.
Where earlier runs have filled the log, it claims its generation at once, and sweeps.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping

from wal_sink.checkpoint.checkpoint import Checkpoint
from wal_sink.errors import LogUnavailable, MissingManifest, UnknownOffsetsFormat, WalSinkError
from wal_sink.model import paths
from wal_sink.model.records import WithoutSink
from wal_sink.progress.backlog import read_backlog
from wal_sink.protocol.attempts import Evidence, without_rows
from wal_sink.protocol.budget import Budget, has_to_sweep
from wal_sink.publish.fencing import claim_generation
from wal_sink.publish.orphans import RUNS_LEFT, sweep_orphans
from wal_sink.wal.location import tie
from wal_sink.wal.log import Log
from wal_sink.wal.runs import is_crowded, sweep_void_tickets
from wal_sink.wal.targets import flushed_epoch

logger = logging.getLogger(__name__)

_TICK_S = 0.01
"""Linux stamps a file with the time of its last tick: a new one looks older by so much at most."""

BATCHES_NEEDED = 3
"""Where Spark retains so many batches, the first one that a run plans deletes no file that a note needs: a
repartition after epoch L makes L + 1, the run plans L + 2, and the note needs L - 1 and later ones."""


def begin_log(log: Log, checkpoint: Checkpoint) -> bool:
    """Tie log and checkpoint together before the run computes anything; whether nothing is published yet.

    Then every epoch that was completed since the first start has passed the sink by: a function for
    `foreachBatch` has kept the writer's errors to itself, or another sink has run on the checkpoint. Only
    now nothing lies behind these epochs, so both have a way out that loses nothing.

    :raises MissingManifest: there are such epochs.
    :raises WrongOwner: log and checkpoint do not belong together.
    """
    first = tie(log, checkpoint).first_epoch
    if log.keys(paths.CLAIM):  # a run that publishes has claimed before
        return False
    # Before the claims are listed again: what is completed from here on does not count.
    last = checkpoint.last_commit(fresh=True)
    if log.keys(paths.CLAIM, fresh=last >= first):
        return False
    if last < first:
        return True
    published = {attempt.epoch for attempt in log.attempts(fresh=True)}  # where the claims are lost
    # After the manifests: a flusher creates the record before it deletes the manifest.
    missing = range(max(first, flushed_epoch(log) + 1), last + 1)
    gone = set(missing) - {
        *published,
        *log.keys(paths.WITHOUT_SINK, fresh=True),
        *log.decided(fresh=True),
    }
    with contextlib.suppress(UnknownOffsetsFormat):  # `commit` raises it
        gone -= {epoch for epoch, _ in _without_rows(checkpoint, gone, first - 1, last)}
    if gone:
        which = f"Epochs {min(gone)} to {max(gone)}" if len(gone) > 1 else f"Epoch {min(gone)}"
        raise MissingManifest(
            f"{which} of {checkpoint.url} did not go through this sink: completed since the sink's"
            f" first start, while nothing was ever published in {log.url}",
            "A function for foreachBatch has to call the writer for every batch, and let its errors go"
            " through. To have that data computed again, start with a new checkpoint. If another sink has"
            f" written their rows, or they may be lost: delete {log.url} and"
            f" {checkpoint.url}/{checkpoint.LOG_URL}, and start the query again; it goes on behind them.",
        )
    return True


def note_without_sink(log: Log, checkpoint: Checkpoint) -> None:
    """Note the epochs that Spark made, or left out, without a sink; called while no run plans epochs.

    Reads few files of `offsets/` as long as every epoch that is not flushed has a manifest.
    """
    identity = tie(log, checkpoint)
    checkpointed = checkpoint.last_commit(fresh=True)  # the tool may have run on another host
    published = {attempt.epoch for attempt in log.attempts()}
    # Listed after the manifests: a flusher creates the record before it deletes the manifest.
    flushed = identity.mark(flushed_epoch(log))
    missing = set(range(flushed + 1, checkpointed + 1)) - published
    highest = log.highest_generation()
    try:
        for epoch, digest in _without_rows(checkpoint, missing, flushed, checkpointed):
            logger.info(
                "epoch %d of %s was completed without a sink, by a repartition"
                " of Spark's state. It has no rows",
                epoch,
                checkpoint.url,
            )
            _note(log, WithoutSink(epoch=epoch, offsets_digest=digest, highest=highest))
    except UnknownOffsetsFormat:
        logger.debug(
            "the format of the source's offsets is unknown", exc_info=True
        )  # no epoch is published then: `commit` raises it


def not_noted(log: str, error: Exception) -> LogUnavailable:
    """Return the error of a run that is stopped since what Spark made without a sink cannot be noted."""
    return LogUnavailable(
        f"What Spark may have made without a sink cannot be noted in {log}: {error}",
        "Nothing is lost: the query was stopped before Spark planned anything, since with"
        f" spark.sql.streaming.minBatchesToRetain below {BATCHES_NEEDED} it deletes the files that tell."
        " See to the store that holds the log (is it full?), then start the query again.",
    )


def _note(log: Log, note: WithoutSink) -> None:
    """Leave a note, in place of one from before further claims.

    Spark may have gone back behind that epoch since, and a second repartition have made its number. There is
    a note at each instant, since an older run may have purged Spark's files. A power loss may bring the older
    note back.
    """
    present = log.read(paths.WITHOUT_SINK, note.epoch)
    if present is None:
        log.create(paths.WITHOUT_SINK, note.epoch, note)
    elif present.highest < note.highest:
        log.backend.replace(paths.WITHOUT_SINK.path(note.epoch), note.to_json())


def _without_rows(
    checkpoint: Checkpoint, missing: set[int], flushed: int, checkpointed: int
) -> Iterator[tuple[int, str]]:
    """Yield epochs with the digest of their source offsets, from the newest one down to the purged ones.

    A repartition since the last run made the newest epoch. An older one has no manifest, as no sink ran; the
    epoch before it, which the repartition may have left out, may have one.
    """
    found = {checkpointed + 1}
    for epoch in range(checkpointed, flushed, -1):
        if epoch not in missing and epoch + 1 not in found | missing:
            continue
        offsets = checkpoint.offsets(epoch)
        if offsets is None:
            return
        evidence = Evidence(
            epoch,
            (),
            before=(checkpoint.offsets(epoch - 1), checkpoint.offsets(epoch - 2)),
            offsets=offsets,
            after=checkpoint.offsets(epoch + 1),
        )
        if (digest := without_rows(evidence)) is not None:
            found.add(epoch)
            yield epoch, digest


def claim_early(
    log: Log, checkpoint: Checkpoint, run_id: str, budget: Budget, options: Mapping[str, str]
) -> None:
    """Claim the run's generation as it starts, where earlier runs have filled the log with what they left.

    A run that dies before its first `commit()`, again and again, claims nothing, fences nothing and deletes
    nothing. So a run that finds the budget used up, or too many tickets, claims at once. Nothing that it may
    write lies in the log yet, so all that was half written there before is of runs that are fenced now. What
    is written from now on may be of a newer run.

    Called when the run has its ticket, before Spark reads the checkpoint. What goes wrong is not raised: the
    first `commit()` will meet it.

    :param options: the sink's options without secrets, kept with the claim.
    """
    began_s = time.monotonic()
    try:
        epoch = checkpoint.next_epoch()  # the claim says from where the run goes on
        left = _bytes_left(log, epoch)
        crowded = is_crowded(log)
        if not crowded and not (left and _is_filled(log, checkpoint, left, budget)):
            return
        claim_generation(log, run_id, options, epoch, early=True)
        sweep_orphans(log, run_id, checkpointed=epoch - 1)
        age_s = time.monotonic() - began_s + _TICK_S
        halves = log.backend.sweep_unfinished(age_s, paths.SEGMENT.folder)
        tickets = (
            sweep_void_tickets(log) if crowded else 0
        )  # last: they tell of which run an orphan is
        logger.warning(
            "%s: earlier runs left %d bytes of epoch %d, which is not checkpointed."
            " Files that can never be published are deleted now, with %d half-written"
            " files and %d tickets",
            log.url,
            left,
            epoch,
            halves,
            tickets,
        )
    except (OSError, WalSinkError):
        logger.warning(RUNS_LEFT, log.url, exc_info=True)


def _is_filled(log: Log, checkpoint: Checkpoint, left: int, budget: Budget) -> bool:
    return has_to_sweep(left, read_backlog(checkpoint, log), budget, log.backend.free_bytes())


def _bytes_left(log: Log, epoch: int) -> int:
    """Return the bytes of an epoch's segments, finished or not, before the first run computes it again."""
    folder = paths.segment_folder(epoch)
    return log.backend.unfinished_bytes(folder) + sum(log.backend.sizes(folder).values())
