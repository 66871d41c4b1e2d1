"""Objects in the memory of this process, for tests."""

import builtins
import errno
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from threading import Lock
from typing import BinaryIO

from state_backends.base import StateBackend, check_data, check_path, check_prefix

# Not fsspec's memory filesystem: its create is exists-then-write, and it writes in place.
_objects: dict[str, bytes] = {}
_lock = Lock()


class MemoryBackend(StateBackend):
    """Objects of this process, the same for every instance with one name, unpickled ones too.

    They are gone with the process, so guarantee 3 holds as long as the process runs. Names can be nested:
    `a` contains the objects of `a/b` under `b/`, as folders do.
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
                raise FileExistsError(errno.EEXIST, "the object exists already", path)
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
                raise FileNotFoundError(errno.ENOENT, "there is no such object", path)
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
        """Keep the content: a writer that closes its file does no harm."""
