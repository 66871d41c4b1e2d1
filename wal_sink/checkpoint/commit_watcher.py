"""Notices that Spark has written to `commits/`, long before Spark's event says so.

The event comes 0.1 to 0.6 s after the file. A look at a local folder costs microseconds, so it is taken every
few milliseconds; where each look costs a request, the event has to do. A commit_watcher is a wake-up like the
event: what is checkpointed is read afterwards, as ever (rule 8).
"""

from __future__ import annotations

import os
import time

from wal_sink.checkpoint.local_files import local_folder

_SETTLED_S = 0.1
"""After which no further file can have come with the same time of change: clocks of file systems tick in
steps of up to 10 ms, those of network mounts may differ by more."""


class CommitWatcher:
    """Watches one checkpoint; used by one thread.

    :param url: the checkpoint.
    """

    def __init__(self, url: str) -> None:
        folder = local_folder(url)
        self._commits = folder and folder / "commits"
        self._changed_s = 0.0
        self._newest = -1

    @property
    def possible(self) -> bool:
        """Whether the checkpoint can be glimpsed at."""
        return self._commits is not None

    def news(self) -> bool:
        """Whether the newest file is another one than when this was last asked.

        A folder that cannot be read is no news; whoever looks in earnest raises that.
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
        news = newest != self._newest
        self._changed_s, self._newest = changed_s, newest
        return news
