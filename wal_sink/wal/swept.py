"""Reads and writes the notes that segments of an attempt were deleted before it was published (rule 18)."""

from __future__ import annotations

import contextlib
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
    notes = ((attempt, run_id, _read(log, attempt)) for attempt, run_id in runs.items())
    return frozenset(attempt for attempt, run_id, note in notes if note and note.run_id == run_id)


def note_swept(log: Log, swept: Swept) -> None:
    """Note that the segments of an attempt are about to be deleted; the first note stays."""
    with contextlib.suppress(FileExistsError):
        log.backend.create(paths.swept(Attempt(swept.epoch, swept.generation)), swept.to_json())


def swept_notes(log: Log, upto: int) -> list[str]:
    """List the paths of the notes about epochs up to `upto`."""
    notes = ((paths.parse_swept(path), path) for path in log.backend.list(paths.SWEPT))
    return [path for attempt, path in notes if attempt is not None and attempt.epoch <= upto]


def _read(log: Log, attempt: Attempt) -> Swept | None:
    path = paths.swept(attempt)
    try:
        return Swept.from_json(log.backend.read(path), f"{log.url}/{path}")
    except FileNotFoundError:
        return None
