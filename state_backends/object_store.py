"""Objects below a prefix of a bucket, over fsspec: upload in pieces, download, and shared file systems."""

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
    is_path,
)

PART = 8 << 20
"""Bytes of a part. A store takes 10,000 of them, which is 80 GiB for an object."""


class Upload(io.RawIOBase):
    """The file that a writer writes into. Memory: two parts.

    Up to one part stays in memory, and becomes the object by a single request. More is sent as an
    upload in parts, which the store does not show before it is completed.

    :param begin: opens a file for such an upload, which `close` does not complete.
    :param sending: surrounds what may fail.
    """

    def __init__(
        self, begin: Callable[[], Any], sending: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._begin = begin
        self._sending = sending
        self._broken = False
        self.head = bytearray()
        """All bytes, as long as there is no upload in parts."""
        self.file: Any = None
        """The upload in parts."""

    @property
    def is_in_parts(self) -> bool:
        """Return True if what was written was too much for one request."""
        return self.file is not None or self._broken

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Take all of `data`."""
        with memoryview(data) as view:
            size = view.nbytes
            if self.file is None and len(self.head) + size <= PART:
                self.head += view
                return size
            was_broken, self._broken = self._broken, True  # a part may be missing from now on
            with self._sending():
                if self.file is None:
                    self.file = self._begin()
                    self.file.write(bytes(self.head))
                    self.head.clear()
                self.file.write(bytes(view))
            self._broken = was_broken
        return size

    def send_rest(self) -> None:
        """Send what is not yet sent of an upload in parts; only completing it is left.

        Raises `OSError` when the writer went on after a write had failed: the object would have a hole.
        """
        if self._broken:
            raise OSError("a part of the object could not be sent, and its writer went on")
        with self._sending():
            self.file.close()

    def discard(self) -> None:
        """Delete the object, as far as the store answers."""
        if self.file is not None:
            self.file.closed = True  # or being collected as garbage would send the rest
            with contextlib.suppress(
                Exception
            ):  # the store deletes in time what cannot be aborted now
                self.file.discard()


class Download(io.RawIOBase):
    """A seekable file over one of fsspec, which raises the state backend's errors.

    :param file: fsspec's file.
    :param explained: surrounds what may fail.
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
        """Fill `buffer` from the object; return how many bytes that were, 0 at its end."""
        with self._explained():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; return the position."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close fsspec's file as well."""
        if not self.closed:
            self._file.close()
        super().close()


_opened: dict[tuple[int, str, str], AbstractFileSystem] = {}


def need(package: str, extra: str, store: str) -> None:
    """Refuse a store whose client is not installed.

    :param extra: of wal_sink, which brings the package.
    :raises StateBackendError: with the line that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise StateBackendError(
            f"the package {package}, which speaks to {store}, is not installed here: "
            f"pip install 'wal_sink[{extra}]', on the executors as well"
        )


def client_of(
    protocol: str, options: StorageOptions, make: Callable[..., AbstractFileSystem]
) -> AbstractFileSystem:
    """Return the file system of a protocol with these options; no I/O.

    It is shared by the backends with equal options, because a client takes a fraction of a second to
    make. It is not the instance that fsspec caches: all code of the process shares that one, and its
    listing, which does not expire; this one lists again each time. A forked process makes its own,
    because a client does not survive a fork.

    :param make: of arguments by their names.
    """
    arguments = {**options, "skip_instance_cache": True, "use_listings_cache": False}
    try:
        key = (os.getpid(), protocol, json.dumps(dict(options), sort_keys=True))
    except TypeError:  # an option that is not JSON, such as a session, cannot be compared
        return make(**arguments)
    client = _opened.get(key)
    # Two threads may both make one: both use the one that was stored first.
    return client if client is not None else _opened.setdefault(key, make(**arguments))


T = TypeVar("T")

_TRANSIENT = (ConnectionError, TimeoutError)


class ObjectStoreBackend(StateBackend):
    """Objects of a store whose fsspec file system has an atomic exclusive write. S3, GCS and Azure derive it.

    Guarantee (1) is the store's own: one request makes an object whole. (2) is its conditional
    write, which `probe` tests: some stores ignore the condition. (3) needs a store that lists at once what
    it has acknowledged.

    The answer to a conditional write can get lost. A writer that repeats the request, or a library
    below that does, is then refused because of its own object. So a refusal is not an answer yet: an object
    carries the nonce of the call that created it, and `_is_ours` reads that of the object that is there.

    :param url: `<scheme>://<bucket>/<prefix>`.
    :param storage_options: for the file system; never printed, but pickled with the backend.
    """

    process_local = False
    billed = True
    _protocol: ClassVar[str]
    """fsspec's name of the kind."""
    _nonce: ClassVar[str]
    """The metadata of an object that says which call created it."""

    def __init__(self, url: str, storage_options: Mapping[str, object] | None = None) -> None:
        scheme, _, rest = url.partition("://")
        bucket, _, prefix = rest.partition("/")
        if not scheme or not bucket or {"@", ":", "\\", "\0"}.intersection(bucket):
            # The URL is not repeated: people put secrets into it.
            raise StateBackendError(
                "the URL of an object store is <scheme>://<bucket>/<prefix>, and a bucket has no '@' "
                "and no ':': give keys as storage options or in the environment"
            )
        # As Hadoop reads it, so that a checkpoint has one URL.
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
            raise _missing(path)
        return int(info["size"])

    @contextmanager
    def open_output(self, path: str) -> Iterator[BinaryIO]:
        """See `StateBackend.open_output`. Beyond `PART` bytes it is sent while it is written."""
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
        """See `StateBackend.open_input`. Deleted meanwhile, it is `FileNotFoundError` to read on."""
        key = self._key(path)
        file = self._repeated(lambda: self._fs.open(key, "rb", block_size=PART))
        if file.details["type"] != "file":
            raise _missing(path)
        return cast("BinaryIO", Download(file, self._explained))

    def list(self, prefix: str = "") -> builtins.list[str]:
        """See `StateBackend.list`. Names that no path can have, such as hidden ones, are not ours."""
        return builtins.list(self.sizes(prefix))

    def sizes(self, prefix: str = "") -> dict[str, int]:
        """See `StateBackend.sizes`: a listing tells them."""
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

    # --- what a kind of store knows better -------------------------------------------------------

    @abstractmethod
    def _find(self, below: str) -> dict[str, int]:
        """Return the names of all objects below a folder, with their sizes; more is allowed."""

    def _remove(self, keys: builtins.list[str]) -> None:
        """Delete objects; those that do not exist are ignored."""
        for key in keys:
            try:
                self._fs.rm_file(key)  # not rm(), which takes `*` in a name for a pattern
            except FileNotFoundError:
                continue

    def _put_new(self, key: str, data: bytes, nonce: str) -> None:
        """Create an object by one request, unless it exists."""
        self._fs.pipe_file(key, data, mode="create", **self._marked(nonce))

    @abstractmethod
    def _marked(self, nonce: str) -> dict[str, Any]:
        """Return the arguments of a write that leave `nonce` on the object."""

    def _metadata(self, key: str) -> Mapping[str, str]:
        """Return the metadata of an object. Raises `FileNotFoundError`."""
        return self._fs.info(key).get("metadata") or {}

    @abstractmethod
    def _explain(self, error: Exception) -> Exception | None:
        """Return what to raise for an error: `StateBackendError` when trying again is useless.

        `ConnectionError` and `TimeoutError` say that it may be of use. None: it is not about the store.
        """

    # --- what is common to all -------------------------------------------------------------------

    @property
    def _fs(self) -> AbstractFileSystem:
        return client_of(self._protocol, self._options, partial(fsspec.filesystem, self._protocol))

    def _is_ours(self, key: str, nonce: str) -> bool:
        """Return True if the object was written with `nonce`. Raises `FileNotFoundError`."""
        return self._metadata(key).get(self._nonce) == nonce

    def _key(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _folder(self, prefix: str) -> str:
        """Return how the names of all objects under the folder `prefix` begin."""
        folder = check_prefix(prefix)
        return f"{self._root}/{folder}/" if folder else f"{self._root}/"

    def _try_parts(self) -> None:
        """Test whether an upload in parts is refused as a single write is; see `probe`.

        Raises `StateBackendError`: some stores honour the condition of the latter alone.
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
        """Run a conditional write until it is answered, and find out what a refusal means."""
        try:
            self._repeated(write)
        except (FileExistsError, FileNotFoundError, *_TRANSIENT) as error:
            # FileNotFoundError: an upload in parts that was completed, or aborted.
            try:
                ours = self._repeated(is_ours)
            except FileNotFoundError:
                if isinstance(error, FileNotFoundError):
                    raise _aborted(path) from error
                raise error from None
            if not ours:
                raise FileExistsError(errno.EEXIST, "the object exists already", path) from error

    def _repeated(self, act: Callable[[], T]) -> T:
        """Run something that can be repeated, a few times if the store does not answer."""
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
                f"{type(error).__name__}. Correct them; the file system of fsspec names its own"
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


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "there is no such object", path)


def _aborted(path: str) -> StateBackendError:
    return StateBackendError(
        f"the unfinished upload of {path} is gone: the bucket's lifecycle rule took it for a dead writer's."
        " Let the rule AbortIncompleteMultipartUpload wait a day or longer, and write it again"
    )
