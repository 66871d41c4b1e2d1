"""Watches `commits/`, since Spark's event of a checkpointed epoch comes 0.1 to 0.6 s after the file.

In a local folder of Linux, inotify(7) reports a new file at once, and a waiting thread takes no processor.
Where inotify does not report, as for files that another host writes, the watcher lists the folder every few
milliseconds. Where each listing costs a request, the flush loop waits for Spark's event. Any of them only
wakes the loop; the flusher then reads what is checkpointed.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from pathlib import Path

from inotify_simple import INotify, flags

from wal_sink.checkpoint.checkpoint import local_folder

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
        """Wait for a file, `interrupt`, or the end of the time; return True if a file may have come.

        One may have come before the watch begins: at the first call, and after the folder was
        deleted or moved.

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
            self._close_folder()
        return True

    def interrupt(self) -> None:
        """End a wait of the other thread, or its next one."""
        with self._lock:  # a closed descriptor may be that of another file
            if self._interrupts is not None:
                os.eventfd_write(self._interrupts, 1)

    def close(self) -> None:
        """Watch no more. Idempotent; another `wait` begins again."""
        self._close_folder()
        with self._lock:
            interrupts, self._interrupts = self._interrupts, None
            if interrupts is not None:
                os.close(interrupts)

    def _close_folder(self) -> None:
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


LOOK_S = 0.005
"""How often a folder is read where inotify reports nothing."""

_WATCHED_LOOK_S = 0.1
"""How often one is read where it does: a mount may not report files of other hosts."""

_MOST_MISSED = 3
"""After this number of commits in a row without a report, inotify counts as reporting nothing."""

_SETTLED_S = 0.1
"""After this time no further file can appear under the same time of change: clocks of file systems tick in
steps of up to 10 ms, those of network mounts may differ by more."""


class CommitWatcher:
    """Watches one checkpoint, for one thread, which others may interrupt.

    :param url: the checkpoint.
    """

    def __init__(self, url: str) -> None:
        folder = local_folder(url)
        self._commits = folder and folder / "commits"
        self._events = None if self._commits is None else FolderEvents(self._commits)
        self._missed = 0
        self._changed_s = 0.0
        self._newest = -1

    @property
    def can_watch(self) -> bool:
        """True if the checkpoint is in a local folder."""
        return self._commits is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait for a new commit, `interrupt`, or the end of the time; return True if there is a commit.

        It may return early, so it is called again and again. An interrupt that it misses delays it by
        `LOOK_S` at most.
        """
        notified = self._wait(timeout_s)
        if not self.has_new_commit():
            return False
        self._missed = 0 if notified else self._missed + 1
        return True

    def _wait(self, timeout_s: float) -> bool:
        """Wait; return True if inotify has reported a file, or may have missed one."""
        if self._events is not None and self._missed < _MOST_MISSED:
            # The folder may not be there yet, or too many are watched.
            with contextlib.suppress(OSError):
                return self._events.wait(min(timeout_s, _WATCHED_LOOK_S))
        time.sleep(min(timeout_s, LOOK_S))
        return False

    def interrupt(self) -> None:
        """End a wait of the other thread, or its next one."""
        if self._events is not None:
            self._events.interrupt()

    def close(self) -> None:
        """Let go of what the system tells by. Idempotent."""
        if self._events is not None:
            self._events.close()

    def has_new_commit(self) -> bool:
        """Return True if the newest file of `commits/` is another one than at the last call.

        False for a folder that cannot be read; the flusher that reads it raises the error.
        """
        if self._commits is None:
            return False
        try:
            changed_s = self._commits.stat().st_mtime
            if changed_s == self._changed_s and time.time() - changed_s > _SETTLED_S:
                return False
            names = os.listdir(self._commits)  # noqa: PTH208 - names are all that is wanted, often
        except OSError:
            return False
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        is_new = newest != self._newest
        self._changed_s, self._newest = changed_s, newest
        return is_new
