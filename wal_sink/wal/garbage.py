"""Deletes what the state lets go: flushed epochs, and what superseded runs left (rule `trim`)."""

from __future__ import annotations

from wal_sink.model import paths
from wal_sink.model.state import State
from wal_sink.protocol.state import is_garbage
from wal_sink.wal.store import LogStore

UNFINISHED_S = 6 * 3600.0
"""How long a file that a killed writer left unfinished stays: longer than a task writes one segment."""


def garbage(store: LogStore, state: State) -> list[str]:
    """Return the paths of manifests and segments that are garbage by a state. Two listings."""
    names = [
        *((path, paths.MANIFEST.parse(path)) for path in store.list(paths.MANIFEST.folder)),
        *((path, paths.SEGMENT.parse(path)) for path in store.list(paths.SEGMENT.folder)),
    ]
    return [path for path, name in names if name and is_garbage(state, name.epoch, name.run_id)]


def delete_garbage(store: LogStore, state: State) -> int:
    """Delete manifests and segments that are garbage by a state; return how many.

    The state says so before: whoever pauses here deletes nothing that is needed again. A crash
    leaves the rest to the next call. Refused rows, plans, and the files of given-up epochs stay.
    """
    objects = garbage(store, state)
    if objects:
        store.delete(objects)
    return len(objects)


def delete_unfinished(store: LogStore) -> int:
    """Delete files that killed writers left unfinished; return how many."""
    return store.backend.sweep_unfinished(UNFINISHED_S)
