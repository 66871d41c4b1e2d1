"""Waits until a file comes into a folder, as Linux tells it: inotify(7).

A thread that waits takes no processor; one that looks every few milliseconds takes up to two percent of one,
for as long as the query is idle.
"""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

from inotify_simple import INotify, flags

_GONE = flags.DELETE_SELF | flags.MOVE_SELF | flags.IGNORED | flags.UNMOUNT
"""After one of these the path names another folder, or none."""
_WATCHED = flags.CREATE | flags.MOVED_TO | flags.CLOSE_WRITE | flags.DELETE_SELF | flags.MOVE_SELF


class FolderEvents:
    """Watches one folder, for one thread; others may interrupt it.

    :param folder: it need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._interrupts: int | None = None
        self._events: INotify | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait until a file comes, until `interrupt`, or for so long; whether a file may have come.

        So it may as it begins to watch: at the first call, and after the folder was deleted or moved.

        :raises OSError: the folder is not there, or the system watches no further one.
        """
        if self._interrupts is None:
            self._interrupts = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if self._events is None:
            self._events = _watching(self._folder)
            return True
        poll = select.poll()
        for descriptor in (self._events.fd, self._interrupts):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_s * 1_000)}
        if self._interrupts in ready:
            os.eventfd_read(self._interrupts)
        if self._events.fd not in ready:
            return False
        if any(event.mask & _GONE for event in self._events.read(timeout=0)):
            self._forget_folder()
        return True

    def interrupt(self) -> None:
        """End a wait of the other thread, or its next one."""
        with self._lock:  # a closed descriptor may be another file's by now
            if self._interrupts is not None:
                os.eventfd_write(self._interrupts, 1)

    def close(self) -> None:
        """Watch no more. Idempotent; another `wait` begins anew."""
        self._forget_folder()
        with self._lock:
            interrupts, self._interrupts = self._interrupts, None
            if interrupts is not None:
                os.close(interrupts)

    def _forget_folder(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.close()


def _watching(folder: Path) -> INotify:
    events = INotify()
    try:
        events.add_watch(folder, _WATCHED)
    except OSError:
        events.close()
        raise
    return events
