"""URLs of stores: opened, and extended by folders."""

import re
from collections.abc import Mapping

from state_backends.base import StateBackend
from state_backends.errors import StateBackendError
from state_backends.local import LocalBackend
from state_backends.memory import MemoryBackend
from state_backends.paths import check_path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def open_backend(url: str, storage_options: Mapping[str, object] | None = None) -> StateBackend:
    """Return the store at `url`, without any I/O.

    Folders: `/x`, `file:/x`, `file:///x`, `file://localhost/x`, and `x`, which is below the
    current folder. Memory, for tests: `memory://name`. As in Hadoop, `%`, `?` and `#` are
    characters like any other, and a colon before the first slash ends a scheme.

    Raises `StateBackendError` for any other URL, and for storage options, which neither kind has.
    """
    if not url or "\0" in url:
        raise StateBackendError("the URL of a store must not be empty or contain a NUL")
    if storage_options:
        raise StateBackendError(
            f"storage options {sorted(storage_options)} have no effect on a folder or on memory: "
            "remove them"
        )
    found = _SCHEME.match(url)
    if not found:
        return _open_folder(url)
    scheme, rest = found[1].lower(), url[found.end() :]
    if scheme == "file":
        return LocalBackend(_file_path(rest))
    if scheme == "memory":
        return _open_memory(rest)
    # The URL is not repeated: people put secrets into it.
    raise StateBackendError(
        f"there is no store for URLs that start with {found[1]!r}: this version keeps a log in a "
        "folder, which can be a shared mount; object stores come in a later version"
    )


def child_url(url: str, *parts: str) -> str:
    """Return the URL of the folder that `parts` name below `url`; a part can be nested, `a/b`.

    What the store at `url` has as `part/x` is `x` in the store at `child_url(url, part)`.
    Nothing is encoded or made absolute. Raises `ValueError` for a part that is not a path.
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
