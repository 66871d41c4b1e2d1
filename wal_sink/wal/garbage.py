"""Deletes what the state no longer needs: flushed epochs, and objects of superseded runs (rule `trim`)."""

from __future__ import annotations

from wal_sink.model import paths
from wal_sink.model.state import State
from wal_sink.protocol.state import is_garbage
from wal_sink.wal.store import LogStore

UNFINISHED_S = 6 * 3600.0
"""Age at which an unfinished file is deleted. A task writes a segment in less time, so its writer was
killed."""


def garbage(store: LogStore, state: State) -> list[str]:
    """Return the paths of manifests and segments that are garbage. This costs two listings."""
    names = [
        *((path, paths.MANIFEST.parse(path)) for path in store.list(paths.MANIFEST.folder)),
        *((path, paths.SEGMENT.parse(path)) for path in store.list(paths.SEGMENT.folder)),
    ]
    return [path for path, name in names if name and is_garbage(state, name.epoch, name.run_id)]


def delete_garbage(store: LogStore, state: State) -> int:
    """Delete the manifests and segments that are garbage; return how many.

    The state already records that they may be deleted, so a process that pauses here does no harm. A crash
    leaves the rest to the next call. Refused rows, plans, and the files of given-up epochs stay.
    """
    objects = garbage(store, state)
    if objects:
        store.delete(objects)
    return len(objects)


def delete_unfinished(store: LogStore) -> int:
    """Delete files that killed writers left unfinished; return how many."""
    return store.backend.sweep_unfinished(UNFINISHED_S)
