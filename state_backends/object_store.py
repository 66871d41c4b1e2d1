"""Objects below a prefix of a bucket, over an fsspec file system: the base class of S3, GCS and Azure."""

import builtins
import contextlib
import errno
import importlib.util
import io
import json
import os
import posixpath
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, BinaryIO, ClassVar, TypeVar, cast
from uuid import uuid4

import fsspec
import tenacity
from fsspec.spec import AbstractFileSystem

from state_backends.base import (
    StateBackend,
    StateBackendError,
    StorageOptions,
    check_data,
    check_path,
    check_prefix,
    empty_object,
    existing_object,
    is_path,
    missing_object,
)

PART = 8 << 20
"""The size of a part in bytes. Stores accept 10,000 parts, so an object has at most 80 GiB."""


class Upload(io.RawIOBase):
    """The file of `open_output`.

    The first `PART` bytes stay in memory. If there are no more bytes, one request creates the object.
    Otherwise the bytes are sent in parts, and the object becomes visible when `file.commit` completes the
    upload. An upload needs the memory of two parts.

    :param begin: opens a file for an upload in parts.
    :param sending: a context manager that translates the errors of requests.
    """

    def __init__(
        self, begin: Callable[[], Any], sending: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._begin = begin
        self._sending = sending
        self._broken = False
        self.head = bytearray()
        """All bytes, until an upload in parts begins."""
        self.file: Any = None
        """The file of the upload in parts; None if there is none."""

    @property
    def is_in_parts(self) -> bool:
        """Return True if there are too many bytes for one request."""
        return self.file is not None or self._broken

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write all of `data`."""
        with memoryview(data) as view:
            size = view.nbytes
            if self.file is None and len(self.head) + size <= PART:
                self.head += view
                return size
            # If a request below fails, a part is missing.
            was_broken, self._broken = self._broken, True
            with self._sending():
                if self.file is None:
                    self.file = self._begin()
                    self.file.write(bytes(self.head))
                    self.head.clear()
                self.file.write(bytes(view))
            self._broken = was_broken
        return size

    def send_rest(self) -> None:
        """Send the last part; the upload is then ready for `file.commit`.

        :raises OSError: if a write failed and the writer ignored the error, since the object would lack a
            part.
        """
        if self._broken:
            raise OSError(
                "a part of the object could not be sent, and its writer ignored the error"
            )
        with self._sending():
            self.file.close()

    def discard(self) -> None:
        """Abort an upload in parts, if the store answers."""
        if self.file is not None:
            self.file.closed = True  # else the garbage collector would send the last part
            # The store deletes the parts later if this request fails.
            with contextlib.suppress(Exception):
                self.file.discard()


class Download(io.RawIOBase):
    """The file that `open_input` returns. Reads a file of fsspec, and raises the errors of state backends.

    :param explained: returns a context manager that converts the errors of requests.
    """

    def __init__(self, file: Any, explained: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._explained = explained

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into `buffer`; return the number of bytes, 0 at the end of the object."""
        with self._explained():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position and return it."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close this file and the file of fsspec."""
        if not self.closed:
            self._file.close()
        super().close()


_opened: dict[tuple[int, str, str], AbstractFileSystem] = {}


def need(package: str, extra: str, store: str) -> None:
    """Check that the client of a store is installed.

    :param package: the name of the client's package.
    :param extra: the extra of wal_sink that installs it.
    :param store: the name of the store in the error.
    :raises StateBackendError: if the package is missing.
    """
    if importlib.util.find_spec(package) is None:
        raise StateBackendError(
            f"the package {package} for {store} is not installed here: "
            f"pip install 'wal_sink[{extra}]', on the executors as well"
        )


def client_of(
    protocol: str, options: StorageOptions, make: Callable[..., AbstractFileSystem]
) -> AbstractFileSystem:
    """Return a file system, without I/O.

    All backends with equal options share one file system, since making a file system takes some 0.1 seconds.
    fsspec's own cache is not used, because its instances keep listings, which do not expire. A forked process
    gets a new file system, because a client does not survive a fork.

    :param make: the constructor, which is called with keyword arguments.
    """
    arguments = {**options, "skip_instance_cache": True, "use_listings_cache": False}
    try:
        key = (os.getpid(), protocol, json.dumps(dict(options), sort_keys=True))
    except TypeError:  # an option cannot be JSON, such as a session
        return make(**arguments)
    client = _opened.get(key)
    # If two threads make a file system at the same time, both use the first.
    return client if client is not None else _opened.setdefault(key, make(**arguments))


T = TypeVar("T")

_TRANSIENT = (ConnectionError, TimeoutError)


class ObjectStoreBackend(StateBackend):
    """Objects of a store with conditional writes, over its fsspec file system.

    The store gives guarantee (1), since one request creates an object, and guarantee (3), since its listings
    are consistent. Guarantee (2) comes from a conditional write. Some stores ignore the condition; `probe`
    finds such a store.

    If the answer to a conditional write is lost, and this class or a client library repeats the request, the
    store refuses the repetition because of the object of the first request. So each call writes a nonce into
    the metadata of its object. After a refusal, `_is_ours` compares the nonce.

    :param url: `<scheme>://<bucket>/<prefix>`.
    :param storage_options: options of the file system, which are pickled with the backend but never printed.
    """

    process_local = False
    billed = True
    _protocol: ClassVar[str]
    """The name of the file system in fsspec."""
    _nonce: ClassVar[str]
    """The name of the metadata with the nonce."""

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.partition("/")
        if not scheme or not bucket or {"@", ":", "\\", "\0"}.intersection(bucket):
            # The message does not contain the URL, which may contain a secret.
            raise StateBackendError(
                "the URL of an object store is <scheme>://<bucket>/<prefix>, and a bucket has no '@' "
                "and no ':': give keys as storage options or in the environment"
            )
        # Hadoop normalizes the path in the same way, so Spark and this class use the same URL.
        self._prefix = posixpath.normpath(f"/{prefix.lstrip('/')}").strip("/")
        self._bucket = bucket
        self._root = f"{bucket}/{self._prefix}".rstrip("/")
        self.url = f"{self._protocol}://{self._root}"
        self._options = StorageOptions(storage_options)

    def create(self, path: str, data: bytes) -> None:
        """See `StateBackend.create`."""
        check_data(path, data)
        if len(data) > PART:
            with self.open_output(path) as output:
                output.write(data)
            return
        key, nonce = self._key(path), uuid4().hex
        self._conditionally(
            path,
            lambda: self._put_new(key, bytes(data), nonce),
            lambda: self._is_ours(key, nonce),
        )

    def replace(self, path: str, data: bytes) -> None:
        """See `StateBackend.replace`."""
        key = self._key(path)
        check_data(path, data)
        self._repeated(lambda: self._fs.pipe_file(key, bytes(data)))

    def read(self, path: str) -> bytes:
        """See `StateBackend.read`."""
        key = self._key(path)
        return bytes(self._repeated(lambda: self._fs.cat_file(key)))

    def size(self, path: str) -> int:
        """See `StateBackend.size`."""
        key = self._key(path)
        info = self._repeated(lambda: self._fs.info(key))
        if info["type"] != "file":
            raise missing_object(path)
        return int(info["size"])

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `StateBackend.open_output`. More than `PART` bytes are sent while they are written."""
        key, nonce = self._key(path), uuid4().hex
        upload = Upload(lambda: self._begin(key, nonce), lambda: self._sending(path))
        try:
            yield cast("BinaryIO", upload)
            if upload.is_in_parts:
                upload.send_rest()
                self._conditionally(path, upload.file.commit, lambda: self._is_ours(key, nonce))
        except BaseException:
            upload.discard()
            raise
        if not upload.is_in_parts:
            if not upload.head:
                raise empty_object(path)
            self.create(path, bytes(upload.head))

    def open_input(self, path: str) -> BinaryIO:
        """See `StateBackend.open_input`. A read raises `FileNotFoundError` if the object was deleted."""
        key = self._key(path)
        file = self._repeated(lambda: self._fs.open(key, "rb", block_size=PART))
        if file.details["type"] != "file":
            raise missing_object(path)
        return cast("BinaryIO", Download(file, self._explained))

    def list(self, prefix: str = "") -> builtins.list[str]:
        """See `StateBackend.list`. Objects whose names are not paths are ignored, such as hidden objects."""
        return builtins.list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See `StateBackend.sizes`. One listing returns paths and sizes."""
        below = self._folder(prefix)
        objects = self._repeated(lambda: self._find(below))
        sizes = {
            name.removeprefix(f"{self._root}/"): size
            for name, size in objects.items()
            if name.startswith(below)
        }
        return {path: size for path, size in sorted(sizes.items()) if is_path(path)}

    def delete(self, paths: Iterable[str]) -> None:
        """See `StateBackend.delete`."""
        keys = [self._key(path) for path in paths]
        if keys:
            self._repeated(lambda: self._remove(keys))

    # --- subclasses override these -----------------------------------------------------------------

    @abstractmethod
    def _find(self, below: str) -> dict[str, int]:
        """Return the size of each object whose key begins with `below`, by key. More keys may be returned."""

    def _remove(self, keys: builtins.list[str]) -> None:
        """Delete objects; ignore missing objects."""
        for key in keys:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(key)  # rm() would take `*` in a key for a pattern

    def _put_new(self, key: str, data: bytes, nonce: str) -> None:
        """Create an object by one request, unless it exists."""
        self._fs.pipe_file(key, data, mode="create", **self._marked(nonce))

    @abstractmethod
    def _marked(self, nonce: str) -> dict[str, Any]:
        """Return the arguments of a write that add `nonce` to the object's metadata."""

    def _metadata(self, key: str) -> Mapping[str, str]:
        """Return the metadata of an object.

        :raises FileNotFoundError: if there is no such object.
        """
        return self._fs.info(key).get("metadata") or {}

    @abstractmethod
    def _explain(self, error: Exception) -> Exception | None:
        """Translate an error of the file system; return None if it is not from the store or its client.

        The caller retries after a `ConnectionError` or `TimeoutError`, and not after a `StateBackendError`.
        """

    # --- common to all stores ------------------------------------------------------------------------

    @property
    def _fs(self) -> AbstractFileSystem:
        return client_of(self._protocol, self._options, partial(fsspec.filesystem, self._protocol))

    def _is_ours(self, key: str, nonce: str) -> bool:
        """Return True if the object has this nonce."""
        return self._metadata(key).get(self._nonce) == nonce

    def _key(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _folder(self, prefix: str) -> str:
        """Return the beginning of the keys of all objects in the folder `prefix`."""
        folder = check_prefix(prefix)
        return f"{self._root}/{folder}/" if folder else f"{self._root}/"

    def _try_parts(self) -> None:
        """Check that the store refuses to complete an upload in parts over an existing object.

        :raises StateBackendError: if the store completes the upload. Some stores ignore the condition in this
            request.
        """
        path = f"probe/{uuid4().hex}"
        self.create(path, b"first")
        try:
            file = self._repeated(lambda: self._begin(self._key(path), uuid4().hex))
            file.write(b"second")
            self._repeated(file.close)
            try:
                self._repeated(file.commit)
            except FileExistsError:
                self._repeated(file.discard)
            else:
                raise self._broken("it completed a second upload of one path")
        finally:
            self.delete([path])

    def _begin(self, key: str, nonce: str) -> Any:
        return self._fs.open(key, "xb", block_size=PART, autocommit=False, **self._marked(nonce))

    def _conditionally(
        self, path: str, write: Callable[[], object], is_ours: Callable[[], bool]
    ) -> None:
        """Run a conditional write with retries; after an error, check whether the object is ours.

        :raises FileExistsError: if the path has the object of another creator.
        """
        try:
            self._repeated(write)
        except (FileExistsError, FileNotFoundError, *_TRANSIENT) as error:
            # FileNotFoundError: the upload in parts is already completed, or it was aborted.
            try:
                ours = self._repeated(is_ours)
            except FileNotFoundError:
                if isinstance(error, FileNotFoundError):
                    raise _aborted(path) from error
                raise error from None
            if not ours:
                raise existing_object(path) from error

    def _repeated(self, act: Callable[[], T]) -> T:
        """Call `act`, up to three times if the store does not answer."""
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(_TRANSIENT),
            wait=tenacity.wait_random_exponential(multiplier=0.2, max=3),
            stop=tenacity.stop_after_attempt(3),
            reraise=True,
        )

        def once() -> T:
            with self._explained():
                return act()

        return tries(once)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            explained = self._explain(error)
            if explained is error or (explained is None and isinstance(error, OSError)):
                raise
            raise (explained or self._unexplained(error)) from error

    def _unexplained(self, error: Exception) -> OSError:
        if isinstance(error, (TypeError, ValueError, KeyError)):
            return StateBackendError(
                f"{self.url} cannot be opened with the storage options {sorted(self._options)}: "
                f"{type(error).__name__}. Correct them as the documentation of the file system says"
            )
        return OSError(errno.EIO, f"{self.url}: {type(error).__name__}: {error}")

    @contextmanager
    def _sending(self, path: str) -> Iterator[None]:
        try:
            with self._explained():
                yield
        except FileNotFoundError as error:
            raise _aborted(path) from error

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.url, dict(self._options))


def _aborted(path: str) -> StateBackendError:
    return StateBackendError(
        f"the unfinished upload of {path} is gone: a lifecycle rule of the bucket aborted it. Let the rule"
        " AbortIncompleteMultipartUpload wait a day or longer, and write the object again"
    )
