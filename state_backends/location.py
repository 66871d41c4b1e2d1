"""Opens the store at a URL, and makes URLs of folders below it."""

import re
from collections.abc import Mapping

from state_backends.base import StateBackend, StateBackendError, check_path
from state_backends.local import LocalBackend
from state_backends.memory import MemoryBackend

_S3 = {"s3", "s3a", "s3n"}
_UNVERIFIED = {"gs": "gs", "gcs": "gs", "az": "abfs", "abfs": "abfs", "abfss": "abfs"}
"""Object stores by the name that fsspec has for them."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def open_backend(url: str, storage_options: Mapping[str, object] | None = None) -> StateBackend:
    """Return the store at `url`, without any I/O.

    Folders: `/x`, `file:/x`, `file:///x`, `file://localhost/x`, and `x`, which is below the
    current folder. Memory, for tests: `memory://name`. S3: `s3://bucket/prefix`, which Hadoop calls
    `s3a`. As in Hadoop, `%`, `?` and `#` are characters like any other, and a colon before the
    first slash ends a scheme.

    Raises `StateBackendError` for any other URL, when a package is missing, and for storage options
    of folders and memory, which have none.
    """
    if not url or "\0" in url:
        raise StateBackendError("the URL of a store must not be empty or contain a NUL")
    scheme = url_scheme(url)
    rest = url if scheme == "" else url.partition(":")[2]
    if scheme == "s3":
        from state_backends.s3 import S3Backend  # noqa: PLC0415 -- fsspec and tenacity

        return S3Backend(url, storage_options)
    if scheme in _UNVERIFIED.values():
        raise _not_verified(scheme)
    if storage_options:
        raise StateBackendError(
            f"storage options {sorted(storage_options)} have no effect on a folder or on memory: "
            "remove them"
        )
    if scheme == "":
        return _open_folder(url)
    if scheme == "file":
        return LocalBackend(_file_path(rest))
    if scheme == "memory":
        return _open_memory(rest)
    # The URL is not repeated: people put secrets into it.
    raise StateBackendError(
        f"there is no store for URLs that start with {scheme!r}: a log can be in a folder, which "
        "can be a shared mount, or in S3"
    )


def url_scheme(url: str) -> str:
    """Return the kind of store that `url` names: `s3` for `s3a` as well, "" for a plain path."""
    found = _SCHEME.match(url)
    scheme = found[1].lower() if found else ""
    return "s3" if scheme in _S3 else _UNVERIFIED.get(scheme, scheme)


def _not_verified(scheme: str) -> StateBackendError:
    return StateBackendError(
        f"a store for {scheme}:// is not verified yet: the contract was never run against it or "
        "its emulator. To do that, subclass wal_sink.testing.contracts.storage.StateBackendContract "
        f"with a fixture `backend` that returns state_backends.ObjectStoreBackend('{scheme}://…', "
        "storage_options) for an empty prefix. Until then use S3 or a shared folder"
    )


def child_url(url: str, *parts: str) -> str:
    """Return the URL of the folder that `parts` name below `url`; a part can be nested, `a/b`.

    What the store at `url` has as `part/x` is `x` in the store at `child_url(url, part)`.
    Encodes nothing and makes nothing absolute. Raises `ValueError` for a part that is not a path.
    """
    if not url:
        raise ValueError("the URL of a store must not be empty")
    return "/".join([url.rstrip("/"), *map(check_path, parts)]) if parts else url


def _open_folder(path: str) -> LocalBackend:
    if path.startswith("~"):
        raise StateBackendError(f"{path!r} is not expanded: write the home folder out")
    return LocalBackend(path)


def _file_path(rest: str) -> str:
    """Return the path in what follows `file:`."""
    path = rest
    if rest.startswith("//"):
        host, slash, tail = rest[2:].partition("/")
        if host not in {"", "localhost"}:
            raise StateBackendError(
                f"'file:{rest}' names the host {host!r}: a folder of another host has to be "
                "mounted here, and three slashes follow 'file:'"
            )
        path = slash + tail
    if not path.startswith("/"):
        raise StateBackendError(f"'file:{rest}' has no absolute path: write file:///the/folder")
    return path


def _open_memory(rest: str) -> MemoryBackend:
    name = rest.removeprefix("//").rstrip("/")
    try:
        if not rest.startswith("//"):
            raise ValueError("two slashes are missing")
        return MemoryBackend(name)
    except ValueError as error:
        raise StateBackendError(f"'memory:{rest}' is not memory://name: {error}") from error
