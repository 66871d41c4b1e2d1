"""Objects in the memory of this process, for tests."""

import builtins
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from threading import Lock
from typing import BinaryIO

from state_backends.base import (
    StateBackend,
    check_data,
    check_path,
    check_prefix,
    existing_object,
    missing_object,
)

_objects: dict[str, bytes] = {}
_lock = Lock()


class MemoryBackend(StateBackend):
    """Objects that all instances of the same name in this process share, until the process ends.

    Names can be nested: the store `a` has the objects of the store `a/b` below `b/`.

    The class does not use fsspec's memory file system, which checks for existence before it creates.
    """

    process_local = True

    def __init__(self, name: str) -> None:
        self._name = check_path(name)
        self.url = f"memory://{name}"

    def __reduce__(self) -> tuple[type["MemoryBackend"], tuple[str]]:
        return type(self), (self._name,)

    def create(self, path: str, data: bytes) -> None:
        """See `StateBackend.create`."""
        key, content = self._key(path), bytes(check_data(path, data))
        with _lock:
            if key in _objects:
                raise existing_object(path)
            _objects[key] = content

    def replace(self, path: str, data: bytes) -> None:
        """See `StateBackend.replace`."""
        key, content = self._key(path), bytes(check_data(path, data))
        with _lock:
            _objects[key] = content

    def read(self, path: str) -> bytes:
        """See `StateBackend.read`."""
        key = self._key(path)
        with _lock:
            if key not in _objects:
                raise missing_object(path)
            return _objects[key]

    def size(self, path: str) -> int:
        """See `StateBackend.size`."""
        return len(self.read(path))

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `StateBackend.open_output`."""
        check_path(path)
        output = _Output()
        yield output
        self.create(path, output.getvalue())

    def open_input(self, path: str) -> BinaryIO:
        """See `StateBackend.open_input`. A deleted object stays readable while it is open."""
        return BytesIO(self.read(path))

    def list(self, prefix: str = "") -> builtins.list[str]:
        """See `StateBackend.list`."""
        folder = check_prefix(prefix)
        start = f"{self._name}/"
        below = f"{start}{folder}/" if folder else start
        with _lock:
            return sorted(key.removeprefix(start) for key in _objects if key.startswith(below))

    def delete(self, paths: Iterable[str]) -> None:
        """See `StateBackend.delete`."""
        keys = [self._key(path) for path in paths]
        with _lock:
            for key in keys:
                _objects.pop(key, None)

    def _key(self, path: str) -> str:
        return f"{self._name}/{check_path(path)}"


class _Output(BytesIO):
    def close(self) -> None:
        """Do nothing, since a writer may close the file before `open_output` reads the content."""
