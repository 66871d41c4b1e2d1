"""The interface of a store of the write-ahead log, its error, and the checks of paths and contents."""

import builtins
import contextlib
import errno
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import BinaryIO
from uuid import uuid4


def check_path(path: str) -> str:
    """Return `path` unchanged.

    A path is relative, its parts are separated by one `/`, and no part starts with a dot. The last rule
    excludes `.` and `..`, and reserves hidden names for the unfinished files of stores.

    :raises ValueError: if `path` is not such a path.
    """
    if not path:
        raise ValueError("a path must not be empty")
    if "\0" in path or "\\" in path:
        raise ValueError(f"path {path!r} contains a NUL or a backslash")
    for part in path.split("/"):
        if not part:
            raise ValueError(f"path {path!r} is absolute, ends in '/' or has an empty part")
        if part.startswith("."):
            raise ValueError(f"path {path!r} has a part that starts with a dot")
    return path


def is_path(path: str) -> bool:
    """Return True if `path` may name an object."""
    try:
        check_path(path)
    except ValueError:
        return False
    return True


def check_prefix(prefix: str) -> str:
    """Return the folder `prefix` without its closing `/`; "" is the whole store.

    :raises ValueError: if `prefix` is neither "" nor a path.
    """
    return check_path(prefix.removesuffix("/")) if prefix else ""


def check_data(path: str, data: bytes) -> bytes:
    """Return `data` unchanged.

    :raises ValueError: if `data` is empty.
    """
    if not data:
        raise empty_object(path)
    return data


def empty_object(path: str) -> ValueError:
    """Return the error for an empty object.

    No object may be empty, since s3fs creates an empty object over an existing one, and a crash may leave an
    empty file.
    """
    return ValueError(f"object {path!r} would be empty; an object has at least one byte")


def missing_object(path: str) -> FileNotFoundError:
    """Return the error for an object that does not exist."""
    return FileNotFoundError(errno.ENOENT, "there is no such object", path)


def existing_object(path: str) -> FileExistsError:
    """Return the error for a create of an object that exists."""
    return FileExistsError(errno.EEXIST, "the object exists already", path)


class StateBackendError(OSError):
    """The store cannot give its guarantees, or cannot be opened.

    The message says what to change, such as the mount, the URL, or an option. A retry without a change does
    not help. The error has no `errno`.
    """


_CHUNK = 1 << 20


class StateBackend(ABC):
    """A store of objects. An object has a path and bytes.

    Every store gives three guarantees:

    1. **Atomic visibility.** To every process that opens the URL, an object is visible whole or not at all.
    2. **Mutual exclusion.** If several creators create one path, exactly one succeeds. Every other
       creator gets `FileExistsError`.
    3. **Durable and listed.** An object is acknowledged when `create` returns, or when the block of
       `open_output` is left. From then on the object survives a crash of process and machine, and `list`
       returns the object until it is deleted. An acknowledged deletion survives a crash, too.

    `replace` gives only the first guarantee: a crash may restore the old content, and a concurrent `list` may
    miss the object. So use `replace` only for content that may be lost.

    A path is relative and `/`-separated. No part of a path is empty or starts with a dot, and a path has no
    backslash and no NUL. Every method raises `ValueError` for another path, before any I/O. A path names an
    object or a folder, never both. No object is empty.

    After an `OSError` that a method does not name, the outcome is unknown. A creator then has to read the
    object and compare the content.

    Threads may share an instance. An instance pickles, also to other hosts, and equals each instance of its
    class with the same URL. The constructor does no I/O.
    """

    url: str
    """The absolute URL: `open_backend(url)` opens the same objects."""

    process_local: bool
    """True if other processes do not see the objects. A Spark query cannot have its log in such a store."""

    billed: bool = False
    """True if each read is a request over a network; a caller should then poll less often."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Create an object.

        :raises FileExistsError: if `path` exists.
        :raises ValueError: if `data` is empty.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Create an object, or replace it whole; the last writer wins. A crash may undo the call.

        :raises ValueError: if `data` is empty.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content of an object.

        :raises FileNotFoundError: if there is no such object.
        """

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size of an object in bytes.

        :raises FileNotFoundError: if there is no such object.
        """

    @abstractmethod
    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a context manager with a binary file, to write a new object.

        The end of the block creates the object, as `create` does. An exception in the block creates nothing.

        :raises FileExistsError: at the end of the block, if `path` exists.
        :raises ValueError: at the end of the block, if the file is empty.
        """

    @abstractmethod
    def open_input(self, path: str) -> BinaryIO:
        """Open an object as a seekable binary file, which the caller closes.

        If the object is deleted meanwhile, some stores raise `FileNotFoundError` at the next read.

        :raises FileNotFoundError: if there is no such object.
        """

    def copy(self, path: str, to: str) -> None:
        """Create the object `to` with the content of the object `path`.

        :raises FileNotFoundError: if `path` does not exist.
        :raises FileExistsError: if `to` exists.
        """
        with contextlib.closing(self.open_input(path)) as source, self.open_output(to) as output:
            shutil.copyfileobj(source, output, _CHUNK)

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """Return the sorted paths of all objects below the folder `prefix`, at any depth.

        `manifests/` and `manifests` are the same folder; "" is the whole store. A missing folder gives an
        empty list. A folder that cannot be read raises an error, since an incomplete list would look like
        missing objects. Unfinished objects are not listed.
        """

    def folders(self, prefix: str = "") -> builtins.list[str]:
        """Return the sorted names of the folders directly in the folder `prefix`; some may be empty.

        This method lists all objects below the folder; some stores override the method with a faster one.
        """
        depth = len(check_prefix(prefix).split("/")) if prefix else 0
        parts = (path.split("/") for path in self.list(prefix))
        return sorted({names[depth] for names in parts if len(names) > depth + 1})

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the size in bytes of each object that `list` returns, by path.

        An object that is deleted meanwhile may be missing.
        """
        objects = {}
        for path in self.list(prefix):
            with contextlib.suppress(FileNotFoundError):
                objects[path] = self.size(path)
        return objects

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Missing objects are ignored, so a delete can be repeated.

        All paths are checked before the first object is deleted. After an error some objects remain.
        """

    def sweep_unfinished(self, min_age_s: float) -> int:  # noqa: ARG002 - LocalBackend overrides it
        """Delete unfinished objects of killed writers, and empty folders; return the number of objects.

        A store that deletes unfinished objects by itself returns 0. If a live writer's object is deleted, the
        writer fails when it finishes.

        :param min_age_s: only objects that were not written to for that many seconds. The clocks of this
            machine and of the store may differ, so choose hours.
        """
        return 0

    def probe(self) -> None:
        """Check by objects below `probe/` that the store keeps its guarantees of create, list and delete.

        The check finds a store without an atomic create. The contract suite
        `tests/state_backends/contract.py` also finds a store that loses races.

        :raises StateBackendError: if the store does not keep a guarantee, or cannot be used.
        """
        path = f"probe/{uuid4().hex}"
        try:
            self._try_promises(path)
        except StateBackendError:
            raise
        except OSError as error:
            raise StateBackendError(
                f"{self.url} cannot be used: probing it failed with {error!r}. Check that this user may"
                " create, read, list and delete there (in a folder also link and sync), or choose another URL"
            ) from error

    def _try_promises(self, path: str) -> None:
        try:
            self.create(path, b"first")
            try:
                self.create(path, b"second")
            except FileExistsError:
                pass
            else:
                raise self._broken("it accepted a second create of one path")
            if self.read(path) != b"first":
                raise self._broken("a refused create changed the object")
            if path not in self.list("probe/"):
                raise self._broken("it does not list an object that it has acknowledged")
        finally:
            self.delete([path])
        if path in self.list("probe/"):
            raise self._broken("it lists an object that was deleted")

    def _broken(self, fault: str) -> StateBackendError:
        return StateBackendError(
            f"{self.url} cannot hold a write-ahead log: {fault}. Choose a store with atomic create"
        )

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.url == getattr(other, "url", None)

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class StorageOptions(dict[str, object]):
    """Keyword arguments of an fsspec file system; `repr` shows only their names."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        super().__init__(values or {})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self)})"
