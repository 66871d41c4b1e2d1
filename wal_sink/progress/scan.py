"""Reads many manifests, and finds the segments that none of them names. A damaged one hides no other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from wal_sink.errors import CorruptLog
from wal_sink.model.manifest import Attempt, Manifest
from wal_sink.wal.log import Log
from wal_sink.wal.read_many import read_many


class Scan(NamedTuple):
    """What was read. A manifest that was trimmed meanwhile is in neither."""

    manifests: Mapping[Attempt, Manifest]
    damaged: Mapping[Attempt, CorruptLog]


def read_manifests(log: Log, attempts: Iterable[Attempt]) -> Scan:
    """Read the manifests of attempts, and note what is wrong with those that cannot be read.

    The rows that they hold are let go: thousands may wait.
    """

    def read(attempt: Attempt) -> tuple[Attempt, Manifest | CorruptLog | None]:
        try:
            found = log.manifest(attempt)
        except CorruptLog as error:
            return attempt, error
        return attempt, found and found.manifest.without_data()

    results = read_many(log, read, attempts)
    return Scan(
        {attempt: found for attempt, found in results if isinstance(found, Manifest)},
        {attempt: found for attempt, found in results if isinstance(found, CorruptLog)},
    )


def unnamed_segments(segments: Iterable[tuple[int, str]], found: Scan) -> list[str]:
    """Return the segments that no manifest names (rule 18): counted while their epoch waits.

    A failed attempt has left them, or a batch under way is writing them: its tasks may be alive. They go
    when a run claims its generation that fences theirs, or with their epoch.

    :param segments: epoch and path, listed before the manifests: a segment that is published meanwhile
        would look unnamed otherwise.
    :param found: all manifests of their epochs. What a damaged one names cannot be told, so no segment of
        its epoch is returned.
    """
    named = {ref.path for manifest in found.manifests.values() for ref in manifest.files}
    untold = {attempt.epoch for attempt in found.damaged}
    return [path for epoch, path in segments if path not in named and epoch not in untold]
