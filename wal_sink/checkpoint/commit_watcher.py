"""Notices that Spark has written to `commits/` before Spark's event says so.

The event comes 0.1 to 0.6 s after the file. Of a file in a local folder the system tells at once; where it
does not, as of files that another host writes, a look takes microseconds, so there is one every few
milliseconds. Where each look costs a request, the flush loop waits for Spark's event. All only wake the loop
up: the flusher then reads what is checkpointed (rule 8).
"""

from __future__ import annotations

import contextlib
import os
import time

from wal_sink.checkpoint.folder_events import FolderEvents
from wal_sink.checkpoint.local_files import local_folder

LOOK_S = 0.005
"""How often a folder is looked at of which the system tells nothing."""

_UNTOLD_S = 0.1
"""How often one is looked at of which it tells: a mount may leave out what other hosts write."""

_MOST_UNTOLD = 3
"""After so many commits that such a look has found, the system counts as one that tells nothing."""

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
        self._untold = 0
        self._changed_s = 0.0
        self._newest = -1
        self.stirs = False
        """Whether the last wait ended as something else was written: Spark begins under another name."""

    @property
    def can_watch(self) -> bool:
        """Whether the checkpoint is in a local folder."""
        return self._commits is not None

    def wait(self, timeout_s: float) -> bool:
        """Wait until there is a new commit, until `interrupt`, or for so long; whether there is one.

        It may return early, so it is called again and again. An interrupt that it misses delays it by
        `LOOK_S` at most.
        """
        told = self._wait(timeout_s)
        is_new = self.has_new_commit()
        self.stirs = told and not is_new
        if not is_new:
            return False
        self._untold = 0 if told else self._untold + 1
        return True

    def _wait(self, timeout_s: float) -> bool:
        """Wait; whether the system told of a file, or may have missed to."""
        if self._events is not None and self._untold < _MOST_UNTOLD:
            # The folder may not be there yet, or too many are watched.
            with contextlib.suppress(OSError):
                return self._events.wait(min(timeout_s, _UNTOLD_S))
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
        """Whether the newest file of `commits/` is another one than at the last call.

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
