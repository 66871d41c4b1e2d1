"""Deletes flushed epochs from the log (rules 17 and 18).

The newest `flushed/` record is durable before anything of its epoch is deleted, so a crash in between
leaves objects to delete and never objects to miss. Segments are deleted before manifests: as long as a
manifest of a flushed epoch is listed, `protocol.next_step` comes back to finish the work; what is left of
notes is swept. With `wal.retention` it does so when the epoch's time is over; until then nothing of the
epoch is deleted, its record included, and `rewind` can use it.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from wal_sink.errors import CorruptLog, Diverged
from wal_sink.log_context import line_logger
from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import FlushedEpoch
from wal_sink.wal.aside import needless_aside
from wal_sink.wal.log import Log
from wal_sink.wal.quarantine import left_entries, older_entries
from wal_sink.wal.retention import RetainedEpochs, Retention, retained_paths
from wal_sink.wal.runs import sweep_runs
from wal_sink.wal.targets import flushed_epoch, is_lacked, record_anywhere, views

logger = line_logger(__name__)

RECORDS_KEPT = 1_000
"""Newest `flushed/` records that stay, so that replays can be compared with what was flushed."""

_UNFINISHED_S = 86_400.0
"""Age at which a half-written file counts as abandoned: no task writes at a file for a day."""


def trim(
    log: Log,
    epochs: Iterable[int],
    flushed: Collection[Attempt],
    retained: RetainedEpochs,
) -> tuple[Diverged, ...]:
    """Delete segments and manifests of flushed epochs, of all attempts.

    :param flushed: attempts that the caller has just flushed: their manifests are not read again.
    :param retained: what the caller knows to be retained.
    :return: why epochs stay: what is left of them cannot be compared, since they have no records.
    :raises Diverged: an attempt that was not flushed covers other source offsets; nothing is deleted of its
        epoch and of those that follow.
    """
    listed = log.attempts()
    trimmed, stay, refused = _compared(log, listed, epochs, flushed)
    log.delete(path for e in trimmed for path in log.backend.list(paths.segment_folder(e)))
    log.delete(paths.MANIFEST.path(each) for attempts in trimmed.values() for each in attempts)
    remaining = [each for each in listed if each.epoch not in trimmed]
    if trimmed:  # as long as there are attempts, what tells them apart is there
        stays = {each.epoch for each in remaining}
        log.delete(_notes(log, max(trimmed), paths.PROOF, but=stays))
        log.delete(_choices(log, max(trimmed), stays))
    log.delete(retained.paths_of(trimmed))
    retained.note_deleted(trimmed)
    for view in views(log.of("")):
        view.delete(old_records(view, remaining, max(trimmed, default=-1)))
    if refused is not None:
        raise refused
    return tuple(stay)


class _Compared(NamedTuple):
    """Which flushed epochs may be trimmed."""

    trimmed: dict[int, tuple[Attempt, ...]]
    """They, with all their attempts."""
    stay: list[Diverged]
    """Why others stay."""
    refused: Diverged | None
    """Why neither the next one may be, nor those that follow."""


def _compared(
    log: Log, listed: Iterable[Attempt], epochs: Iterable[int], flushed: Collection[Attempt] = ()
) -> _Compared:
    attempts_of = _by_epoch(listed)
    found = _Compared({}, [], None)
    for epoch in sorted(epochs):
        attempts = attempts_of.get(epoch, ())
        try:
            refuse_diverged(log, epoch, [each for each in attempts if each not in flushed])
        except Diverged as error:
            if record_anywhere(log, epoch) is not None:
                return found._replace(refused=error)
            found.stay.append(error)
            continue
        found.trimmed[epoch] = attempts
    return found


def sweep(log: Log, trimmable: int) -> int:
    """Delete the half-written files of killed tasks, and what was written of an epoch after it was trimmed.

    Segments above the flushed mark stay, named by a manifest or not: their task may be alive. So do those of
    an epoch that still has a manifest, waiting or retained: `trim` compares that first (rule 23); and what
    tells its attempts apart, for a target that is attached again.

    :param trimmable: the highest epoch of which anything may be deleted.
    :return: how many files were half written.
    """
    if unfinished := log.backend.sweep_unfinished(_UNFINISHED_S):
        logger.info("deleted %d unfinished files of killed writers", unfinished)
    if (mark := log.mark()) >= 0:
        upto = min(trimmable, mark)
        # Afresh: a segment goes because both lack its epoch. Manifests first, since they move to `retained/`.
        untrimmed = {attempt.epoch for attempt in log.attempts(fresh=True)}
        untrimmed |= retained_paths(log, fresh=True).keys()
        if segments := _segments(log, upto, untrimmed):
            logger.info("deleting %d segments of epochs up to %d", len(segments), upto)
            log.delete(segments)
        log.delete(_all_notes(log, upto, untrimmed))
        for path in left_entries(log, mark - RECORDS_KEPT):
            log.delete([path])
    sweep_runs(log, flushed_epoch(log.of("")))
    return unfinished


def list_trimmable(log: Log, retention: Retention) -> tuple[str, ...]:
    """List what a flusher would delete when it starts, but for half-written files; deletes nothing.

    Old records are deleted with the next epoch that is trimmed.

    :raises Diverged: as `trim` raises it.
    """
    newest = log.newest_flushed()
    if newest is None:
        return ()
    listed, retained = log.attempts(), retained_paths(log)
    there = sorted({*retained, *(attempt.epoch for attempt in listed)})
    upto = retention.trimmable(log, newest, there)
    epochs = {attempt.epoch for attempt in listed if attempt.epoch <= upto}
    trimmed, _, refused = _compared(log, listed, epochs)
    if refused is not None:
        raise refused
    remaining = [attempt for attempt in listed if attempt.epoch not in trimmed]
    stays = epochs - trimmed.keys()
    kept = [path for epoch, copies in retained.items() if epoch <= upto for path in copies]
    records = old_records(log, remaining, upto) if trimmed else []
    manifests = [paths.MANIFEST.path(attempt) for each in trimmed.values() for attempt in each]
    garbage = (*_segments(log, upto, stays), *_all_notes(log, upto, stays))
    left = left_entries(log, newest.epoch - RECORDS_KEPT)
    after_rewinds = (*needless_aside(log, newest.epoch), *older_entries(log, newest.epoch))
    return (*garbage, *left, *manifests, *kept, *records, *after_rewinds)


def refuse_diverged(log: Log, epoch: int, attempts: Collection[Attempt]) -> None:
    """Refuse to delete what is left of a flushed epoch, if it is of another history (rule 18).

    :param attempts: the manifests of the epoch.
    :raises Diverged: one that was not flushed covers other source offsets, or cannot be compared.
    """
    if not attempts:
        return
    record = record_anywhere(log, epoch)
    flushed = record.generation if record is not None and record.manifest else None
    copied = _copied_manifests(log, epoch) if {a.generation for a in attempts} - {flushed} else ()
    for attempt in attempts:
        if paths.MANIFEST.path(attempt) not in copied:
            _refuse_other_history(log, attempt, record)


def _by_epoch(attempts: Iterable[Attempt]) -> dict[int, tuple[Attempt, ...]]:
    """Group attempts that ascend."""
    groups = itertools.groupby(attempts, lambda attempt: attempt.epoch)
    return {epoch: tuple(group) for epoch, group in groups}


def _segments(log: Log, upto: int, but: Collection[int] = ()) -> list[str]:
    """List the segments of epochs up to `upto`, named by a manifest or not; those of some epochs left out."""
    return [path for epoch, path in log.segments() if epoch <= upto and epoch not in but]


def _notes(
    log: Log, upto: int, *kinds: paths.Kind[Any, Attempt], but: Collection[int] = ()
) -> list[str]:
    """List the notes about attempts at epochs up to `upto`; those of some epochs left out."""
    return [
        path
        for kind in kinds
        for path in log.paths_of(kind, lambda each: each.epoch <= upto and each.epoch not in but)
    ]


def _all_notes(log: Log, upto: int, but: Collection[int] = ()) -> list[str]:
    """List the notes about epochs up to `upto`: what Spark kept, whose orphans went, and what was chosen."""
    notes = _notes(log, upto, paths.PROOF, paths.TOMBSTONE, but=but)
    return [*notes, *_choices(log, upto, but)]


def _choices(log: Log, upto: int, but: Collection[int] = ()) -> list[str]:
    """List what was chosen for all of several targets about epochs up to `upto`."""
    if not log.several:
        return []
    return log.paths_of(paths.CHOICE, lambda epoch: epoch <= upto and epoch not in but)


def old_records(log: Log, remaining: Iterable[Attempt], done: int) -> list[str]:
    """List the records that are needed no longer.

    A manifest moves to `retained/` only behind a copy of its record: so where there is none, no record is
    missed.

    :param remaining: the manifests in `manifests/` that stay: the records of their epochs are needed.
    :param done: the last epoch that is trimmed or retained. Those above may have manifests that came later.
    """
    waiting = {attempt.epoch for attempt in remaining}
    listed = log.keys(paths.FLUSHED)
    upto = min(done, max((name.last for name in listed), default=-1) - RECORDS_KEPT)
    return [
        paths.FLUSHED.path(name)
        for name in listed
        if name.last <= upto and waiting.isdisjoint(name.epochs)
    ]


def _copied_manifests(log: Log, epoch: int) -> set[str]:
    """Return the paths of manifests that operators have copied away: they may be unreadable."""
    return {copy.path for decision in log.decisions(epoch) for copy in decision.files}


def _why_without_record(log: Log, attempt: Attempt) -> str:
    """Say why no record is missing of an attempt at an epoch of which there is none; empty: it is missing.

    An attempt of a run that was fenced lost, however late it came: its epoch is flushed, and records as old
    have been deleted. The oldest that is left is of a higher generation, so a newer run had gone on from
    there before this attempt was published.
    """
    if is_lacked(log, attempt.epoch):
        return "a target lacks its epoch since it was detached, and no other waits for it"
    epochs = log.flushed_epochs()
    oldest = log.flushed(epochs[0]) if epochs else None
    if oldest is None or attempt.epoch >= oldest.epoch or attempt.generation >= oldest.generation:
        return ""
    return "a run published it after a newer run had replaced it (fenced)"


def _refuse_other_history(log: Log, attempt: Attempt, record: FlushedEpoch | None) -> None:
    """Compare an attempt with the record of its epoch.

    :raises Diverged: as `refuse_diverged`.
    """
    if record is not None and attempt.generation == record.generation:
        _refuse_other_bytes(log, attempt, record)
        return
    found = log.manifest(attempt)
    if found is None:
        return  # another trimmer was faster
    if record is None and (why := _why_without_record(log, attempt)):
        logger.warning("deleting %s: %s", paths.MANIFEST.path(attempt), why)
        return
    if record is None:
        raise Diverged(
            f"{log.url}/{paths.MANIFEST.path(attempt)} cannot be compared with what was flushed as epoch"
            f" {attempt.epoch}: {log.url_of(paths.FLUSHED.folder)} has no record of it",
            f"The newest {RECORDS_KEPT:,} records are kept. If the manifest was put back from a copy of the"
            " log, move it away: its epoch is in the table. If it is the record that is lost, restore"
            " flushed/ from a copy.",
        )
    same = found.manifest.offsets_digest == record.offsets_digest
    if not (same or attempt.generation < record.generation):
        raise Diverged(
            f"{log.url}/{paths.MANIFEST.path(attempt)} covers other source offsets than what was flushed"
            f" as epoch {attempt.epoch}",
            "Two histories exist under one epoch: the checkpoint was set back, or two queries ran from"
            " it. Decide which is right; if it is the one in the table, move the manifest away.",
        )
    # An attempt before the flushed one lost as it should; with other offsets, Spark went back behind it
    # before anything was flushed (rule 12). A later one recomputed what was flushed.
    unexpected = not same or attempt.generation > record.generation
    level = logging.WARNING if unexpected else logging.INFO
    logger.log(
        level,
        "deleting %s: its epoch was flushed from another attempt",
        paths.MANIFEST.path(attempt),
    )


def _refuse_other_bytes(log: Log, attempt: Attempt, record: FlushedEpoch) -> None:
    """Compare the manifest that has the name of the flushed one with the record (rule 23).

    A damaged one is deleted: its epoch is flushed, and nothing else has this name.

    :raises Diverged: it is another manifest.
    """
    try:
        found = log.manifest(attempt)
    except CorruptLog:
        logger.warning(
            "deleting %s, which is damaged and not needed: its epoch is flushed",
            paths.MANIFEST.path(attempt),
        )
        return
    if found is None or not record.manifest:
        return  # trimmed by another flusher, or passed over
    if not record.names(found.digest, found.manifest.offsets_digest):
        raise Diverged(
            f"{log.url}/{paths.MANIFEST.path(attempt)} is not what was flushed as epoch {attempt.epoch}",
            "Two histories exist under one name: the log was restored from a backup, or the file was"
            " replaced. Decide which is right; if it is the one in the table, move the manifest away.",
        )
