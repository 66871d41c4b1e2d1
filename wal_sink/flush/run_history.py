"""What this process learned of the runs of a query: which one Spark kept, which one goes on (rule 11).

Spark's progress event for epoch N comes after its run has written `commits/N`, in the process of that run.
So it proves whose attempt was kept, which nothing in the checkpoint does. Events can be lost: a missing event
proves nothing. But a run can also be asked, as long as its JVM lives: `caught_up`.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field

_EPOCHS_KEPT = 100
"""Newest events of a query that are remembered; an older doubt is settled by the epochs after it."""

_RUNS_KEPT = 100
"""Newest runs of a query that are remembered: a supervisor may start it again every minute for a year."""


@dataclass
class _Seen:
    """What was seen of one query."""

    events: OrderedDict[int, tuple[str, int]] = field(default_factory=OrderedDict)
    """By epoch: the run that has written its `commits/` file, and how many runs had started before that."""
    runs: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """How many runs had started before each."""
    count: int = 0
    """Runs that have started."""
    running: str | None = None
    gave_way: dict[str, int] = field(default_factory=dict)
    """The last epoch that each run had written when it ended because a file of another run was there."""

    def started(self, run_id: str) -> None:
        self.running = run_id
        if run_id in self.runs:
            return
        self.runs[run_id] = self.count
        self.count += 1
        while len(self.runs) > _RUNS_KEPT:
            run, before = self.runs.popitem(last=False)
            self.gave_way.pop(run, None)
            # Whether this run started after an event of before is not known any more.
            for epoch in [epoch for epoch, (_, then) in self.events.items() if then <= before]:
                del self.events[epoch]

    def note(self, epoch: int, run_id: str, before: int) -> None:
        self.events.pop(epoch, None)
        self.events[epoch] = run_id, before
        while len(self.events) > _EPOCHS_KEPT:
            self.events.popitem(last=False)


class RunHistory:
    """Remembers events of the queries that this process flushes. Used by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queries: dict[str, _Seen] = {}

    def watch(self, query_id: str) -> None:
        """Remember events of this query from now on."""
        with self._lock:
            self._queries.setdefault(query_id, _Seen())

    def unwatch(self, query_id: str) -> None:
        """Remember nothing of this query any more: it has ended, and all of it is flushed."""
        with self._lock:
            self._queries.pop(query_id, None)

    def started(self, query_id: str, run_id: str) -> None:
        """Note that a run starts. Spark has one run of a query at a time in a process."""
        with self._lock:
            if seen := self._queries.get(query_id):
                seen.started(run_id)

    def progressed(self, query_id: str, run_id: str, epoch: int) -> None:
        """Note that a run has written `commits/<epoch>`."""
        with self._lock:
            if seen := self._queries.get(query_id):
                seen.note(epoch, run_id, seen.count)

    def caught_up(self, query_id: str, run_id: str, epoch: int) -> bool:
        """Note what a run says of itself: that it goes on after `commits/<epoch>`; whether that is news.

        Its event may have been missed. If the run has published the epoch, it has written that file, since
        Spark ends a run that finds the file of another one. When it has is not known. So every run that
        started after this one counts as later than the file: see `committed`.
        """
        with self._lock:
            seen = self._queries.get(query_id)
            if seen is None or run_id not in seen.runs or epoch in seen.events:
                return False
            seen.note(epoch, run_id, seen.runs[run_id] + 1)
            return True

    def terminated(self, query_id: str, run_id: str, *, gave_way: bool = False) -> None:
        """Note that a run has ended; a late event of an earlier run does not end the current one.

        :param gave_way: it ended because a file that it was to write was there: another run's. Only if
            no event of the run was missed, or it has caught up.
        """
        with self._lock:
            if (seen := self._queries.get(query_id)) is None:
                return
            if seen.running == run_id:
                seen.running = None
            if gave_way and run_id in seen.runs:
                written = [epoch for epoch, (run, _) in seen.events.items() if run == run_id]
                seen.gave_way[run_id] = max(written, default=-1)

    def gave_way(self, query_id: str, epoch: int, rivals: Collection[str]) -> frozenset[str]:
        """Return those of `rivals` that gave way before they were seen to have committed the epoch."""
        with self._lock:
            seen = self._queries.get(query_id, _Seen())
            last = seen.gave_way
            return frozenset(run for run in rivals if run in last and last[run] < epoch)

    def running(self, query_id: str) -> str | None:
        """Return the run that was seen to start here, and not to end."""
        with self._lock:
            return self._queries.get(query_id, _Seen()).running

    def committed(self, query_id: str, epoch: int, rivals: Collection[str]) -> str | None:
        """Return the run that was seen to have written `commits/<epoch>`.

        None also when one of `rivals`, runs that have published the epoch, started afterwards: it
        would not have computed the epoch, had `commits/<epoch>` not been deleted since.
        """
        with self._lock:
            seen = self._queries.get(query_id, _Seen())
            if epoch not in seen.events:
                return None
            run_id, before = seen.events[epoch]
            later = any(seen.runs.get(rival, -1) >= before for rival in rivals)
        return None if later else run_id


RUN_HISTORY = RunHistory()
"""The listener of this process tells it, and the flushers of this process ask it."""
