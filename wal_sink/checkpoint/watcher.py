"""Notices new files of `commits/`: Spark's event of a checkpointed epoch comes 0.1 to 0.6 s after the file.

A local folder is read every few milliseconds. Where each listing costs a request, the flush loop waits for
Spark's event. Either only wakes the loop; the flusher then reads what is checkpointed.
"""

from __future__ import annotations

import os
import time

from wal_sink.checkpoint.checkpoint import local_folder

READ_S = 0.02
"""How often a local folder is read: a query that is idle takes 0.2 % of a processor."""

_SETTLED_S = 0.1
"""After this time no further file can appear under the same time of change: clocks of file systems tick in
steps of up to 10 ms, those of network mounts may differ by more."""


class CommitWatcher:
    """Watches one checkpoint, for one thread.

    :param url: the checkpoint.
    """

    def __init__(self, url: str) -> None:
        folder = local_folder(url)
        self._commits = "" if folder is None else f"{folder}/commits"
        self._changed_s = 0.0
        self._newest = -1

    @property
    def can_watch(self) -> bool:
        """True if the checkpoint is in a local folder."""
        return bool(self._commits)

    def has_new_commit(self) -> bool:
        """Return True if the newest file of `commits/` is another one than at the last call.

        False for a folder that cannot be read; the flusher that reads it raises the error.
        """
        if not self._commits:
            return False
        try:
            changed_s = os.stat(self._commits).st_mtime  # noqa: PTH116 - Path is slow, and this comes often
            if changed_s == self._changed_s and time.time() - changed_s > _SETTLED_S:
                return False
            names = os.listdir(self._commits)  # noqa: PTH208 - names are all that is wanted
        except OSError:
            return False
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        is_new = newest != self._newest
        self._changed_s, self._newest = changed_s, newest
        return is_new
