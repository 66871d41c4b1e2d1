"""Reads and writes the notes that segments of an attempt were deleted before it was published (rule 18)."""

from __future__ import annotations

from collections.abc import Mapping

from wal_sink.model import paths
from wal_sink.model.manifest import Attempt
from wal_sink.model.records import Swept
from wal_sink.wal.log import Log


def read_swept(log: Log, runs: Mapping[Attempt, str]) -> frozenset[Attempt]:
    """Return those attempts of which there is a note.

    A log that was restored may have notes of runs that it does not know, and their generations come again.

    :param runs: who has published each attempt.
    :raises CorruptLog: a note cannot be read.
    """
    notes = (
        (attempt, run_id, log.read(Swept, paths.swept(attempt))) for attempt, run_id in runs.items()
    )
    return frozenset(attempt for attempt, run_id, note in notes if note and note.run_id == run_id)


def note_swept(log: Log, swept: Swept) -> None:
    """Note that the segments of an attempt are about to be deleted."""
    log.create_note(paths.swept(Attempt(swept.epoch, swept.generation)), swept)
