"""Finds every log below a folder or a bucket's prefix, level by level: no object is listed but a log's.

A log's folder is called as its query, and has `state/`. What lies below Spark's own folders of a checkpoint
is not read: it may be millions of files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from state_backends import StateBackend, StorageOptions, child_url, open_backend, url_scheme
from wal_sink.model import paths
from wal_sink.wal.states import newest
from wal_sink.wal.store import LogStore

SPARKS_OWN = frozenset({"commits", "offsets", "sources", "state"})
"""Folders of a checkpoint; the first two are in each."""

DEPTH = 8
"""Folders below a place, of which `<pipeline>/_checkpoints/<sink>/<flow>/0/wal_sink/<query>` takes seven."""

_QUERY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LogPlace(NamedTuple):
    """Where a log is."""

    query_id: str
    logs: str
    """URL of the folder in which the log is, called as its query."""

    @property
    def url(self) -> str:
        """Where the log is; absolute."""
        return child_url(self.logs, self.query_id)


def open_root(url: str, options: Mapping[str, object] | None) -> StateBackend:
    """Open a folder or a prefix; no I/O.

    :param options: for object stores; a folder takes none.
    :raises StateBackendError: no store can be opened there.
    """
    takes_none = url_scheme(url) in {"", "file", "memory"}
    return open_backend(url, StorageOptions(None if takes_none else options))


def logs_below(root: StateBackend) -> Iterator[LogPlace]:
    """Yield the place of each log.

    :raises OSError: the store does not answer, or refuses.
    """
    pending: list[tuple[str, ...]] = [()]
    while pending:
        parts = pending.pop()
        names = root.folders("/".join(parts))
        if {"commits", "offsets"}.intersection(names):
            names = [name for name in names if name not in SPARKS_OWN]
        elif parts and _QUERY_ID.fullmatch(parts[-1]) and paths.STATE.folder.rstrip("/") in names:
            yield LogPlace(parts[-1], child_url(root.url, *parts[:-1]))
            continue
        if len(parts) < DEPTH:
            pending += [(*parts, name) for name in reversed(names)]


def named_checkpoint(place: LogPlace, options: Mapping[str, object] | None) -> str | None:
    """Return the URL of the checkpoint that a log names; None if the log has no state any more.

    :param options: as for `open_root`.
    :raises CorruptLog: the newest state cannot be read.
    :raises OSError: the store does not answer, or refuses.
    """
    state = newest(LogStore(open_root(place.url, options)))
    return state.checkpoint if state is not None else None
