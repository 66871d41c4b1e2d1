"""Deleting what is flushed, and nothing else (rules 17 and 18).

The newest `flushed/` record is durable before anything of its epoch goes, so a crash in between leaves
things to delete and never things to miss. Segments go before manifests: as long as a manifest of a
flushed epoch is listed, `protocol.next_step` comes back to finish the work. With `trim.delay` it does so when
the epoch's time is over; until then nothing of it goes, its record included, and `rewind` can use it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping

from wal_sink.errors import Diverged
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch
from wal_sink.wal.log import Log
from wal_sink.wal.trim_delay import TrimDelay

logger = line_logger(__name__)

RECORDS_KEPT = 1_000
"""Newest `flushed/` records that stay, so that replays can be compared with what was flushed."""

_UNFINISHED_S = 86_400.0
"""Age at which a half-written file is taken for abandoned; no task writes at a file for a day."""


def trim(log: Log, epochs: Iterable[int]) -> None:
    """Delete segments and manifests of flushed epochs, of all attempts.

    :raises Diverged: an attempt that was not flushed covers other source offsets, or nobody can tell;
        nothing is deleted of its epoch and of those that follow.
    """
    listed = log.attempts()
    published = _by_epoch(listed)
    going: dict[int, tuple[Attempt, ...]] = {}
    refused: Diverged | None = None
    for epoch in sorted(epochs):
        attempts = published.get(epoch, ())
        try:
            refuse_diverged(log, epoch, attempts)
        except Diverged as error:
            refused = error
            break
        going[epoch] = attempts
    _delete(log, going)
    log.delete(_old_records(log, (each for each in listed if each.epoch not in going)))
    if refused is not None:
        raise refused


def _delete(log: Log, epochs: Mapping[int, Iterable[Attempt]]) -> None:
    """Delete what the log holds of epochs, the manifests last."""
    log.delete(path for e in epochs for path in log.backend.list(paths.segment_folder(e)))
    if epochs:
        log.delete(_done(log, max(epochs)))
    log.delete(paths.manifest(attempt) for attempts in epochs.values() for attempt in attempts)


def left_over(log: Log, delay: TrimDelay) -> tuple[str, ...]:
    """List what a flusher would delete when it starts, but for half-written files; deletes nothing.

    Old records go with the next epoch that is trimmed.

    :raises Diverged: as `trim` raises it.
    """
    mark = log.newest_flushed()
    if mark is None:
        return ()
    listed = log.attempts()
    upto = _upto(mark, delay.trimmable(log, mark, listed))
    attempts = [attempt for attempt in listed if attempt.epoch <= upto]
    published = _by_epoch(attempts)
    for epoch, of_epoch in published.items():
        refuse_diverged(log, epoch, of_epoch)
    manifests = map(paths.manifest, attempts)
    later = [attempt for attempt in listed if attempt.epoch > upto]
    records = _old_records(log, later) if published else []
    return (*_late(log, upto), *_done(log, upto), *manifests, *records)


def refuse_diverged(log: Log, epoch: int, attempts: Iterable[Attempt]) -> None:
    """See that what is left of a flushed epoch may go (rule 18).

    :param attempts: the manifests of the epoch.
    :raises Diverged: one that was not flushed covers other source offsets, or nobody can tell.
    """
    record = log.flushed(epoch)
    settled = _set_aside(log, record)
    for attempt in attempts:
        if paths.manifest(attempt) not in settled:
            _compare(log, attempt, record)


def sweep(log: Log, trimmable: int | None = None) -> int:
    """Delete what killed tasks left half written, and what came late of flushed epochs.

    Segments above the flushed mark stay, named by a manifest or not: their task may be alive.

    :param trimmable: the highest epoch of which anything may go; None: the flushed mark.
    :return: how many files were half written.
    """
    if unfinished := log.backend.sweep_unfinished(_UNFINISHED_S):
        logger.info("deleted %d unfinished files of killed writers", unfinished)
    mark = log.newest_flushed()
    if mark is None:
        return unfinished
    upto = _upto(mark, trimmable)
    if late := _late(log, upto):
        logger.info("deleting %d segments of epochs up to %d", len(late), upto)
        log.delete(late)
    log.delete(_done(log, upto))
    return unfinished


def _by_epoch(attempts: Iterable[Attempt]) -> dict[int, tuple[Attempt, ...]]:
    """Group attempts that ascend."""
    groups = itertools.groupby(attempts, lambda attempt: attempt.epoch)
    return {epoch: tuple(group) for epoch, group in groups}


def _upto(mark: FlushedEpoch, trimmable: int | None) -> int:
    return mark.epoch if trimmable is None else min(trimmable, mark.epoch)


def _late(log: Log, flushed: int) -> list[str]:
    return [path for epoch, path in log.segments() if epoch <= flushed]


def _done(log: Log, flushed: int) -> list[str]:
    return [path for path in log.backend.list(paths.KEPT) if _is_done(path, flushed)]


def _is_done(kept: str, flushed: int) -> bool:
    attempt = paths.parse_kept(kept)
    return attempt is not None and attempt.epoch <= flushed


def _set_aside(log: Log, record: FlushedEpoch | None) -> set[str]:
    """Return the paths of manifests that an operator has copied away: they may be unreadable."""
    if record is None or record.manifest:
        return set()
    decision = log.decision(record.epoch)
    return {copy.path for copy in decision.files} if decision else set()


def _compare(log: Log, attempt: Attempt, record: FlushedEpoch | None) -> None:
    if record is not None and attempt.generation == record.generation:
        return
    found = log.manifest(attempt)
    if found is None:
        return  # another trimmer was faster
    if record is None:
        raise Diverged(
            f"{log.url}/{paths.manifest(attempt)} cannot be compared with what was flushed as epoch"
            f" {attempt.epoch}: {log.url}/{paths.FLUSHED} has no record of it",
            f"The newest {RECORDS_KEPT:,} records are kept. If the manifest was put back from a copy of the"
            " log, move it away: its epoch is in the table. If it is the record that is lost, restore"
            " flushed/ from a copy.",
        )
    same = found[0].offsets_digest == record.offsets_digest
    if not (same or attempt.generation < record.generation):
        raise Diverged(
            f"{log.url}/{paths.manifest(attempt)} covers other source offsets than what was flushed"
            f" as epoch {attempt.epoch}",
            "Two histories exist under one epoch: the checkpoint was set back, or two queries ran from"
            " it. Decide which is right; if it is the one in the table, move the manifest away.",
        )
    # An attempt before the flushed one lost as it should; with other offsets, Spark went back behind it
    # before anything was flushed (rule 12). A later one recomputed what was flushed.
    odd = not same or attempt.generation > record.generation
    level = logging.WARNING if odd else logging.INFO
    logger.log(level, "%s goes: epoch flushed from another attempt", paths.manifest(attempt))


def _old_records(log: Log, left: Iterable[Attempt]) -> list[str]:
    """List records that are not needed any more; an epoch that has manifests left needs its own."""
    recorded = [p for p in log.backend.list(paths.FLUSHED) if paths.parse_flushed(p) is not None]
    needed = min((paths.flushed(attempt.epoch) for attempt in left), default=None)
    old = recorded[:-RECORDS_KEPT]
    return old if needed is None else [path for path in old if path < needed]
