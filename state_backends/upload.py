"""Sends a new object to an object store, piece by piece."""

import contextlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

PART = 8 << 20
"""Bytes of a part. A store takes 10,000 of them, which is 80 GiB for an object."""


class Upload(io.RawIOBase):
    """The file that a writer writes into. Memory: two parts.

    Up to one part stays in memory, and becomes the object by a single request. More is sent as an
    upload in parts, which the store does not show before it is completed.

    :param begin: opens a file for such an upload, which `close` does not complete.
    :param sending: surrounds what may fail.
    """

    def __init__(
        self, begin: Callable[[], Any], sending: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._begin = begin
        self._sending = sending
        self._broken = False
        self.head = bytearray()
        """All bytes, as long as there is no upload in parts."""
        self.file: Any = None
        """The upload in parts."""

    @property
    def is_in_parts(self) -> bool:
        """Whether what was written was too much for one request."""
        return self.file is not None or self._broken

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Take all of `data`."""
        with memoryview(data) as view:
            size = view.nbytes
            if self.file is None and len(self.head) + size <= PART:
                self.head += view
                return size
            was_broken, self._broken = self._broken, True  # a part may be missing from now on
            with self._sending():
                if self.file is None:
                    self.file = self._begin()
                    self.file.write(bytes(self.head))
                    self.head.clear()
                self.file.write(bytes(view))
            self._broken = was_broken
        return size

    def send_rest(self) -> None:
        """Send what is not yet sent of an upload in parts; only completing it is left.

        Raises `OSError` when the writer went on after a write had failed: the object would have a hole.
        """
        if self._broken:
            raise OSError("a part of the object could not be sent, and its writer went on")
        with self._sending():
            self.file.close()

    def discard(self) -> None:
        """Leave nothing behind, as far as the store answers."""
        if self.file is not None:
            self.file.closed = True  # or being collected as garbage would send the rest
            with contextlib.suppress(Exception):  # a sweep takes what cannot be aborted now
                self.file.discard()
