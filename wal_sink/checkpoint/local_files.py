"""Syncs files of a checkpoint and reads their times: possible only where it is in a local folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_LOCAL = "file://"

_FAILED: dict[tuple[int, int, int], OSError] = {}
"""Syncs that have failed in this process: device and inode, and when what they name was written last.

A system reports an error of writing once, and may drop what it could not write. A later sync of the same
bytes then succeeds, and says nothing (rule 8).
"""


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names; None for another kind of store."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None


def make_durable(url: str, paths: Iterable[str]) -> None:
    """Sync files below a folder, their checksum files, and the folders that hold them.

    Does nothing in other stores, which keep what they have acknowledged. Passes over files that Spark has
    purged.

    :raises OSError: a file could not be synced, now or earlier in this process, so its content must not be
        acted on.
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
        found = os.fstat(descriptor)
        written = found.st_dev, found.st_ino, found.st_mtime_ns
        try:
            os.fsync(descriptor)
        except OSError as error:
            _FAILED[written] = error
        # After the sync: that of another thread may have failed meanwhile.
        if (failed := _FAILED.get(written)) is not None:
            raise OSError(
                failed.errno,
                f"{path} could not be synced ({failed}), and no later sync tells whether the disk has it. The"
                " flush goes on when the file is written anew (copy it, and move the copy into its place), or"
                " when Spark has committed two more epochs",
            ) from failed
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
