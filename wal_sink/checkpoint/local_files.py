"""What can be done with the files of a checkpoint in a local folder only, beside what every store can."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_LOCAL = "file://"


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names, None where it is in another kind of store."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None


def make_durable(url: str, paths: Iterable[str]) -> None:
    """Sync files below a folder, their checksum files, and the folders that hold them.

    Stores that are no local folder keep what they have acknowledged; nothing is done there. Files that
    are not there, because Spark has purged them, are passed over.

    :raises OSError: a file could not be synced; it must not be acted on.
    """
    root = local_folder(url)
    if root is None:
        return
    files = [root / path for path in paths]
    for file in files:
        _sync(file)
        _sync(file.with_name(f".{file.name}.crc"))  # Hadoop reads a file only if this one agrees
    for folder in {file.parent for file in files}:
        _sync(folder)


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def committed_us(url: str, epoch: int, published_us: int) -> int:
    """Return when `commits/<epoch>` was written, in microseconds since 1970.

    Of a checkpoint in an object store, where each look costs a request, and of a file that Spark has
    purged since: when the manifest was published, some 0.1 s earlier.

    :param url: the checkpoint.
    """
    folder = local_folder(url)
    if folder is None:
        return published_us
    try:
        written = (folder / "commits" / str(epoch)).stat().st_mtime_ns // 1_000
    except OSError:
        return published_us
    return max(written, published_us)  # clocks of file systems tick in steps of up to 10 ms
