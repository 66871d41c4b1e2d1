"""Reads, changes and deletes the objects of one query's log in its store.

The state of a log is `state/<n>.json`. Number n + 1 is created once, from number n. A create fails if its
name is taken, so all changes of a log have one order (rule `state`). The newest 100 states stay. A process
whose state was deleted meanwhile is at least 100 changes late. Such a process deletes the state that it has
created, since no other process continues from this state.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from typing import TypeVar

from state_backends import StateBackend
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import Record
from wal_sink.model.state import State
from wal_sink.protocol.state import is_garbage

R = TypeVar("R", bound=Record)


logger = logging.getLogger(__name__)

LogStore = StateBackend
"""A state backend whose root is the folder of one query's log, `<wal.location>/<query id>`."""


KEPT = 100
"""How many of the newest states stay in the log."""

_DELETED_AT_A_TIME = 20
"""How many old states one request deletes."""

Change = Callable[[State], State | None]
"""A transition of `protocol.state` with its arguments, which returns the next state, or None for no
change."""


def read_object(store: LogStore, path: str) -> bytes | None:
    """Return the content of an object; None if it does not exist."""
    with contextlib.suppress(FileNotFoundError):
        return store.read(path)
    return None


def read_record(store: LogStore, kind: type[R], path: str) -> R | None:
    """Decode a record; None if the object does not exist.

    :raises CorruptLog: the object is not a record of this kind.
    """
    data = read_object(store, path)
    return None if data is None else kind.from_json(data, f"{store.url}/{path}")


def create_object(store: LogStore, path: str, data: bytes) -> bool:
    """Create an object durably. Return False, and change nothing, if the name is taken."""
    try:
        store.create(path, data)
    except FileExistsError:
        return False
    return True


def newest(store: LogStore) -> State | None:
    """Read the newest state; None if no run has opened the log yet.

    :raises CorruptLog: the newest state cannot be read, or the log has manifests and no state.
    """
    while True:
        numbers = _numbers(store)
        if not numbers:
            if not store.list(paths.MANIFEST.folder):
                return None
            if not _numbers(store):  # otherwise the first run has just created the log
                raise _lost(store)
            continue
        state = read_record(store, State, paths.STATE.path(numbers[-1]))
        if state is not None:
            return state
        # Other processes made 100 changes since the listing, so the state was deleted.


def existing(store: LogStore) -> State:
    """Read the newest state of a log that must have a state.

    :raises CorruptLog: the newest state cannot be read, or the log has none.
    """
    state = newest(store)
    if state is None:
        raise _lost(store)
    return state


def newest_number(store: LogStore) -> int:
    """Return the number of the newest state; 0 for none."""
    return max(_numbers(store), default=0)


def advance(store: LogStore, state: State | None, new: State) -> bool:
    """Create the state `new` after `state`. Return False if the log has changed since `state` was read.

    After a lost answer the object is read. A state names its process and the time, so this process has
    created an object with equal bytes. After the create, `state` is read again and must be unchanged, since a
    number may be used a second time after 100 changes.

    :param state: None for the first state of a log.
    """
    path, data = paths.STATE.path(new.number), new.to_json()
    try:
        created = create_object(store, path, data)
    except OSError:
        present = read_object(store, path)
        if present is None:
            raise
        created = False
    if not created and read_object(store, path) != data:
        return False
    if state is not None and read_record(store, State, paths.STATE.path(state.number)) != state:
        # `state` is gone, or a process that stalled for 100 changes created its number again.
        store.delete([path])
        return False
    if new.number % _DELETED_AT_A_TIME == 0:
        last = new.number - KEPT
        first = max(0, last - 2 * _DELETED_AT_A_TIME)
        try:
            store.delete(paths.STATE.path(number) for number in range(first, last))
        except OSError as error:
            logger.info("old states of the log stay for now: %r", error)
    return True


def update(store: LogStore, change: Change, known: State | None = None) -> State:
    """Apply a change to the newest state, and again after each lost race. Return the resulting state.

    :param known: a state that was read a moment ago. The change is first tried from this state.
    :raises CorruptLog: the log has no state.
    :raises WalSinkError: the transition refuses.
    """
    state = known or existing(store)
    while True:
        new = change(state)
        if new is None or advance(store, state, new):
            return new or state
        state = existing(store)


def _numbers(store: LogStore) -> list[int]:
    numbers = (paths.STATE.parse(path) for path in store.list(paths.STATE.folder))
    return sorted(number for number in numbers if number is not None)


def _lost(store: LogStore) -> CorruptLog:
    return CorruptLog(
        f"{store.url}/{paths.STATE.folder} is empty, so the log has lost its state.",
        f"Restore {store.url} from a copy: the folder as a whole, with a checkpoint that was copied at the"
        " same time. Without a copy, start the query with a new checkpoint.",
    )


UNFINISHED_S = 6 * 3600.0
"""Age in seconds at which an unfinished file is deleted. A task writes a segment in less time, so the writer
of an older file was killed."""


def garbage(store: LogStore, state: State) -> list[str]:
    """Return the paths of manifests and segments that are garbage. This costs two listings."""
    names = [
        *((path, paths.MANIFEST.parse(path)) for path in store.list(paths.MANIFEST.folder)),
        *((path, paths.SEGMENT.parse(path)) for path in store.list(paths.SEGMENT.folder)),
    ]
    return [path for path, name in names if name and is_garbage(state, name.epoch, name.run_id)]


def delete_garbage(store: LogStore, state: State) -> int:
    """Delete the manifests and segments that are garbage (rule `trim`); return their number.

    The state already records that they may be deleted, so a process that pauses here does no harm. A crash
    leaves the rest to the next call. Refused rows, plans, and the files of given-up epochs stay.
    """
    objects = garbage(store, state)
    if objects:
        store.delete(objects)
    return len(objects)


def delete_unfinished(store: LogStore) -> int:
    """Delete files that killed writers left unfinished; return their number."""
    return store.sweep_unfinished(UNFINISHED_S)
