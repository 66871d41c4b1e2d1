"""Syncs files of a checkpoint and reads their times: possible only where it is in a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_LOCAL = "file://"


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names; None for another kind of store."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None


def make_durable(url: str, paths: Iterable[str]) -> None:
    """Sync files below a folder, their checksum files, and the folders that hold them.

    Does nothing in other stores, which keep what they have acknowledged. Passes over files that Spark has
    purged.

    :raises OSError: a file could not be synced, so its content must not be acted on.
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

    :param url: the checkpoint.
    :param published_us: when the manifest was published, some 0.1 s earlier: returned for a checkpoint in an
        object store, where each look costs a request, and for a file that Spark has purged since.
    """
    folder = local_folder(url)
    if folder is None:
        return published_us
    try:
        written = (folder / "commits" / str(epoch)).stat().st_mtime_ns // 1_000
    except OSError:
        return published_us
    return max(written, published_us)  # clocks of file systems tick in steps of up to 10 ms
