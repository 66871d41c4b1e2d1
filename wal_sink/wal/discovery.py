"""Finds every log below a folder or a bucket's prefix, level by level.

The folder of a log has the query id as its name, and contains `state/`. Spark's own folders of a checkpoint
are skipped: they may contain millions of files. Objects are listed in a log's folder only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from state_backends import StateBackend, StorageOptions, child_url, open_backend, url_scheme
from wal_sink.model import paths
from wal_sink.wal.store import LogStore, newest

SPARKS_OWN = frozenset({"commits", "offsets", "sources", "state"})
"""Spark's folders in a checkpoint. Every checkpoint has the first two."""

DEPTH = 8
"""Most levels below the place that is searched. `<pipeline>/_checkpoints/<sink>/<flow>/0/wal_sink/<query>`
has seven."""

_QUERY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class LogPlace(NamedTuple):
    """The place of a log."""

    query_id: str
    logs: str
    """URL of the folder that contains the log's folder."""

    @property
    def url(self) -> str:
        """Return the absolute URL of the log."""
        return child_url(self.logs, self.query_id)


def open_root(url: str, options: Mapping[str, object] | None) -> StateBackend:
    """Open a folder or a bucket's prefix. No I/O.

    :param options: for object stores. Folders ignore them.
    :raises StateBackendError: no store can be opened at the URL.
    """
    takes_none = url_scheme(url) in {"", "file", "memory"}
    return open_backend(url, StorageOptions(None if takes_none else options))


def logs_below(root: StateBackend) -> Iterator[LogPlace]:
    """Yield the place of each log below a folder or a bucket's prefix.

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
    """Return the URL of the checkpoint that a log names; None if the log has lost its state.

    :param options: as for `open_root`.
    :raises CorruptLog: the newest state cannot be read.
    :raises OSError: the store does not answer, or refuses.
    """
    state = newest(LogStore(open_root(place.url, options)))
    return state.checkpoint if state is not None else None
