"""Segments that no manifest names (rule 18). Those of unflushed epochs are counted and never deleted.

They are of attempts that failed, or of a batch under way: nobody can tell which, as its tasks may be alive.
They go with their epoch.
"""

from __future__ import annotations

from collections.abc import Iterable

from wal_sink.progress.readable import Readable, read_manifests
from wal_sink.wal.log import Log


def orphans(log: Log) -> list[str]:
    """List the segments above the flushed mark that no manifest names; reads every manifest there."""
    newest = log.newest_flushed()
    flushed = -1 if newest is None else newest.epoch
    # Listed before the manifests: else what is published meanwhile would be taken for one.
    segments = [(epoch, path) for epoch, path in log.segments() if epoch > flushed]
    above = [attempt for attempt in log.attempts() if attempt.epoch > flushed]
    return unnamed(segments, read_manifests(log, above if segments else ()))


def unnamed(segments: Iterable[tuple[int, str]], found: Readable) -> list[str]:
    """Keep the segments that no manifest names.

    :param segments: epoch and path; listed before the manifests.
    :param found: all manifests of their epochs. What one that is damaged names cannot be told, so no
        segment of its epoch is kept.
    """
    named = {ref.path for manifest in found.manifests.values() for ref in manifest.segments}
    untold = {attempt.epoch for attempt in found.damaged}
    return [path for epoch, path in segments if path not in named and epoch not in untold]
