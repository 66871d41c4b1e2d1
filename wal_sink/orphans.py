"""Segments that no manifest names (rule 18). Those of unflushed epochs are counted and never deleted."""

from __future__ import annotations

from wal_sink import layout
from wal_sink.errors import CorruptLog
from wal_sink.log import Log


def orphans(log: Log) -> list[str]:
    """List the segments above the flushed mark that no manifest names.

    They are of attempts that failed, or of a batch under way: nobody can tell which, as its tasks may be
    alive. They go with their epoch. Reads every manifest above the mark; what one that is damaged names
    cannot be told, so no segment of its epoch is listed.
    """
    newest = log.newest_flushed()
    flushed = -1 if newest is None else newest.epoch
    waiting = [  # listed before the manifests, so that what is published meanwhile is not taken for one
        path
        for path in log.backend.list(layout.SEGMENTS)
        if (epoch := layout.parse_segment_epoch(path)) is not None and epoch > flushed
    ]
    if not waiting:
        return []
    named, untold = set(), set()
    for attempt in log.attempts():
        if attempt.epoch > flushed:
            try:
                found = log.manifest(attempt)
            except CorruptLog:
                untold.add(attempt.epoch)
            else:
                named |= {segment.path for segment in found[0].segments} if found else set()
    return [
        path
        for path in waiting
        if path not in named and layout.parse_segment_epoch(path) not in untold
    ]
