"""The files in a Delta table's folder, and which of these files delta-rs can remove.

`tests/delta/test_commits.py` fails if a release of deltalake changes an undocumented name that is used here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote as percent_encoded
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileType

from wal_sink.errors import SchemaMismatch
from wal_sink.targets.delta.partitions import is_absolute
from wal_sink.targets.staged_files import sync

_NOT_ENCODED = "!$&'()+,-.:;=@_~/"
"""The characters, beside letters and digits, that delta-rs (1.6.6) does not percent-encode in the path of a
removed file."""

_USUAL_PATH = r"^[A-Za-z0-9_=.-][A-Za-z0-9_=./-]*$"
"""Matches a path that delta-rs writes unchanged into the log. Only other paths are checked one by one."""


@contextlib.contextmanager
def explained_missing_table(path: str) -> Iterator[None]:
    """Convert delta-rs' error for a missing table in this context.

    :raises SchemaMismatch: there is no table at the path.
    """
    try:
        yield
    except TableNotFoundError as error:
        raise no_table(path) from error


def no_table(path: str, create: str = "create the table.") -> SchemaMismatch:
    """Return the error for a missing table.

    :param create: how to create the table. Continues "Correct option delta.path, or ".
    """
    return SchemaMismatch(
        f"There is no Delta table at {path}.", f"Correct option delta.path, or {create}"
    )


class Files:
    """Writes, reads and deletes whole files through delta-rs. Paths are relative to the table's folder.

    The public `DeltaStorageHandler` (1.6.6) refuses the buffers that Arrow (26) writes. Its inner handler,
    which this class uses, takes bytes.

    :raises SchemaMismatch: the path is a local folder that does not exist.
    """

    def __init__(self, path: str, options: dict[str, str] | None) -> None:
        with explained_missing_table(path):
            self._storage: Any = DeltaStorageHandler(path, options)._handler  # noqa: SLF001
        self._folder = _local(path)

    def write(self, path: str, data: bytes) -> None:
        """Create a file. `sync` makes the file durable."""
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
        """Make files in a local folder survive a power loss. Objects in an object store are durable.

        :param may_be_gone: True to ignore a missing file, which somebody has deleted meanwhile.
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


def not_removable(paths: pa.ChunkedArray) -> Iterator[tuple[str, str]]:
    """Yield each path of a file that a merge of delta-rs cannot remove, and the reason.

    :param paths: paths of files in the table's log.
    """
    unusual = paths.filter(pc.invert(pc.match_substring_regex(paths, _USUAL_PATH)))
    for path in unusual.to_pylist():
        if problem := why_not_removable(path):
            yield path, problem


def why_not_removable(path: str) -> str:
    """Return why a merge of delta-rs cannot remove a file. Empty if the merge can remove the file.

    delta-rs percent-encodes a letter such as "ä" in the path of a file, and delta-spark does not. So for a
    file of delta-spark, delta-rs would remove a path that does not exist. The old file would stay, and the
    table would have its rows twice.

    :param path: the file's path in the table's log.
    """
    if is_absolute(path):
        return "its path is absolute, as in a shallow clone"
    removed = percent_encoded(unquote(path), safe=_NOT_ENCODED)
    return "" if removed == path else f"the commit would remove {removed}, which is not a file"
