"""The interface of a store of the write-ahead log, with the three guarantees that every store gives.

Also here: which paths and contents are allowed, checked before any I/O; `StateBackendError`; and the
options that open a store beside its URL (endpoint, region, keys).
"""

import builtins
import contextlib
import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import BinaryIO
from uuid import uuid4


def check_path(path: str) -> str:
    """Return `path` unchanged when it may name an object, else raise ValueError.

    A path is relative, its parts are separated by one `/`, and no part starts with a dot. That
    excludes `.` and `..`, and leaves hidden names to the stores for their unfinished files.
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
    """Return the folder `prefix` without its closing `/` ("" is everything), or raise ValueError."""
    return check_path(prefix.removesuffix("/")) if prefix else ""


def check_data(path: str, data: bytes) -> bytes:
    """Return `data` unchanged when it may be an object's content, else raise ValueError."""
    if not data:
        raise empty_object(path)
    return data


def empty_object(path: str) -> ValueError:
    """Return the error for an empty object.

    There are none anywhere, because s3fs writes an empty object without the condition that makes
    a create exclusive; and because an empty file is what a crash leaves.
    """
    return ValueError(f"object {path!r} would be empty; an object has at least one byte")


class StateBackendError(OSError):
    """The store cannot keep its promises, or cannot be opened.

    Operator action: the message says what to change (another folder or mount, another URL, an
    option to remove). Trying again without a change does not help. It has no `errno`.
    """


_CHUNK = 1 << 20


class StateBackend(ABC):
    """A place for objects: a path and its bytes, nothing more. It knows no epochs.

    The three guarantees that users of a log build on, and that every kind of store gives:

    1. **Atomic visibility.** An object is visible whole or not at all, to every process that
       opened the same URL, from the moment it is created.
    2. **Mutual exclusion.** Of several creators of one path exactly one wins; all others get
       `FileExistsError`, and the content is the winner's.
    3. **Durable and listed.** What has been acknowledged (the call returned, or the `with` block
       was left) survives a crash of the process and of the machine, and every later `list`
       shows it until it is deleted. An acknowledged deletion survives as well.

    `replace` is outside (2), and outside (3) in that a crash may bring back the older content
    and that a `list` at the same moment may miss it: it is for hints.

    Paths are relative and `/`-separated; no part is empty or starts with a dot, and there is no
    backslash and no NUL. Anything else raises `ValueError` before any I/O. A path is an object
    or a folder, never both. No object is empty.

    Errors: an operating system's error other than the ones a method names means that the outcome
    is not known; a caller that was creating reads the path back and compares.

    An instance can be used by several threads, pickles, travels to other hosts, and equals every
    instance of its kind with the same URL. Making one does no I/O.
    """

    url: str
    """Where the objects are, absolute: `open_backend(url)` opens the same objects."""

    process_local: bool
    """True when other processes do not see the objects: no place for the log of a Spark query."""

    billed: bool = False
    """True when every read costs a request over a network: a caller that polls should poll less often."""

    @abstractmethod
    def create(self, path: str, data: bytes) -> None:
        """Create the object, durably, unless `path` exists.

        Raises `FileExistsError` when another creator was first, `ValueError` for empty data.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Create the object or replace it, whole or not at all; the last writer wins.

        For hints only: it need not survive a crash. Raises `ValueError` for empty data.
        """

    @abstractmethod
    def read(self, path: str) -> bytes:
        """Return the content. Raises `FileNotFoundError`."""

    @abstractmethod
    def size(self, path: str) -> int:
        """Return the size in bytes. Raises `FileNotFoundError`."""

    @abstractmethod
    def open_output(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Return a context manager that gives a binary file to write a new object into.

        Leaving it normally creates the object as `create` does; leaving it by an exception
        leaves nothing. Raises when left: `FileExistsError` when `path` exists by then,
        `ValueError` when nothing was written.
        """

    @abstractmethod
    def open_input(self, path: str) -> BinaryIO:
        """Open the object for reading: a seekable binary file, to be closed by the caller.

        It stays readable when the object is deleted meanwhile only where the store allows that.
        Raises `FileNotFoundError`.
        """

    def copy(self, path: str, to: str) -> None:
        """Create the object `to` with the content of the object `path`, as `create` does.

        Raises `FileNotFoundError` when there is no `path`, `FileExistsError` when there is a `to`.
        """
        with contextlib.closing(self.open_input(path)) as source, self.open_output(to) as output:
            shutil.copyfileobj(source, output, _CHUNK)

    @abstractmethod
    def list(self, prefix: str = "") -> list[str]:
        """Return the sorted paths of all objects under the folder `prefix`, at any depth.

        `manifests/` and `manifests` are the same folder; "" is everything. A folder that does not
        exist gives an empty list; one that cannot be read raises, because a listing cut short
        would look like objects that are missing. Unfinished objects are never listed.
        """

    def folders(self, prefix: str = "") -> builtins.list[str]:
        """Return the sorted names of the folders right below the folder `prefix`.

        Each that has an object at any depth; one that is empty may be among them. A kind that can tell
        without listing every object overrides this.
        """
        depth = len(check_prefix(prefix).split("/")) if prefix else 0
        parts = (path.split("/") for path in self.list(prefix))
        return sorted({names[depth] for names in parts if len(names) > depth + 1})

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """Return the sizes in bytes of the objects that `list` returns, by path.

        Those that are deleted meanwhile may be missing.
        """
        objects = {}
        for path in self.list(prefix):
            with contextlib.suppress(FileNotFoundError):
                objects[path] = self.size(path)
        return objects

    @abstractmethod
    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects. Those that do not exist are ignored, so it can be repeated.

        All paths are checked before the first is deleted. An error leaves some undeleted.
        """

    def sweep_unfinished(self, min_age_s: float) -> int:  # noqa: ARG002 - for the kinds that need it
        """Remove what killed writers left unfinished; return how many pieces were removed.

        Folders that are empty go as well.

        Removes only pieces that were not written to for `min_age_s` seconds, by this machine's clock
        against the store's: choose hours. A live writer whose piece was removed fails when it
        finishes; it loses nothing silently. Kinds of store that delete such pieces themselves return 0.
        """
        return 0

    def probe(self) -> None:
        """Test with throw-away objects under `probe/` whether the store keeps its promises.

        This finds a store that lacks atomic create altogether. A store that merely loses races is
        found by the contract suite, `tests/state_backends/contract.py`.

        Raises `StateBackendError`, which says what to do.
        """
        path = f"probe/{uuid4().hex}"
        try:
            self._try_promises(path)
        except StateBackendError:
            raise
        except OSError as error:
            raise StateBackendError(
                f"{self.url} cannot be used: probing it failed with {error!r}. Check that this "
                "user may create, read, list and delete there (in a folder also link and sync), or "
                "choose another place"
            ) from error

    def _try_promises(self, path: str) -> None:
        try:
            self.create(path, b"first")
            try:
                self.create(path, b"second")
            except FileExistsError:
                pass  # as promised: the first creator has won
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

    def _broken(self, what: str) -> StateBackendError:
        return StateBackendError(
            f"{self.url} cannot hold a write-ahead log: {what}. Choose a store with atomic create"
        )

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.url == getattr(other, "url", None)

    def __hash__(self) -> int:
        return hash(self.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"


class StorageOptions(Mapping[str, object]):
    """Keyword arguments for an fsspec file system. Printing them shows their names only."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({sorted(self)})"
