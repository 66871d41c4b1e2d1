"""Opens the store at a URL, and makes URLs of folders in it."""

import functools
import re
from collections.abc import Callable, Mapping
from importlib import import_module

from state_backends.base import StateBackend, StateBackendError, check_path
from state_backends.local import LocalBackend
from state_backends.memory import MemoryBackend

GROUP = "wal_sink.state_backends"
"""The entry points of stores in other packages: `scheme = "module:Class"`. The class is a `StateBackend`,
whose constructor takes a URL and storage options."""

_CLASSES = {
    "s3": "state_backends.s3:S3Backend",
    "gs": "state_backends.gcs:GcsBackend",
    "abfs": "state_backends.azure:AzureBackend",
}
"""The object stores of this package, by scheme. An entry point cannot replace them."""

_ALIASES = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "az": "abfs", "abfss": "abfs"}

_REFUSED = {
    "hdfs": "Its client has no create that fails where a file exists, so two drivers could both succeed. Use"
    " an object store (s3, gs, abfss), or a folder on a mount that all hosts share",
    "dbfs": "Use the bucket itself (s3, gs, abfss), which Databricks' clusters reach as well",
}
"""Schemes that are refused, with the reason and what to use instead."""

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def open_backend(url: str, storage_options: Mapping[str, object] | None = None) -> StateBackend:
    """Return the store at `url`, without any I/O.

    ===============  ==================================================================
    folder           `/x`, `file:/x`, `file:///x`, `file://localhost/x`; `x` is relative
    memory           `memory://name`
    S3               `s3://bucket/prefix`, also `s3a` and `s3n`
    Google           `gs://bucket/prefix`, also `gcs`
    Azure            `abfss://container@account.dfs.core.windows.net/prefix`, also `abfs` and `az`
    other schemes    the entry point of the group `wal_sink.state_backends`
    ===============  ==================================================================

    As in Hadoop, `%`, `?` and `#` have no special meaning. A colon before the first slash ends a scheme.

    :raises StateBackendError: if there is no store for the URL, if its client is not installed, or if a
        folder or memory gets storage options.
    """
    if not url or "\0" in url:
        raise StateBackendError("the URL of a store must not be empty or contain a NUL")
    scheme = url_scheme(url)
    rest = url if scheme == "" else url.partition(":")[2]
    if scheme in _CLASSES:
        return _load(scheme, _CLASSES[scheme])(url, storage_options)
    if scheme in _REFUSED:
        raise StateBackendError(f"a log cannot be in {scheme}://. {_REFUSED[scheme]}")
    if scheme not in {"", "file", "memory"}:
        return _registered(scheme)(url, storage_options)
    if storage_options:
        raise StateBackendError(
            f"storage options {sorted(storage_options)} have no effect on a folder or on memory: remove them"
        )
    if scheme == "memory":
        return _open_memory(rest)
    if url.startswith("~"):
        raise StateBackendError(f"{url!r} is not expanded: write the home folder out")
    return LocalBackend(_file_path(rest) if scheme == "file" else url)


def url_scheme(url: str) -> str:
    """Return the scheme of a URL, such as `s3` for `s3a`; "" for a plain path."""
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else ""
    return _ALIASES.get(scheme, scheme)


def child_url(url: str, *parts: str) -> str:
    """Return the URL of the folder `parts` in the store at `url`.

    The object `x` of the new URL is the object `<parts>/x` of `url`.

    Nothing is encoded, and a relative `url` stays relative.

    :raises ValueError: if a part is not a path.
    """
    if not url:
        raise ValueError("the URL of a store must not be empty")
    return "/".join([url.rstrip("/"), *map(check_path, parts)]) if parts else url


@functools.cache
def _registered(scheme: str) -> Callable[..., StateBackend]:
    """Return the class that an entry point names for a scheme."""
    from importlib.metadata import entry_points  # noqa: PLC0415 -- slow to import, and rarely needed

    for point in entry_points(group=GROUP, name=scheme):
        return _load(scheme, f"{point.module}:{point.attr}")
    # The message does not contain the URL, which may contain a secret.
    raise StateBackendError(
        f"there is no store for URLs that start with {scheme!r}: use a folder, which may be a shared mount;"
        " S3 (s3), Google Cloud Storage (gs) or Azure (abfss); or install a package that registers the scheme"
        f" under {GROUP}"
    )


def _load(scheme: str, class_path: str) -> Callable[..., StateBackend]:
    module, _, attribute = class_path.partition(":")
    try:
        loaded = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise StateBackendError(
            f"the store for {scheme}:// is {class_path}, which cannot be imported: {error}. Install the"
            " missing package"
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, StateBackend)):
        raise StateBackendError(
            f"the store for {scheme}:// is {class_path}, and not a StateBackend: derive it from"
            " state_backends.StateBackend"
        )
    return loaded


def _file_path(rest: str) -> str:
    """Return the path of a URL from the text after `file:`."""
    path = rest
    if rest.startswith("//"):
        host, slash, tail = rest[2:].partition("/")
        if host not in {"", "localhost"}:
            raise StateBackendError(
                f"'file:{rest}' names the host {host!r}: mount the folder of that host here, and write three"
                " slashes after 'file:'"
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
