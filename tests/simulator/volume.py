"""A simulated file system, and its mount in a process, whose calls are I/O calls of the process."""

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


class Volume:
    """A file system.

    :param created: called with each object that is created or replaced.
    :param deleted: called with the path of each object before it is deleted.
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
        self.unsynced: list[str] = []
        """Files that a power loss may delete, the oldest first."""
        self._created = created
        self._deleted = deleted
        self._files: Files = {}
        MACHINE.volumes.append(self)

    @property
    def folder(self) -> str:
        """The path of the file system on every host."""
        return self.url.removeprefix("file://")

    def snapshot(self) -> Files:
        return dict(self._files)

    def restore(self, files: Files) -> None:
        self._files = dict(files)
        self.unsynced = []

    def put(self, path: str, data: bytes, *, exclusive: bool = True) -> None:
        """Create an object; replace it if `exclusive` is False."""
        if self.full:
            raise OSError(errno.ENOSPC, "no space left on device", path)
        if exclusive and path in self._files:
            raise FileExistsError(errno.EEXIST, "the object exists already", path)
        self._files[path] = data
        self._created(path, data)

    def get(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(errno.ENOENT, "there is no such object", path)
        return self._files[path]

    def remove(self, path: str) -> None:
        """Delete an object if it exists."""
        if path in self._files:
            self._deleted(path)
            del self._files[path]

    def paths(self, prefix: str = "") -> list[str]:
        below = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
        return sorted(path for path in self._files if path.startswith(below))

    def epochs(self, folder: str) -> list[int]:
        """Return the numbers in a folder of the checkpoint."""
        return sorted(int(path.rpartition("/")[2]) for path in self.paths(folder))

    def exists(self, name: str) -> bool:
        """Return True if there is a file or folder of this name."""
        return name in self._files or bool(self.paths(name))

    def sync(self, name: str) -> None:
        """Make a file durable; a folder needs no sync here."""
        if name in self.unsynced:
            self.unsynced.remove(name)

    def lose(self, kept: int) -> None:
        """Delete the unsynced files, except the first `kept`."""
        for path in self.unsynced[kept:]:
            self._files.pop(path, None)
        self.unsynced = []


class Mount(StateBackend):
    """A volume in a process.

    :param syncs: True if created objects are durable; Spark does not sync its files.
    """

    process_local = False

    def __init__(self, volume: Volume, process: Process, *, syncs: bool = True) -> None:
        self.url = volume.url
        self._volume = volume
        self._process = process
        self._syncs = syncs

    def __reduce__(self) -> NoReturn:
        raise TypeError("a simulated mount stays in its process")

    def _io(self, verb: str, path: str, effect: Callable[[], object]) -> object:
        if self._volume.away:
            raise OSError(errno.EIO, "the store is away", path)
        return self._process.io(verb, path, effect)

    def create(self, path: str, data: bytes) -> None:
        def put() -> None:
            self._volume.put(path, data)
            if not self._syncs:
                self._volume.unsynced.append(path)

        self._io("create", path, put)

    def replace(self, path: str, data: bytes) -> None:
        self._io("replace", path, lambda: self._volume.put(path, data, exclusive=False))

    def read(self, path: str) -> bytes:
        data = self._io("read", path, lambda: self._volume.get(path))
        assert isinstance(data, bytes)
        return data

    def size(self, path: str) -> int:
        size = self._io("size", path, lambda: len(self._volume.get(path)))
        assert isinstance(size, int)
        return size

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        output = BytesIO()
        yield output
        self._io("output", path, lambda: self._volume.put(path, output.getvalue()))

    def open_input(self, path: str) -> BinaryIO:
        data = self._io("input", path, lambda: self._volume.get(path))
        assert isinstance(data, bytes)
        return BytesIO(data)

    def list(self, prefix: str = "") -> builtins.list[str]:
        listed = self._io("list", prefix, lambda: self._volume.paths(prefix))
        assert isinstance(listed, builtins.list)
        return listed

    def delete(self, paths: Iterable[str]) -> None:
        """See `StateBackend.delete`; each object is deleted by its own call."""
        for path in builtins.list(paths):
            self._io("delete", path, lambda path=path: self._volume.remove(path))  # type: ignore[misc]
