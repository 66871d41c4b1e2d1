"""Remembers what this process saw of the runs of a query: which one Spark kept, which one goes on (rule 11).

Spark's progress event for epoch N comes after its run has written `commits/N`, in the process of that run. So
it proves whose attempt was kept, which nothing in the checkpoint does. Events can be lost: what was not seen
proves nothing.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection

_EPOCHS_KEPT = 100
"""Newest events of a query that are remembered; an older doubt is settled by the epochs after it."""


class RunHistory:
    """Remembers events of the queries that this process flushes. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: dict[str, OrderedDict[int, tuple[str, int]]] = {}
        self._started: dict[str, list[str]] = {}
        self._running: dict[str, str] = {}
        self._gave_way: dict[str, dict[str, int]] = {}

    def watch(self, query_id: str) -> None:
        """Remember events of this query from now on."""
        with self._lock:
            self._events.setdefault(query_id, OrderedDict())
            self._started.setdefault(query_id, [])
            self._gave_way.setdefault(query_id, {})

    def started(self, query_id: str, run_id: str) -> None:
        """Note that a run starts. Spark has one run of a query at a time in a process."""
        with self._lock:
            if query_id in self._started:
                self._started[query_id].append(run_id)
                self._running[query_id] = run_id

    def progressed(self, query_id: str, run_id: str, epoch: int) -> None:
        """Note that a run has written `commits/<epoch>`."""
        with self._lock:
            events = self._events.get(query_id)
            if events is not None:
                events.pop(epoch, None)
                events[epoch] = (run_id, len(self._started[query_id]))
                while len(events) > _EPOCHS_KEPT:
                    events.popitem(last=False)

    def terminated(self, query_id: str, run_id: str, *, gave_way: bool = False) -> None:
        """Note that a run has ended; a late event of an earlier run does not end the current one.

        :param gave_way: it ended because a file that it was to write was there: another run's.
        """
        with self._lock:
            if self._running.get(query_id) == run_id:
                del self._running[query_id]
            if gave_way and run_id in self._started.get(query_id, ()):
                seen = [e for e, (run, _) in self._events[query_id].items() if run == run_id]
                self._gave_way[query_id][run_id] = max(seen, default=-1)

    def lost(self, query_id: str, epoch: int, rivals: Collection[str]) -> frozenset[str]:
        """Return those of `rivals` that gave way before they were seen to have committed the epoch."""
        with self._lock:
            last = self._gave_way.get(query_id, {})
            return frozenset(run for run in rivals if run in last and last[run] < epoch)

    def running(self, query_id: str) -> str | None:
        """Return the run that was seen to start here, and not to end."""
        with self._lock:
            return self._running.get(query_id)

    def committed(self, query_id: str, epoch: int, rivals: Collection[str]) -> str | None:
        """Return the run that was seen to have written `commits/<epoch>`.

        None also when one of `rivals`, runs that have published the epoch, started afterwards: it
        would not have computed the epoch, had `commits/<epoch>` not been deleted since.
        """
        with self._lock:
            if epoch not in self._events.get(query_id, ()):
                return None
            run_id, before = self._events[query_id][epoch]
            later = self._started[query_id][before:]
        return None if any(rival in later for rival in rivals) else run_id


RUN_HISTORY = RunHistory()
"""The listener of this process tells it, and the flushers of this process ask it."""
