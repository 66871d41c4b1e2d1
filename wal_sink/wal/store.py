"""The store of one query's log, whose named objects are read and written whole."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import TypeVar

from state_backends import StateBackend
from wal_sink.model.codec import Record

R = TypeVar("R", bound=Record)


class LogStore:
    """The folder `<wal.location>/<query id>`. Picklable, since tasks receive it.

    :param backend: a state backend whose root is the folder.
    """

    def __init__(self, backend: StateBackend) -> None:
        self.backend = backend

    @property
    def url(self) -> str:
        """Return the URL of the folder, for messages."""
        return self.backend.url

    @property
    def billed(self) -> bool:
        """Return True if each request costs money and a round trip over a network."""
        return self.backend.billed

    def url_of(self, path: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self.url}/{path}"

    def read(self, path: str) -> bytes | None:
        """Return the content of an object; None if it does not exist."""
        with contextlib.suppress(FileNotFoundError):
            return self.backend.read(path)
        return None

    def read_record(self, kind: type[R], path: str) -> R | None:
        """Decode a record; None if the object does not exist.

        :raises CorruptLog: the object is not a record of this kind.
        """
        data = self.read(path)
        return None if data is None else kind.from_json(data, self.url_of(path))

    def create(self, path: str, data: bytes) -> bool:
        """Create an object durably. Return False, and change nothing, if the name is taken."""
        try:
            self.backend.create(path, data)
        except FileExistsError:
            return False
        return True

    def replace(self, path: str, data: bytes) -> None:
        """Create or replace an object. A crash may bring the old content back, so use it for reports only."""
        self.backend.replace(path, data)

    def list(self, folder: str) -> Sequence[str]:
        """Return the paths of the objects in a folder and its subfolders, ascending."""
        return self.backend.list(folder)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete objects. Objects that do not exist are ignored."""
        self.backend.delete(paths)
