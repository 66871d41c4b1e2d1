"""Reads and writes whole files below a Delta table's folder, with delta-rs.

Its undocumented `_handler` has a canary in `tests/delta/test_commits.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileType

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.staged_files import sync


@contextlib.contextmanager
def table_is_there(path: str) -> Iterator[None]:
    """Convert delta-rs' error for a missing table to SchemaMismatch, in this context."""
    try:
        yield
    except TableNotFoundError as error:
        raise SchemaMismatch(
            f"There is no Delta table at {path}.", "Create it, or correct option delta.path."
        ) from error


class Files:
    """Writes, reads and deletes whole files. Paths are relative to the table's folder.

    Access goes through delta-rs, with its storage options. The public `DeltaStorageHandler` hands Arrow a
    stream that refuses what Arrow writes (1.6.6 with pyarrow 26: 'Buffer' object is not an instance of
    'bytes'). Its inner handler takes bytes.

    :raises SchemaMismatch: the path is a local folder that does not exist.
    """

    def __init__(self, path: str, options: dict[str, str] | None) -> None:
        with table_is_there(path):
            self._storage: Any = DeltaStorageHandler(path, options)._handler  # noqa: SLF001
        self._folder = _local(path)

    def write(self, path: str, data: bytes) -> None:
        """Create a file. `sync` makes it durable."""
        output = self._storage.open_output_stream(path, None)
        output.write(data)
        output.close()

    def read(self, path: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: the file is missing.
        """
        file = self._storage.open_input_file(path)
        return bytes(file.read(file.size()))

    def delete(self, path: str) -> None:
        """Delete a file that may be missing."""
        try:
            self._storage.delete_file(path)
        except FileNotFoundError:
            return

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return the paths whose files are missing."""
        listed = list(paths)
        infos = self._storage.get_file_info(listed)
        return [
            path for path, info in zip(listed, infos, strict=True) if info.type == FileType.NotFound
        ]

    def sync(self, paths: Iterable[str], *, may_be_gone: bool = False) -> None:
        """Make files in a local folder survive a power loss, since delta-rs does not sync them.

        An object store acknowledges only durable objects.

        :param may_be_gone: True if somebody may have deleted a file since it was listed.
        :raises FileNotFoundError: a file is missing.
        """
        if self._folder is not None:
            sync([self._folder / path for path in paths], may_be_gone=may_be_gone)


def _local(path: str) -> Path | None:
    """Return the folder of a path or a URL `file:`. None for another store."""
    if "://" not in path:
        return Path(path)
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
