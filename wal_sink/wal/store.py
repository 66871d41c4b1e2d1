"""Reads, changes and deletes the objects of one query's log in its store.

The state of a log is `state/<n>.json`. Number n + 1 is created once, from number n. A create fails if its
name is taken, so all changes of a log have one order (rule `state`). The newest 100 states stay. A process
whose state was deleted meanwhile is at least 100 changes late. The state that it creates is void, and the
process deletes it again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from state_backends import StateBackend
from wal_sink.errors import CorruptLog
from wal_sink.model import paths
from wal_sink.model.codec import Record
from wal_sink.model.state import State
from wal_sink.protocol.state import is_garbage

R = TypeVar("R", bound=Record)


class LogStore:
    """The folder `<wal.location>/<query id>`. Picklable, since tasks receive it.

    :param backend: a state backend whose root is the folder.
    """

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend

    @property
    def url(self) -> str:
        """Return the URL of the folder, for messages."""
        return self.backend.url

    @property
    def billed(self) -> bool:
        """Return True if each request costs money and a round trip over a network."""
        return self.backend.billed

    def url_of(self, path: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{path}"

    def read(self, path: str) -> bytes | None:
        """Return the content of an object; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self.backend.read(path)
        return None

    def read_record(self, kind: type[R], path: str) -> R | None:
        """Decode a record; None if the object does not exist.

        :raises CorruptLog: the object is not a record of this kind.
        """
        data = self.read(path)
        return None if data is None else kind.from_json(data, self.url_of(path))

    def create(self, path: str, data: bytes) -> bool:
        """Create an object durably. Return False, and change nothing, if the name is taken."""
        try:
            self.backend.create(path, data)
        except FileExistsError:
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Create or replace an object. A crash may bring the old content back, so use it for reports only."""
        self.backend.replace(path, data)

    def list(self, folder: str) -> Sequence[str]:
        """Return the paths of the objects in a folder and its subfolders, ascending."""
        return self.backend.list(folder)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Objects that do not exist are ignored."""
        self.backend.delete(paths)


logger = logging.getLogger(__name__)

KEPT = 100
"""How many states stay."""

_DELETED_AT_A_TIME = 20
"""How many states are deleted at a time, by one request."""

_FORMER = "log.json"
"""An object that every log had before a log had a state."""

Change = Callable[[State], State | None]
"""A transition of `protocol.state` with its arguments. It returns the next state, or None if nothing
changes."""


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
                refuse_former(store)
                raise _lost(store)
            continue
        state = store.read_record(State, paths.STATE.path(numbers[-1]))
        if state is not None:
            return state
        # Other processes made 100 changes since the listing, so the state was deleted.


def existing(store: LogStore) -> State:
    """Read the newest state of a log that must have one.

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

    After a lost answer the object is read. A state names its author and the time, so equal bytes are our own.
    After the create, `state` is read again and must be unchanged, since a number may be used a second time
    after 100 changes.

    :param state: None for the first state of a log.
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
        # `state` is gone, or a process that stalled for 100 changes created its number again: `new` is void.
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
    """Apply a change to the newest state, again after each lost race; return the resulting state.

    :param known: a state that was read a moment ago. The change is first tried from it.
    :raises CorruptLog: the log has no state.
    :raises WalSinkError: the transition refuses.
    """
    state = known or existing(store)
    while True:
        new = change(state)
        if new is None or advance(store, state, new):
            return new or state
        state = existing(store)


def refuse_former(store: LogStore) -> None:
    """Refuse a log that has no state because an earlier version of wal_sink wrote it.

    :raises CorruptLog: the log has an object that only this version wrote.
    """
    if store.read(_FORMER) is not None:
        raise CorruptLog(
            f"{store.url_of(_FORMER)} exists, and there is no state: an earlier version of wal_sink wrote the"
            " log.",
            "Flush it with the version that wrote it, then start the query with a new checkpoint.",
        )


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
    """Delete the manifests and segments that are garbage (rule `trim`); return how many.

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
