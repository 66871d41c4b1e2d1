"""Reads and changes the state of a log: `state/<n>.json`, where number n + 1 is created once, from number n.

Creating an object fails if its name is taken: so all changes of a log have one order, whoever makes
them (rule `state`). The newest 100 states stay. A process that has read a state which is gone since
is at least 100 changes late: what it creates then is void, and it deletes that again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.state import State
from wal_sink.wal.store import LogStore

logger = logging.getLogger(__name__)

KEPT = 100
"""How many states stay."""

_DELETED_AT_A_TIME = 20
"""How many states are deleted at a time: one request instead of twenty."""

Change = Callable[[State], State | None]
"""A transition of `protocol.state` with its arguments: returns the next state, or None for no change."""


def newest(store: LogStore) -> State | None:
    """Read the newest state; None before the first run has opened the log.

    :raises CorruptLog: the newest state cannot be read, or all states are gone and manifests are there.
    """
    while True:
        numbers = _numbers(store)
        if not numbers:
            if not store.list(paths.MANIFEST.folder):
                return None
            if not _numbers(store):  # else the first run has made the log since the first listing
                raise _lost(store)
            continue
        state = store.read_record(State, paths.STATE.path(numbers[-1]))
        if state is not None:
            return state
        # 100 changes since the listing have deleted it.


def existing(store: LogStore) -> State:
    """Read the newest state of a log that has had one.

    :raises CorruptLog: it cannot be read, or is gone.
    """
    state = newest(store)
    if state is None:
        raise _lost(store)
    return state


def newest_number(store: LogStore) -> int:
    """Return the number of the newest state; 0 if there is none."""
    return max(_numbers(store), default=0)


def advance(store: LogStore, state: State | None, new: State) -> bool:
    """Create `new` from `state`. Return False if another process has changed the log since `state` was read.

    After a lost answer the object is read back: `new` names who made it and when, so equal bytes
    are ours. The state before is read again, and has to be the same one: numbers come again after
    100 changes.
    """
    path, data = paths.STATE.path(new.number), new.to_json()
    try:
        created = store.create(path, data)
    except OSError:
        present = store.read(path)
        if present is None:
            raise
        created = False
    if not created and store.read(path) != data:
        return False
    if state is not None and store.read_record(State, paths.STATE.path(state.number)) != state:
        # It is gone, or a process that stalled as long created its number again: `new` is void.
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
    """Change the log, however often another process is quicker; return the state that holds now.

    :param known: a state that was read a moment ago, from which the change is tried first.
    :raises CorruptLog: the log has no state.
    :raises WalSinkError: `change` refuses.
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
        f"{store.url}/{paths.STATE.folder} is empty: the log has lost its state.",
        f"Restore {store.url} from a copy: the folder as a whole, with the checkpoint of the same moment."
        " If there is no copy, start the query with a new checkpoint.",
    )
