"""Finds what a rewind flushes again, and what a flusher that stands still could delete of it."""

from __future__ import annotations

from collections.abc import Iterator

from wal_sink.admin.query import Query
from wal_sink.errors import CorruptLog, Diverged
from wal_sink.flush.choose_window import WindowChooser
from wal_sink.flush.read_window import plan_of
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.progress.scan import read_manifests
from wal_sink.protocol.rewind import Past
from wal_sink.protocol.steps import Choose, ManifestMissing
from wal_sink.protocol.windows import MOST_EPOCHS, fits
from wal_sink.wal.log import Log
from wal_sink.wal.retain import has_manifest
from wal_sink.wal.segment import check_segment


def flushed_attempt(query: Query, past: Past, epoch: int) -> Attempt | None:
    """Return the attempt that was flushed; without a record, the only one there is."""
    record = past.records.get(epoch)
    if record is not None:
        attempt = Attempt(epoch, record.generation)
        return attempt if has_manifest(query.log, attempt) else None
    attempts = [attempt for attempt in query.log.attempts() if attempt.epoch == epoch]
    return attempts[0] if len(attempts) == 1 else None


def is_usable(query: Query, past: Past, epoch: int) -> bool:
    """Tell whether the log has the attempt that was flushed, with every byte of it.

    An epoch that this log has never flushed needs none: True.
    """
    if past.unflushed_here(epoch):
        return True
    attempt = flushed_attempt(query, past, epoch)
    record = past.records.get(epoch)
    try:
        found = query.log.manifest(attempt) if attempt is not None else None
        if found is None or not (record is None or record.names(found[1], found[0].offsets_digest)):
            return False
        plan_of(query.log, found[0])
        for segment in found[0].all_segments:
            check_segment(query.log.backend, segment)
    except (CorruptLog, FileNotFoundError):
        return False
    return record is None or (record.rows, record.bytes) == (found[0].rows, found[0].bytes)


def stops_flush(query: Query, chooser: WindowChooser, past: Past, epoch: int) -> bool:
    """Tell whether the flush will stop at an epoch that another log has flushed: this one has no manifest."""
    if not past.unflushed_here(epoch):
        return False
    try:
        return isinstance(chooser.epoch(Choose(epoch, query.log.attempts())), ManifestMissing)
    except (CorruptLog, Diverged):
        return True


def needed_attempts(query: Query, past: Past, again: range) -> Iterator[Manifest]:
    """Yield what a flusher that stands still could delete: what is flushed again, and a window above that.

    A flusher that has finished a window, and not recorded it, may trim it when it wakes. That window begins
    right after the log's mark. Which attempts it names is not known once the ledger row is lost or restored,
    so all of them are kept.
    """
    flushed = [epoch for epoch in again if not past.unflushed_here(epoch)]
    for epoch in flushed:
        kept = None if past.passed_over(epoch) else flushed_attempt(query, past, epoch)
        found = query.log.manifest(kept) if kept is not None else None
        if found is not None:
            yield found.manifest.without_data()
    window = range(past.floor + 1, min(past.checkpointed, past.floor + MOST_EPOCHS) + 1)
    begun = set(window).difference(flushed)
    attempts = [attempt for attempt in query.log.attempts() if attempt.epoch in begun]
    size = 0
    for manifest in read_manifests(query.log, attempts).manifests.values():
        if not fits(size, manifest.bytes):
            return
        size += manifest.bytes
        if has_files(query.log, manifest):
            yield manifest


def has_files(log: Log, manifest: Manifest) -> bool:
    """Whether the segments of an attempt are there; what is wrong with them is found when it is flushed."""
    try:
        for segment in manifest.files:
            log.backend.size(segment.path)
    except FileNotFoundError:
        return False
    return True
