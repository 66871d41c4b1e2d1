"""Notices that Spark has written to `commits/` before Spark's event says so.

The event comes 0.1 to 0.6 s after the file. A look at a local folder takes microseconds, so the flush loop
looks every few milliseconds; where each look costs a request, it waits for the event. Both only wake the
loop up: the flusher then reads what is checkpointed (rule 8).
"""

from __future__ import annotations

import os
import time

from wal_sink.checkpoint.local_files import local_folder

_SETTLED_S = 0.1
"""After this time no further file can appear under the same time of change: clocks of file systems tick in
steps of up to 10 ms, those of network mounts may differ by more."""


class CommitWatcher:
    """Watches one checkpoint, for one thread.

    :param url: the checkpoint.
    """

    def __init__(self, url: str) -> None:
        folder = local_folder(url)
        self._commits = folder and folder / "commits"
        self._changed_s = 0.0
        self._newest = -1

    @property
    def can_watch(self) -> bool:
        """Whether the checkpoint is in a local folder."""
        return self._commits is not None

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
