"""A folder in memory, and a process's way to it: every call of a `Mount` is an I/O call of its process."""

from __future__ import annotations

import builtins
import errno
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from typing import BinaryIO, NoReturn

from state_backends import StateBackend
from tests.simulator.machine import MACHINE
from tests.simulator.process import Process

Files = dict[str, bytes]

_NEEDS_ROOM = ("create", "replace", "output")


class Volume:
    """Objects by path. Copied by `snapshot`.

    :param created: told of every object that was created or replaced.
    :param deleted: told of every object that was deleted, before it is.
    """

    def __init__(
        self,
        url: str,
        created: Callable[[str, bytes], None],
        deleted: Callable[[str], None],
    ) -> None:
        self.url = url
        self.full = False
        self.away = False
        self._created = created
        self._deleted = deleted
        self._folders: dict[str, Files] = {}

    def snapshot(self) -> dict[str, Files]:
        """Return a copy of everything."""
        return {folder: dict(files) for folder, files in self._folders.items()}

    def restore(self, snapshot: dict[str, Files]) -> None:
        """Put a copy in the place of everything."""
        self._folders = {folder: dict(files) for folder, files in snapshot.items()}

    def put(self, path: str, data: bytes, *, exclusive: bool = True) -> None:
        """Create an object; replace it, if that is not exclusive."""
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        folder = self._folders.setdefault(path.partition("/")[0], {})
        if exclusive and path in folder:
            raise FileExistsError(errno.EEXIST, "the object exists already", path)
        folder[path] = data
        self._created(path, data)

    def get(self, path: str) -> bytes:
        """Read an object."""
        found = self._folders.get(path.partition("/")[0], {}).get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", path)
        return found

    def has(self, path: str) -> bool:
        """Whether there is an object."""
        return path in self._folders.get(path.partition("/")[0], ())

    def remove(self, path: str) -> None:
        """Delete an object, if it is there."""
        folder = self._folders.get(path.partition("/")[0], {})
        if path in folder:
            self._deleted(path)
            del folder[path]

    def paths(self, prefix: str = "") -> list[str]:
        """List the objects of a folder."""
        if not prefix:
            return sorted(path for files in self._folders.values() for path in files)
        top, _, rest = prefix.partition("/")
        files = self._folders.get(top)
        if not files:
            return []
        if not rest:
            return sorted(files)
        below = prefix if prefix.endswith("/") else f"{prefix}/"
        return sorted(path for path in files if path.startswith(below))

    def numbers(self, folder: str) -> list[int]:
        """List the objects of a folder of Spark's, which have numbers for names."""
        return sorted(int(path.rpartition("/")[2]) for path in self.paths(folder))


class Mount(StateBackend):
    """A volume, as a process sees it."""

    process_local = False

    def __init__(self, volume: Volume, process: Process) -> None:
        self.url = volume.url
        self._volume = volume
        self._process = process

    def __reduce__(self) -> NoReturn:
        raise TypeError("a simulated mount stays in its process")

    def _io(self, verb: str, path: str, effect: Callable[[], object]) -> object:
        self._note_disturbance(verb)
        if self._volume.away:
            raise OSError(errno.EIO, "the store is away", path)
        try:
            return self._process.io(verb, path, effect)
        finally:
            self._note_disturbance(verb)  # the process may have stood still before the call

    def _note_disturbance(self, verb: str) -> None:
        if self._volume.away or (self._volume.full and verb in _NEEDS_ROOM):
            self._process.disturbed_us = MACHINE.true_us

    def create(self, path: str, data: bytes) -> None:
        """See `StateBackend.create`."""
        self._io("create", path, lambda: self._volume.put(path, data))

    def replace(self, path: str, data: bytes) -> None:
        """See `StateBackend.replace`."""
        self._io("replace", path, lambda: self._volume.put(path, data, exclusive=False))

    def read(self, path: str) -> bytes:
        """See `StateBackend.read`."""
        found = self._io("read", path, lambda: self._volume.get(path))
        assert isinstance(found, bytes)
        return found

    def size(self, path: str) -> int:
        """See `StateBackend.size`."""
        found = self._io("size", path, lambda: len(self._volume.get(path)))
        assert isinstance(found, int)
        return found

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `StateBackend.open_output`."""
        output = BytesIO()
        yield output
        self._io("output", path, lambda: self._volume.put(path, output.getvalue()))

    def open_input(self, path: str) -> BinaryIO:
        """See `StateBackend.open_input`."""
        found = self._io("input", path, lambda: self._volume.get(path))
        assert isinstance(found, bytes)
        return BytesIO(found)

    def list(self, prefix: str = "") -> builtins.list[str]:
        """See `StateBackend.list`."""
        found = self._io("list", prefix, lambda: self._listed(prefix))
        assert isinstance(found, builtins.list)
        return found

    def _listed(self, prefix: str) -> builtins.list[str]:
        if MACHINE.thread is not None and not MACHINE.only_looks:
            for folder in (prefix, prefix.partition("/")[0]):
                MACHINE.thread.listed[folder] = MACHINE.true_us
        return self._volume.paths(prefix)

    def delete(self, paths: Iterable[str]) -> None:
        """See `StateBackend.delete`; each object is a call of its own."""
        for path in builtins.list(paths):
            self._io("delete", path, lambda path=path: self._volume.remove(path))  # type: ignore[misc]
