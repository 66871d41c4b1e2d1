"""Makes files that somebody else has written survive a power loss, where that is ours to do (rule 8).

Spark renames `offsets/N` and `commits/N` into place and was not seen to sync them. If rows of N were
sent and a power loss then took `commits/N`, Spark would compute N again, or plan other data as N.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from wal_sink.local_folder import local_folder


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
