"""Reads an object of an object store."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any


class Download(io.RawIOBase):
    """A seekable file over one of fsspec, which raises the state backend's errors.

    :param file: fsspec's file.
    :param explained: surrounds what may fail.
    """

    def __init__(self, file: Any, explained: Callable[[], AbstractContextManager[None]]) -> None:
        self._file = file
        self._explained = explained

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` from the object; return how many bytes that were, 0 at its end."""
        with self._explained():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; return the position."""
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        """Return the position."""
        return int(self._file.tell())

    def close(self) -> None:
        """Close fsspec's file as well."""
        if not self.closed:
            self._file.close()
        super().close()
