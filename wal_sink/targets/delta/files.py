"""Reads and writes whole files below a Delta table's folder, by delta-rs.

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
    """Raise SchemaMismatch where delta-rs finds no table."""
    try:
        yield
    except TableNotFoundError as error:
        raise SchemaMismatch(
            f"There is no Delta table at {path}.", "Create it, or correct option delta.path."
        ) from error


class Files:
    """Writes, reads and deletes whole files; paths are below the table's folder.

    By delta-rs' own access, with its storage options. Its public API, `DeltaStorageHandler`, hands a stream
    to Arrow that refuses what Arrow writes (1.6.6 with pyarrow 26: 'Buffer' object is not an instance of
    'bytes'). What lies below it takes bytes.

    :raises SchemaMismatch: the path is a local folder that is not there.
    """

    def __init__(self, path: str, options: dict[str, str] | None) -> None:
        with table_is_there(path):
            self._storage: Any = DeltaStorageHandler(path, options)._handler  # noqa: SLF001
        self._folder = _local(path)

    def write(self, path: str, data: bytes) -> None:
        """Create a file; `sync` makes it durable."""
        output = self._storage.open_output_stream(path, None)
        output.write(data)
        output.close()

    def read(self, path: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: it is not there.
        """
        file = self._storage.open_input_file(path)
        return bytes(file.read(file.size()))

    def delete(self, path: str) -> None:
        """Delete a file that may be gone already."""
        try:
            self._storage.delete_file(path)
        except FileNotFoundError:
            return

    def missing(self, paths: Iterable[str]) -> list[str]:
        """Return those of the files that are not there."""
        asked = list(paths)
        infos = self._storage.get_file_info(asked)
        return [
            path for path, info in zip(asked, infos, strict=True) if info.type == FileType.NotFound
        ]

    def sync(self, paths: Iterable[str], *, may_be_gone: bool = False) -> None:
        """Make files survive a power loss, where they lie in a folder: delta-rs does not sync them.

        A store of objects acknowledges what is durable.

        :param may_be_gone: somebody may have deleted one since it was listed.
        :raises FileNotFoundError: one is gone.
        """
        if self._folder is not None:
            sync([self._folder / path for path in paths], may_be_gone=may_be_gone)


def _local(path: str) -> Path | None:
    """Return the folder of a path or a URL `file:`; None for another store."""
    if "://" not in path:
        return Path(path)
    parts = urlsplit(path)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None
