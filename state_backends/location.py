"""Opens the store at a URL, and makes URLs of folders below it."""

import functools
import re
from collections.abc import Callable, Mapping
from importlib import import_module

from state_backends.base import StateBackend, StateBackendError, check_path
from state_backends.local import LocalBackend
from state_backends.memory import MemoryBackend

GROUP = "wal_sink.state_backends"
"""The group of entry points of further stores: `scheme = "module:Class"`, a `StateBackend` that is made of a
URL and storage options."""

_OWN = {
    "s3": "state_backends.s3:S3Backend",
    "gs": "state_backends.gcs:GcsBackend",
    "abfs": "state_backends.azure:AzureBackend",
}
"""The object stores by their schemes. No other distribution can take one of these."""

_ALSO = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}
"""Other names of the same."""

_INSTEAD = {
    "hdfs": "Its client has no create that fails where a file exists: two drivers could both win. Use an"
    " object store (s3, gs, abfss), or a folder on a mount that all hosts share",
    "dbfs": "Use the bucket itself (s3, gs, abfss), which Databricks' clusters reach as well",
}
"""Schemes that people ask for, and why not, with what to use."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def open_backend(url: str, storage_options: Mapping[str, object] | None = None) -> StateBackend:
    """Return the store at `url`, without any I/O.

    Folders: `/x`, `file:/x`, `file:///x`, `file://localhost/x`, and `x`, which is below the
    current folder. Memory, for tests: `memory://name`. S3: `s3://bucket/prefix`, which Hadoop calls
    `s3a`. Google: `gs://bucket/prefix`. Azure: `abfss://container@account.dfs.core.windows.net/prefix`.
    Another scheme: what an entry point of the group `wal_sink.state_backends` has for it. As in Hadoop, `%`,
    `?` and `#` are characters like any other, and a colon before the first slash ends a scheme.

    Raises `StateBackendError` for any other URL, when a package is missing, and for storage options
    of folders and memory, which have none.
    """
    if not url or "\0" in url:
        raise StateBackendError("the URL of a store must not be empty or contain a NUL")
    scheme = url_scheme(url)
    rest = url if scheme == "" else url.partition(":")[2]
    if scheme in _OWN:
        return _load(scheme, _OWN[scheme])(url, storage_options)
    if scheme in _INSTEAD:
        raise StateBackendError(f"a log cannot be in {scheme}://. {_INSTEAD[scheme]}")
    if scheme not in {"", "file", "memory"}:
        return _registered(scheme)(url, storage_options)
    if storage_options:
        raise StateBackendError(
            f"storage options {sorted(storage_options)} have no effect on a folder or on memory: "
            "remove them"
        )
    if scheme == "":
        return _open_folder(url)
    if scheme == "file":
        return LocalBackend(_file_path(rest))
    return _open_memory(rest)


def url_scheme(url: str) -> str:
    """Return the kind of store that `url` names: `s3` for `s3a` as well, "" for a plain path."""
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    return _ALSO.get(scheme, scheme)


@functools.cache
def _registered(scheme: str) -> Callable[..., StateBackend]:
    """Return what an entry point has for a scheme."""
    from importlib.metadata import entry_points  # noqa: PLC0415 -- email and csv, for other stores than ours

    for point in entry_points(group=GROUP, name=scheme):
        return _load(scheme, f"{point.module}:{point.attr}")
    # The URL is not repeated: people put secrets into it.
    raise StateBackendError(
        f"there is no store for URLs that start with {scheme!r}: a log can be in a folder, which can be a"
        " shared mount, in S3 (s3), Google Cloud Storage (gs) or Azure (abfss), or in a store that a"
        f" distribution has registered under {GROUP}"
    )


def _load(scheme: str, place: str) -> Callable[..., StateBackend]:
    module, _, attribute = place.partition(":")
    try:
        loaded = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise StateBackendError(
            f"the store for {scheme}:// is {place}, which cannot be imported: {error}. Install what it needs"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, StateBackend)):
        raise StateBackendError(
            f"the store for {scheme}:// is {place}, and not a StateBackend: derive it from"
            " state_backends.StateBackend"
        )
    return loaded


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
