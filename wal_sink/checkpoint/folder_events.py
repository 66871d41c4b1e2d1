"""Waits until a file comes into a folder, as Linux tells it: inotify(7), of which Python has no module.

A thread that waits takes no processor; one that looks every few milliseconds takes up to two percent of one,
for as long as the query is idle.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import threading
from pathlib import Path

_CREATE, _MOVED_TO, _CLOSE_WRITE = 0x100, 0x80, 0x8
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_WATCHED = _CREATE | _MOVED_TO | _CLOSE_WRITE | _DELETE_SELF | _MOVE_SELF
_GONE = _DELETE_SELF | _MOVE_SELF | 0x8000 | 0x2000  # and IN_IGNORED, IN_UNMOUNT
"""Masks of inotify(7): what is watched, and after what the path names another folder, or none."""

_HEADER = struct.Struct("iIII")
"""Watch, mask, cookie, and how many bytes of name follow."""
_BUFFER = 64 * 1024


class FolderEvents:
    """Watches one folder, for one thread; others may interrupt it.

    :param folder: it need not be there yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._interrupts: int | None = None
        self._events: int | None = None

    def wait(self, timeout_s: float) -> bool:
        """Wait until a file comes, until `interrupt`, or for so long; whether a file may have come.

        So it may as it begins to watch: at the first call, and after the folder was deleted or moved.

        :raises OSError: the folder is not there, or the system watches no further one.
        """
        if self._interrupts is None:
            self._interrupts = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        if self._events is None:
            self._events = _inotify(self._folder)
            return True
        poll = select.poll()
        for descriptor in (self._events, self._interrupts):
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(timeout_s * 1_000)}
        if self._interrupts in ready:
            os.eventfd_read(self._interrupts)
        if self._events not in ready:
            return False
        if any(mask & _GONE for mask in _masks(os.read(self._events, _BUFFER))):
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
            os.close(events)


def _masks(events: bytes) -> list[int]:
    masks, at = [], 0
    while at < len(events):
        _, mask, _, length = _HEADER.unpack_from(events, at)
        masks.append(mask)
        at += _HEADER.size + length
    return masks


def _inotify(folder: Path) -> int:
    """Return a descriptor from which the events of a folder can be read.

    :raises OSError: by inotify_init1(2) or inotify_add_watch(2).
    """
    library = ctypes.CDLL(None, use_errno=True)
    descriptor: int = library.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise _last_error(folder)
    if library.inotify_add_watch(descriptor, os.fsencode(folder), ctypes.c_uint32(_WATCHED)) < 0:
        error = _last_error(folder)
        os.close(descriptor)
        raise error
    return descriptor


def _last_error(folder: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), str(folder))
