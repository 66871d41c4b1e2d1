"""Watches `commits/` for new files. Spark's event of a checkpointed epoch comes 0.1 to 0.6 s after the file.

A local folder is read every few milliseconds. In a bucket each listing costs a request, so the flush loop
waits for Spark's event there. A file or an event only wakes the loop. The flusher then reads what is
checkpointed.
"""

from __future__ import annotations

import os
import time

from wal_sink.checkpoint.checkpoint import local_folder

READ_S = 0.02
"""How often a local folder is read. The reads of an idle query take 0.2 % of a processor."""

_SETTLED_S = 0.1
"""After this time a change of the folder always gives it another time of change. File systems store times
in steps of up to 10 ms, and clocks of network mounts may differ by more."""


class CommitWatcher:
    """Watches one checkpoint. Used by one thread.

    :param url: URL of the checkpoint.
    """

    def __init__(self, url: str) -> None:
        folder = local_folder(url)
        self._commits = "" if folder is None else f"{folder}/commits"
        self._changed_s = 0.0
        self._newest = -1

    @property
    def can_watch(self) -> bool:
        """Return True if the checkpoint is in a local folder."""
        return bool(self._commits)

    def has_new_commit(self) -> bool:
        """Return True if `commits/` has another newest file than at the last call.

        Return False if the folder cannot be read: the flusher reads it, too, and raises the error.
        """
        if not self._commits:
            return False
        try:
            changed_s = os.stat(self._commits).st_mtime  # noqa: PTH116 - Path is slower, and this runs every 20 ms
            if changed_s == self._changed_s and time.time() - changed_s > _SETTLED_S:
                return False
            names = os.listdir(self._commits)  # noqa: PTH208 - only the names are needed
        except OSError:
            return False
        newest = max((int(name) for name in names if name.isdecimal()), default=-1)
        is_new = newest != self._newest
        self._changed_s, self._newest = changed_s, newest
        return is_new
