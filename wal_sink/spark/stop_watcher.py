"""Tells a `commit` that waits for room in the log that its query is being stopped.

Spark's `stop()` waits for the micro-batch, and the micro-batch for `commit`, in a Python worker that no
interrupt and no event reaches (measured with 4.3.0: `stop()` took as long as the commit did). Driver and
worker both reach the log, though. So the driver notes in the log that a run is told to stop and goes on all
the same, and a waiting `commit` sees that (rule 2). The run keeps its ticket: when it comes to its next epoch
it may be the one run that can prove which attempt Spark has kept (rule 11).
"""

from __future__ import annotations

import logging
import threading
from typing import NamedTuple

from pyspark.sql.streaming.query import StreamingQuery

from state_backends import StateBackendError
from wal_sink.spark import internals
from wal_sink.wal.log import Log

logger = logging.getLogger(__name__)

_LOOK_S = 1.0

_LOOKS = 2
"""A stop is noted when so many looks in a row find the run stopping. Nearly every run has ended by then,
whatever it was doing, and nothing is noted."""


class _Run(NamedTuple):
    query: StreamingQuery
    log: Log
    looks: int


class StopWatcher(threading.Thread):
    """A thread that watches the runs of one handle, from the first run on."""

    def __init__(self) -> None:
        super().__init__(name="wal_sink-stops", daemon=True)
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._ended = threading.Event()

    def watch(self, run_id: str, query: StreamingQuery, log: Log) -> None:
        """Watch a run until it ends."""
        with self._lock:
            self._runs[run_id] = _Run(query, log, 0)
            if self.ident is None and not self._ended.is_set():
                self.start()

    def forget(self, run_id: str) -> None:
        """Stop watching a run: it has ended."""
        with self._lock:
            self._runs.pop(run_id, None)

    def end(self, join_s: float) -> None:
        """End the thread.

        :param join_s: seconds to wait for the thread.
        """
        self._ended.set()
        if self.ident is not None:
            self.join(join_s)

    def run(self) -> None:
        """Look at every run, again and again."""
        while not self._ended.wait(_LOOK_S):
            with self._lock:
                runs = dict(self._runs)
            for run_id, run in runs.items():
                self._look(run_id, run)

    def _look(self, run_id: str, run: _Run) -> None:
        active = internals.is_active(run.query)
        if active is None:
            self.forget(run_id)
            return
        looks = 0 if active else run.looks + 1
        if looks == _LOOKS:
            try:
                run.log.create_stop(run_id)
            except (OSError, StateBackendError) as error:
                logger.warning("that run %s stops cannot be noted: %r", run_id, error)
                return
            self.forget(run_id)
            return
        with self._lock:
            if run_id in self._runs:
                self._runs[run_id] = run._replace(looks=looks)
