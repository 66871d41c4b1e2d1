"""Syncs files of a checkpoint and reads their times: possible only where it is in a local folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

_LOCAL = "file://"
_REMEMBERED = 64
"""Files; an epoch has four."""

_FAILED: dict[tuple[int, int, int], OSError] = {}
"""Syncs that have failed in this process: device and inode, and when what they name was written last.

A system reports an error of writing once, and may drop what it could not write. A later sync of the same
bytes then succeeds, and says nothing (rule 8).
"""


def local_folder(url: str) -> Path | None:
    """Return the folder that a URL names; None for another kind of store."""
    return Path(url.removeprefix(_LOCAL)) if url.startswith(_LOCAL) else None


class Synced:
    """Files below one folder that were synced, and are as they were then. Used by several threads.

    A file with the same number, size and times has not changed since, nor was it named anew: it is durable,
    with its name. To look costs microseconds, a sync milliseconds.

    :param url: the folder; in another kind of store nothing is synced, as it keeps what it has acknowledged.
    """

    def __init__(self, url: str) -> None:
        self._root = local_folder(url)
        self._states: dict[Path, _State] = {}
        self._lock = threading.Lock()

    def has(self, path: str) -> bool:
        """Whether a file is there."""
        return self._root is not None and (self._root / path).exists()

    def make_durable(self, paths: Iterable[str]) -> None:
        """Sync files, their checksum files, and the folders that hold them, as far as they are not durable.

        Passes over files that Spark has purged.

        :raises OSError: a file could not be synced, now or earlier in this process, so its content must not
            be acted on.
        """
        if self._root is None:
            return
        files = [self._root / path for path in paths]
        # Hadoop reads a file only if the other one agrees.
        pairs = [each for file in files for each in (file, file.with_name(f".{file.name}.crc"))]
        with self._lock:
            synced: dict[Path, _State] = {}
            for file in pairs:
                known = self._states.get(file)
                if (state := _sync(file, known)) is not None and state != known:
                    synced[file] = state
            for folder in {file.parent for file in synced}:
                _sync(folder)
            for file, state in synced.items():
                self._states.pop(file, None)
                self._states[file] = state
            for file in list(self._states)[:-_REMEMBERED]:
                del self._states[file]


_State: TypeAlias = tuple[int, int, int, int, int]


def _told(found: os.stat_result) -> _State:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sync(path: Path, known: _State | None = None) -> _State | None:
    """Sync a file or folder, unless it is as known; return its state from before, None when it is not there.

    It is opened in any case: a network mount then asks its server for the state.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(descriptor)
        state, written = _told(found), (found.st_dev, found.st_ino, found.st_mtime_ns)
        try:
            if state != known:
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
    return state


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
