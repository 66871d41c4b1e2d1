"""Writes requests to their socket at once, by the thread that makes them.

The driver's `push` leaves them to its own thread: three turns of its event loop for each push, and two
threads that take the interpreter from each other. A socket has room nearly always, so nothing waits for it.

It is done for libev, the driver's choice on Linux, and without TLS: the driver's thread reads meanwhile, and
OpenSSL does not let two threads use one connection at once.
"""

from __future__ import annotations

import socket
import threading
from typing import Any


class WritingConnection:
    """Goes before a connection class of the driver, whose `push` it overrides."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pushing = threading.Lock()
        super().__init__(*args, **kwargs)

    def push(self, data: bytes) -> None:
        """Write what the socket takes now; the driver's thread writes the rest, and meets what is wrong."""
        with self._pushing:  # nothing comes between a message and its rest
            rest = data[self._written(data) :]
            if rest:
                super().push(rest)  # type: ignore[misc]

    def _written(self: Any, data: bytes) -> int:
        """Write the first bytes, and return how many; none where the driver's thread may be writing.

        That thread writes only while it watches for room. It begins to watch when it finds something in the
        queue, which only `push` puts there, and ends when the queue is empty. So the queue is looked at
        first: where it is empty, and nothing is watched after that, the thread does not begin before
        `push` has ended.
        """
        try:
            if (
                self.deque
                or self._write_watcher_is_active
                or type(self._socket) is not socket.socket
            ):
                return 0
            written: int = self._socket.send(data)
        except BlockingIOError:
            written = 0
        except (OSError, AttributeError):  # AttributeError: another event loop
            return 0
        if written < len(data):
            self._socket_writable = False  # until the driver's thread has written the rest
        return written
