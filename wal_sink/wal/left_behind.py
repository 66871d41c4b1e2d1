"""Finds what a deleted checkpoint has left: logs that still name it, and have epochs that wait (rule 1).

A log below `wal.location` stays when its checkpoint is deleted. The next start there is a new query with a
log of its own, and no flusher ever looks into the old one.
"""

from __future__ import annotations

from typing import NamedTuple

from state_backends import StateBackendError
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.records import LogIdentity
from wal_sink.wal.attached import flushed_epoch
from wal_sink.wal.location import Location, open_place
from wal_sink.wal.log import Log
from wal_sink.wal.read_many import read_many


class LeftBehind(NamedTuple):
    """A log whose checkpoint was deleted, and the epochs that are published in it and not flushed."""

    query_id: str
    log: Log
    epochs: tuple[int, ...]
    """At least one, ascending. All but the last were checkpointed; the last one may have been."""


def left_behind(location: Location, query_id: str) -> list[LeftBehind]:
    """Find the logs that other queries with this query's checkpoint have left.

    One listing, and one read for each log that lies there: for the first start of a query.
    """
    logs = open_place(location.logs, location.stores)
    others = [name for name in logs.folders() if name != query_id]
    opened = [location.open_log(name) for name in others]
    if not opened:
        return []
    identities = read_many(opened[0], _identity, opened)
    found = []
    for name, log, identity in zip(others, opened, identities, strict=True):
        if identity is not None and identity.checkpoint == location.checkpoint:
            # A log has targets with names for ever, or never, whatever the new query has.
            view = Log(log.backend, several=bool(log.backend.list(paths.TARGETS)))
            if epochs := unflushed(view):
                found.append(LeftBehind(name, view, epochs))
    return found


def unflushed(log: Log) -> tuple[int, ...]:
    """Return the epochs that are published and not flushed to every attached target, ascending."""
    flushed = flushed_epoch(log)
    return tuple(sorted({each.epoch for each in log.attempts() if each.epoch > flushed}))


def _identity(log: Log) -> LogIdentity | None:
    try:
        return log.identity()
    except (OSError, StateBackendError, CorruptLog):
        return None  # it may be of another user, or no log at all
